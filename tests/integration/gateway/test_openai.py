import httpx
import openai
import pytest

from tests.integration.gateway.conftest import KEY, REVOKED_KEY
from tests.integration.gateway.peers import LENGTH
from tokenloom.api.inference.v1 import inference_pb2 as pb

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(platform):
    async with openai.AsyncOpenAI(base_url=f"{platform.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def test_a_chat_completion_answers_with_usage(platform, client):
    platform.scheduler.script = platform.says("hello 🚀")
    answer = await client.chat.completions.create(model="toy", messages=MESSAGES, max_completion_tokens=64)
    assert answer.choices[0].message.content == "hello 🚀"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id == answer._request_id == f"gen-{platform.scheduler.job.id:016x}"
    assert answer.usage.completion_tokens == len(platform.ids("hello 🚀")) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert (await platform.events()).row().output_tokens == answer.usage.completion_tokens


async def test_a_chat_streams_with_usage_last(platform, client):
    platform.scheduler.script = platform.says("hello 🚀", reason=LENGTH)
    stream = await client.chat.completions.create(
        model="toy", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2 * len(platform.ids("hello 🚀"))
    for index in range(2):
        parts = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
        assert parts[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in parts) == "hello 🚀"
        assert parts[-1].finish_reason == "length"


async def test_a_completion_has_log_probabilities(platform, client):
    platform.scheduler.script = platform.says("ab", logprobs=True)
    answer = await client.completions.create(model="toy", prompt="x", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs == [-0.5] * (len(platform.ids("ab")) + 1)
    chat = await client.chat.completions.create(model="toy", messages=MESSAGES, logprobs=True, top_logprobs=2)
    entries = chat.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries[:-1]) == "ab"
    assert len(entries[0].top_logprobs) == 2


async def test_a_stop_string_ends_the_text_before_it(platform, client):
    async def script(job):
        job.accept()
        job.step(*platform.ids("one END two"))
        await platform.eventually(lambda: job.cancels)
        job.end(1)

    platform.scheduler.script = script
    answer = await client.completions.create(model="toy", prompt="x", stop="END")
    assert answer.choices[0].text == "one "
    assert answer.choices[0].finish_reason == "stop"


async def test_models_are_listed_and_found(platform, client):
    models = (await client.models.list()).data
    assert [model.id for model in models] == ["toy"]
    assert models[0].context_length == 256
    assert (await client.models.retrieve("toy")).family == "llama"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_refusals_become_the_clients_own_errors(platform, client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="toy", messages=MESSAGES, temperature=9)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as caught:
        await client.completions.create(model="other", prompt="x")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key=REVOKED_KEY).models.list()

    async def script(job):
        job.refuse("QUEUE_FULL", "come back", retry_after_us=2_300_000)

    platform.scheduler.script = script
    with pytest.raises(openai.RateLimitError) as caught:
        await client.completions.create(model="toy", prompt="x")
    assert caught.value.response.headers["retry-after"] == "3"
    assert caught.value.body["reason"] == "QUEUE_FULL"


async def test_a_failure_in_mid_stream_is_an_error_event_without_done(platform, client):
    async def script(job):
        job.accept()
        job.step(5)
        job.end(pb.FINISH_REASON_INCOMPLETE)

    platform.scheduler.script = script
    stream = await client.completions.create(model="toy", prompt="x", stream=True)
    with pytest.raises(openai.APIError) as caught:
        async for _ in stream:
            pass
    assert caught.value.body["x_tokenloom_finish_reason"] == "incomplete"
    async with platform.http() as raw:
        body = {"model": "toy", "prompt": "x", "stream": True}
        text = (await raw.post("/v1/completions", json=body)).text
    assert "event: error\n" in text
    assert "[DONE]" not in text


async def test_what_a_benchmark_client_sends_is_served(platform):
    platform.scheduler.script = platform.says("hello", reason=LENGTH)
    body = {
        "model": "toy",
        "prompt": "the quick",
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "ignore_eos": True,
    }
    async with httpx.AsyncClient(base_url=platform.url) as raw:
        headers = {"Authorization": f"Bearer {KEY}"}
        response = await raw.post("/v1/completions", json=body, headers=headers)
    assert response.text.endswith("data: [DONE]\n\n")
    assert list(platform.scheduler.job.submit.stop_token_ids) == []


async def test_a_deadline_ends_as_length(platform, client):
    async def script(job):
        job.accept()
        job.step(*platform.ids("ab"))
        job.end(pb.FINISH_REASON_DEADLINE)

    platform.scheduler.script = script
    answer = await client.completions.create(model="toy", prompt="x", extra_body={"deadline_ms": 5000})
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].x_tokenloom_finish_reason == "deadline"
