"""What went wrong in other platforms' front doors; each test is named after what it keeps out."""

import asyncio
import json

import pytest

from tests.integration.gateway.peers import CANCELLED, LENGTH, STOP
from tests.support.openapi import EVENTS, events
from tokenloom.api.inference.v1 import inference_pb2

INCOMPLETE = inference_pb2.FINISH_REASON_INCOMPLETE
DEADLINE = inference_pb2.FINISH_REASON_DEADLINE
PROMPT = {"model": "toy", "prompt": "ab"}
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "ab"}]}
# OpenAI callers that do not ask for usage in the stream are the ones who were never billed.
FACES = {
    "/v1/generations": PROMPT,
    "/v1/completions": PROMPT | {"stream": True},
    "/v1/chat/completions": CHAT | {"stream": True},
}


def tokens_then(platform, end):
    """A script: three tokens, then an end of some kind."""

    async def script(job):
        job.accept()
        for _ in range(3):
            job.step(platform.ids("a")[-1])
            await asyncio.sleep(0)
        await end(job)

    return script


def ends(reason):
    async def end(job):
        job.end(reason)

    return end


async def stream(client, path):
    headers = {"Accept": EVENTS}
    async with client.stream("POST", path, json=FACES[path], headers=headers) as response:
        assert response.status_code == 200
        return await response.aread()


@pytest.mark.parametrize(
    "reason", [STOP, LENGTH, DEADLINE, CANCELLED, INCOMPLETE], ids=inference_pb2.FinishReason.Name
)
async def test_a_streamed_request_is_never_logged_as_zero_spend(platform, reason):
    platform.scheduler.script = tokens_then(platform, ends(reason))
    async with platform.http() as client:
        for path in FACES:
            await stream(client, path)
    for row in (await platform.events(closed=len(FACES))).closed:
        assert row.finish_reason == reason
        assert row.output_tokens == 3
        assert row.billable_tokens == row.input_tokens + row.output_tokens > 3


async def test_a_stream_whose_caller_leaves_is_never_logged_as_zero_spend(platform):
    async def until_cancelled(job):
        await job.until_cancelled()

    platform.scheduler.script = tokens_then(platform, until_cancelled)
    async with platform.http() as client:
        for path, body in FACES.items():
            headers = {"Accept": EVENTS}
            async with client.stream("POST", path, json=body, headers=headers) as response:
                async for _ in response.aiter_bytes():
                    break
    for row in (await platform.events(closed=len(FACES))).closed:
        assert row.finish_reason == CANCELLED
        assert row.output_tokens <= 3
        assert row.billable_tokens == row.input_tokens + row.output_tokens > 0


async def test_what_a_stream_told_its_caller_is_what_is_billed(platform):
    platform.scheduler.script = tokens_then(platform, ends(LENGTH))
    async with platform.http() as client:
        told = [(name, json.loads(data)) for name, data in events(await stream(client, "/v1/generations"))]
    row = (await platform.events()).row()
    seen = sum(data["count"] for name, data in told if name == "token")
    (done,) = [data for name, data in told if name == "done"]
    assert seen == done["outputTokens"] == row.output_tokens


async def test_an_event_id_comes_from_the_logical_event_so_that_no_emission_bills_again(platform):
    platform.scheduler.script = tokens_then(platform, ends(LENGTH))
    async with platform.http() as client:
        await stream(client, "/v1/generations")
    row = (await platform.events()).row()
    stored = await platform.bus.js.stream_info("USAGE")
    for sequence in range(stored.state.first_seq, stored.state.last_seq + 1):
        message = await platform.bus.js.get_msg("USAGE", sequence)
        kind = message.subject.split(".")[2]
        msg_id = message.headers["Nats-Msg-Id"]
        assert msg_id == f"{row.opened.request_id}-{row.opened.owner_epoch}-{kind}"
        for _ in range(3):
            await platform.bus.publish(message.subject, message.data, msg_id=msg_id)
    again = await platform.bus.js.stream_info("USAGE")
    assert again.state.messages == stored.state.messages == 2
