"""A new scheduler among services of the previous release: an upgrade need not happen at once."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from tests.integration.scheduler.recorded import (
    RecordedGateway,
    RecordedWorker,
    frames,
    previous,
    recorded_tokens,
)  # fmt: skip
from tokenloom.api.events.v1 import events_pb2


@pytest.fixture
async def old_worker(house):
    house.start()
    worker = RecordedWorker(f"unix:{house.directory}/old")
    await worker.start()
    change = events_pb2.WorkerChanged(
        worker_id=worker.described.worker_id,
        target=worker.target,
        model_version=worker.described.model_version,
        availability=events_pb2.WORKER_AVAILABILITY_READY,
        incarnation=worker.described.incarnation,
    )
    subject = f"deployment.v1.worker.{change.worker_id}"
    await house.bus.publish(subject, change.SerializeToString(), msg_id=secrets.token_hex(8))
    await house.until_lane(lambda lane: lane.workers == 1)
    yield worker
    await worker.die()


async def test_a_gateway_and_a_worker_of_the_previous_release_are_served_as_before(house, old_worker):
    gateway = RecordedGateway(house.target)
    await asyncio.wait_for(gateway.replay(), 20)
    assert gateway.kinds[0] == "welcome"
    assert gateway.kinds.count("accepted") == 4
    for key, tokens in gateway.expected.items():
        # A cancel stops a stream wherever it happens to be; what was told before is the same.
        assert gateway.tokens[key][: len(tokens)] == tokens
    assert len(gateway.ended) == 4
    await house.until_lane(lambda lane: lane.owned_pages == lane.running == lane.waiting == 0)


async def test_a_new_gateway_streams_from_a_worker_of_the_previous_release(house, old_worker):
    lane = [previous("scheduler.v1.LaneRequest").FromString(m) for up, m in frames("lane") if not up]
    submit = next(one.submit for one in lane if one.HasField("submit") and one.submit.max_output_tokens == 12)
    gateway = await house.gateway()
    await gateway.submit(
        7, submit.prompt_token_ids, output=12, model_version=old_worker.described.model_version
    )
    async with asyncio.timeout(10):
        while gateway.seen[7].request_end is None:  # noqa: ASYNC110 - what is watched has no event
            await asyncio.sleep(0.02)
    assert gateway.seen[7].tokens == recorded_tokens()[submit.request_id, 0]
