import json
import time

from tests.integration.gateway.peers import LENGTH


def sse(text: str) -> list[tuple[str, dict]]:
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append((fields["event"], json.loads(fields["data"])))
    return events


async def generate(platform, *, stream=True, key=None, **body):
    headers = {"Accept": "text/event-stream"} if stream else {}
    async with platform.http(**({"key": key} if key else {})) as client:
        return await client.post("/v1/generations", json={"model": "toy", **body}, headers=headers)


async def test_a_stream_is_accepted_tokens_done_and_one_ledger_row(platform):
    platform.scheduler.script = platform.says("hello, wörld 🚀")
    response = await generate(platform, prompt="the quick", seed=7, temperature=0.5, maxOutputTokens=64)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = sse(response.text)
    names = [name for name, _ in events]
    assert names[0] == "accepted"
    assert set(names[1:-1]) == {"token"}
    assert names[-1] == "done"
    accepted, done = events[0][1], events[-1][1]
    tokens = [event for name, event in events if name == "token"]
    ids = [*platform.ids("hello, wörld 🚀"), 2]
    assert accepted["requestId"] == response.headers["x-request-id"]
    assert accepted["modelVersion"] == platform.model_version
    assert accepted["runtimeRevision"] == "scripted/1"
    assert accepted["sampling"] == {"temperature": 0.5, "topP": 1.0, "topK": 0, "minP": 0.0, "seed": 7}
    assert "".join(token["text"] for token in tokens) == "hello, wörld 🚀"
    assert [i for token in tokens for i in token["tokenIds"]] == ids
    assert sum(token["count"] for token in tokens) == len(ids)
    assert tokens[-1]["finishReason"] == "stop"
    prompt = platform.ids("the quick")
    assert done | {"ttftMs": 0, "totalMs": 0} == {
        "finishReason": "stop",
        "inputTokens": len(prompt),
        "outputTokens": len(ids),
        "cachedTokens": 0,
        "queueMs": 1.5,
        "ttftMs": 0,
        "totalMs": 0,
    }
    assert 0 < done["ttftMs"] <= done["totalMs"]
    events = await platform.events()
    row = events.row()
    assert events.opened[0].request_id == row.opened.request_id == platform.scheduler.job.id
    assert row.opened.tenant_id == "acme"
    assert (row.input_tokens, row.output_tokens) == (len(prompt), len(ids))
    assert row.billable_tokens == len(prompt) + len(ids)


async def test_the_scheduler_gets_the_request_as_validated(platform):
    platform.scheduler.script = platform.says("x")
    begun = time.monotonic()
    await generate(
        platform,
        prompt="abc",
        topP=0.5,
        topK=3,
        minP=0.1,
        seed=-5,
        maxOutputTokens=9,
        logprobs=4,
        n=2,
        deadlineMs=9000,
    )
    took = time.monotonic() - begun
    submit = platform.scheduler.job.submit
    assert list(submit.prompt_token_ids) == platform.ids("abc")
    assert submit.tenant_id == "acme"
    assert submit.model_version == platform.model_version
    assert (submit.max_output_tokens, submit.n, list(submit.stop_token_ids)) == (9, 2, [2])
    sampling = submit.sampling
    assert (sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 3, 0.1)
    assert (sampling.seed, sampling.top_logprobs) == (-5, 4)
    assert 9_000_000 - took * 1e6 <= submit.deadline_us <= 9_000_000


async def test_a_request_without_a_seed_gets_one_and_is_told(platform):
    platform.scheduler.script = platform.says("x")
    seeds = {sse((await generate(platform, prompt="a")).text)[0][1]["sampling"]["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert platform.scheduler.job.submit.sampling.seed in seeds


async def test_without_accept_the_answer_is_one_object(platform):
    platform.scheduler.script = platform.says("hello", reason=LENGTH)
    response = await generate(platform, stream=False, messages=[{"role": "user", "content": "hi"}])
    body = response.json()
    assert body["text"] == "hello"
    assert body["tokenIds"] == platform.ids("hello")
    assert body["finishReason"] == "length"
    assert body["inputTokens"] == len(platform.scheduler.job.submit.prompt_token_ids)
    assert body["sampling"]["temperature"] == 1.0


async def test_choices_share_a_request_and_are_told_apart(platform):
    platform.scheduler.script = platform.says("abc")
    events = sse((await generate(platform, prompt="x", n=2)).text)
    for choice in range(2):
        pieces = [event for name, event in events if name == "token" and event["choice"] == choice]
        assert "".join(piece["text"] for piece in pieces) == "abc"
        assert pieces[-1]["finishReason"] == "stop"
    assert events[-1][1]["outputTokens"] == 2 * (len(platform.ids("abc")) + 1)
    whole = (await generate(platform, stream=False, prompt="x", n=2)).json()
    assert [choice["text"] for choice in whole["choices"]] == ["abc", "abc"]


async def test_log_probabilities_come_with_their_tokens(platform):
    platform.scheduler.script = platform.says("ab", logprobs=True)
    events = sse((await generate(platform, prompt="x", logprobs=2)).text)
    entries = [entry for name, event in events if name == "token" for entry in event["logprobs"]]
    ids = [*platform.ids("ab"), 2]
    assert [entry["tokenId"] for entry in entries] == ids
    assert all(entry["logprob"] == -0.5 and len(entry["top"]) == 2 for entry in entries)
    assert entries[0]["top"][0]["token"] == entries[0]["token"]


async def test_a_stop_string_over_token_borders_ends_its_choice_at_the_scheduler(platform):
    async def script(job):
        job.accept()
        for token in platform.ids("one END two"):
            job.step(token)
        await platform.eventually(lambda: job.cancels)
        job.step(platform.ids("z")[0])
        job.end_choice(1)
        job.end_request()

    platform.scheduler.script = script
    events = sse((await generate(platform, prompt="x", stop=["END"])).text)
    assert "".join(event["text"] for name, event in events if name == "token") == "one "
    assert events[-1][1]["finishReason"] == "stop"
    (cancel,) = platform.scheduler.job.cancels
    kept = cancel.kept_tokens
    assert platform.tokenizer.decode(platform.ids("one END two")[:kept]).endswith("END")
    assert (cancel.choice, cancel.reason) == (0, 1)
    assert events[-1][1]["outputTokens"] == kept
    assert (await platform.events()).row().output_tokens == kept
    await platform.eventually(lambda: platform.scheduler.job.settled)
    assert list(platform.scheduler.job.settled.output_tokens) == [kept]
