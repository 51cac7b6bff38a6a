"""What a running gateway answers is in its own document, and everything in the document is answered."""

import asyncio

from tests.integration.gateway.conftest import bearer
from tests.integration.gateway.peers import LENGTH
from tests.support.openapi import EVENTS, Contract
from tokenloom.api.inference.v1 import inference_pb2
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.usage.v1 import usage_pb2

CHAT = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
PROMPT = {"model": "toy", "prompt": "x"}
FACES = (("/v1/generations", PROMPT), ("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT))
ANSWERS = (
    *("Accepted", "Token", "Done", "Generation", "Snapshot", "Cancelled", "UsagePage"),
    *("ChatCompletion", "ChatCompletionChunk", "Completion", "Model", "ModelList"),
    *("Health", "Unhealthy"),
)


class Caller:
    """Sends requests, and holds every answer against the document."""

    def __init__(self, platform, client, contract):
        self.platform, self.client, self.contract = platform, client, contract

    async def __call__(self, method, path, name="", **request):
        response = await self.client.request(method, path.partition("{")[0] + name, **request)
        kind = response.headers["content-type"]
        self.contract.check(method, path, response.status_code, kind, response.content)
        return response


async def test_every_answer_is_in_the_document_and_every_member_of_it_is_answered(platform):
    async with platform.http() as client:
        contract = Contract((await client.get("/openapi.json")).json())
        call = Caller(platform, client, contract)
        await every_operation(call)
        await every_generation(call)
        await every_refusal(call)
    assert contract.members(*ANSWERS) - contract.seen == set()
    members = contract.members("Error", "OpenAIError")
    assert {leaf(name) for name in members} - {
        leaf(name) for name in contract.seen if "error" in name
    } == set()


def leaf(name):
    return name.rpartition(".")[2]


async def every_operation(call):
    lane = scheduler_pb2.LaneStatus(model_version=call.platform.model_version, workers=1)
    for lanes in ([], [lane]):
        call.platform.scheduler.lanes = lanes
        await asyncio.sleep(0.55)  # a verdict is kept for half a second
        await call("GET", "/health")
    row = usage_pb2.UsageRow(request_id=9, tenant_id="acme", finish_reason=1, state=usage_pb2.ROW_STATE_FINAL)
    row.opened_time.FromJsonString("2026-01-31T12:00:00Z")
    row.closed_time.FromJsonString("2026-01-31T12:00:09Z")
    unresolved = usage_pb2.UsageRow(request_id=10, tenant_id="acme", state=usage_pb2.ROW_STATE_UNRESOLVED)
    call.platform.ledger.rows = [row, unresolved]
    call.platform.ledger.next_page_token = "next"
    for path in ("/metrics", "/openapi.json", "/v1/usage", "/v1/models"):
        await call("GET", path)
    await call("GET", "/v1/models/{model}", "toy")


async def every_generation(call):
    """Whole and streamed, one choice and two, with and without log-probabilities, then as they are kept."""
    for path, body in FACES:
        with_logprobs = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
        for more in ({}, with_logprobs | {"n": 2}):
            call.platform.scheduler.script = call.platform.says("ab", logprobs=bool(more), reason=LENGTH)
            await call("POST", path, json=body | more)
            stream = {} if path == "/v1/generations" else {"stream": True}
            usage = {"stream_options": {"include_usage": True}} if stream and more else {}
            response = await call("POST", path, json=body | more | stream | usage, headers={"Accept": EVENTS})
            assert response.headers["content-type"].startswith(EVENTS)
    ended = response.headers["x-request-id"]
    keep(call.platform, 9)
    await call("GET", "/v1/generations/{id}", ended, params={"from": "1"})
    for method in ("GET", "DELETE"):
        await call(method, "/v1/generations/{id}", "gen-0000000000000009")


def keep(platform, request_id):
    """A finished request of two choices as a scheduler keeps it."""
    ids = platform.ids("ab")
    choice = scheduler_pb2.ChoiceRecord(token_id=ids, finish_reason=LENGTH)
    choice.logprobs.row.extend(range(len(ids)))
    choice.logprobs.logprob.extend([-1.0] * len(ids))
    choice.logprobs.top_count.extend([0] * len(ids))
    platform.scheduler.records[request_id, "acme"] = scheduler_pb2.GetGenerationResponse(
        state=inference_pb2.GENERATION_STATE_FINISHED,
        model_version=platform.model_version,
        text_spec=b'{"stop": []}',
        choice=[choice, choice],
        end=scheduler_pb2.RequestEnd(input_tokens=3),
        settled=scheduler_pb2.Settle(finish_reason=LENGTH, output_tokens=[len(ids)] * 2),
    )


async def every_refusal(call):
    for path, body in FACES:
        for content in ({"json": {}}, {"content": b"{"}, {"json": body | {"model": "none"}}):
            await call("POST", path, **content)
        await call("POST", path, json=body, headers=bearer("none"))
        await call(
            "POST", path, content=b'"' + b"x" * (1 << 20), headers={"Content-Type": "application/json"}
        )
        for reason, field in (("QUEUE_FULL", ""), ("INVALID_REQUEST", "prompt"), ("DRAINING", "")):

            async def refuse(job, reason=reason, field=field):
                job.refuse(reason, field=field, retry_after_us=10_000)

            call.platform.scheduler.script = refuse
            await call("POST", path, json=body)
        call.platform.scheduler.script = call.platform.says("ab")
        for prompt in ("x", "y"):
            asked = body | ({"prompt": prompt} if "prompt" in body else {"n": 1 + (prompt == "y")})
            headers = {"Idempotency-Key": path}
            keyed = await call("POST", path, json=asked, headers=headers)
        assert keyed.status_code == 409
        call.platform.scheduler.script = fail
        await call("POST", path, json=body)
    for name in ("gen-00000000000000ff", "key:nobody's"):
        for method in ("GET", "DELETE"):
            await call(method, "/v1/generations/{id}", name)
    await call("GET", "/v1/generations/{id}", "key:a", params={"from": "1"}, headers={"Accept": "text/html"})
    await call("GET", "/v1/models/{model}", "none")
    await call("GET", "/v1/usage", params={"pageSize": "many"})


async def fail(job):
    job.accept()
    job.end(6, error_reason="NAN_LOGITS")
