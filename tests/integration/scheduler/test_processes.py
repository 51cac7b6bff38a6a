"""Scheduler, registry and workers with the real engine, each its own process; the test is the gateway."""

import asyncio
import signal

import pytest

from tests.integration.scheduler.processes import Processes
from tests.integration.scheduler.support import FINISH
from tokenloom.api.scheduler.v1 import scheduler_pb2
from tokenloom.api.worker.v1 import worker_pb2

SEEDED = worker_pb2.Sampling(temperature=1.0, top_p=0.9, seed=11)
GREEDY = worker_pb2.Sampling(top_p=1.0)
PROMPTS = {i: [3 + (i * 7 + k) % 120 for k in range(1 + i * 9)] for i in range(1, 9)}


@pytest.fixture
async def house(nats_url, tmp_path):
    house = Processes(nats_url, tmp_path)
    yield house
    await house.end()


@pytest.fixture
async def serving(house):
    await house.registry()
    await house.scheduler()
    await house.worker()
    await house.gateway()
    await house.until_lane(lambda lane: lane.workers == 1)
    return house


async def generate(gateway, eventually, request_id, prompt, output=24):
    await gateway.submit(request_id, prompt=prompt, output=output, model_version=gateway.model)
    await eventually(lambda: gateway.seen[request_id].request_end, timeout_s=20)
    return gateway.seen[request_id].tokens


async def test_tokens_are_the_same_alone_together_and_after_a_worker_was_killed(serving, eventually):
    gateway = serving.gateways[0]
    gateway.model = serving.model
    alone = {i: await generate(gateway, eventually, i, prompt) for i, prompt in PROMPTS.items()}
    assert all(len(tokens) == 24 for tokens in alone.values())
    together = await asyncio.gather(
        *(generate(gateway, eventually, 100 + i, prompt) for i, prompt in PROMPTS.items())
    )
    assert together == list(alone.values())
    lane = await serving.until_lane(lambda lane: lane.running == 0)
    assert (lane.owned_pages, list(lane.violations)) == (0, [])
    assert lane.cached_pages > 0

    # Killed before the first token: only a delay, once; after it: incomplete.
    await gateway.submit(200, prompt=PROMPTS[1], output=1500, model_version=serving.model)
    await eventually(lambda: gateway.seen[200].tokens, timeout_s=20)
    serving.running["w1"].send_signal(signal.SIGSTOP)
    await gateway.submit(201, prompt=PROMPTS[8], output=24, model_version=serving.model)
    await eventually(lambda: gateway.seen[201].accepted)
    await serving.kill("w1")
    await eventually(lambda: gateway.seen[200].request_end)
    assert gateway.seen[200].choice_end.finish_reason == FINISH.FINISH_REASON_INCOMPLETE
    assert gateway.seen[200].choice_end.output_tokens == len(gateway.seen[200].tokens)
    assert gateway.seen[201].request_end is None
    await serving.worker()
    await eventually(lambda: gateway.seen[201].request_end, timeout_s=40)
    assert gateway.seen[201].tokens == alone[8]


async def test_resumable_requests_give_the_same_tokens_after_their_worker_was_killed_and_after_it_hung(
    house, eventually
):
    await house.registry()
    await house.scheduler(STEP_TIMEOUT_S=2)
    await house.worker()
    gateway = await house.gateway()
    await house.until_lane(lambda lane: lane.workers == 1)

    async def submit(request_id, kind, *, resume):
        await gateway.submit(
            request_id, PROMPTS[kind], 480, model_version=house.model,
            n=1 + kind % 3, sampling=SEEDED if kind % 2 else GREEDY, resume=resume,
        )  # fmt: skip

    async def tokens(request_ids, within_s=40):
        await eventually(lambda: all(gateway.seen[i].request_end for i in request_ids), within_s)
        return [dict(gateway.seen[i].choices) for i in request_ids]

    for kind in range(1, 5):
        await submit(kind, kind, resume=False)
    undisturbed = await tokens(range(1, 5))

    for kind in range(1, 5):
        await submit(10 + kind, kind, resume=True)
    await eventually(lambda: all(gateway.seen[i].tokens for i in range(11, 15)), 20)
    await submit(40, 5, resume=False)
    await eventually(lambda: gateway.seen[40].tokens, 20)
    assert not any(gateway.seen[i].request_end for i in range(11, 15))
    await house.kill("w1")
    await house.worker()
    await eventually(lambda: gateway.seen[40].request_end)
    assert gateway.seen[40].choice_end.finish_reason == FINISH.FINISH_REASON_INCOMPLETE
    reached = len(gateway.seen[12].tokens)
    await eventually(lambda: len(gateway.seen[12].tokens) > reached, 40)
    house.running["w1"].send_signal(signal.SIGSTOP)
    await house.until_lane(lambda lane: lane.workers == 0)
    house.running["w1"].send_signal(signal.SIGCONT)
    again = await tokens(range(11, 15))
    assert again == undisturbed
    lane = await house.until_lane(lambda lane: lane.running == 0)
    assert (lane.owned_pages, list(lane.violations)) == (0, [])


async def test_a_killed_scheduler_attaches_again_and_pipeline_depth_changes_no_token(serving, eventually):
    gateway = serving.gateways[0]
    gateway.model = serving.model
    one = {i: await generate(gateway, eventually, i, prompt) for i, prompt in PROMPTS.items()}
    first = gateway.welcome.scheduler_epoch
    await serving.kill("scheduler")
    await gateway.close()
    await serving.scheduler(PIPELINE_DEPTH=2)
    serving.gateways[:] = []
    again = await serving.gateway()
    again.model = serving.model
    await serving.until_lane(lambda lane: lane.workers == 1)
    assert again.welcome.scheduler_epoch > first
    two = await asyncio.gather(*(generate(again, eventually, i, prompt) for i, prompt in PROMPTS.items()))
    assert two == list(one.values())
    lane = await serving.until_lane(lambda lane: lane.running == 0)
    assert (lane.owned_pages, list(lane.violations)) == (0, [])


async def test_cancelled_requests_free_their_pages_and_change_nobodys_tokens(serving, eventually):
    gateway = serving.gateways[0]
    gateway.model = serving.model
    alone = await generate(gateway, eventually, 1, PROMPTS[3], output=300)
    for request_id in range(10, 18):
        await gateway.submit(request_id, prompt=PROMPTS[3], output=300, model_version=serving.model)
    await eventually(lambda: all(gateway.seen[i].tokens for i in range(10, 18)), timeout_s=20)
    for request_id in range(10, 14):
        await gateway.send(cancel=scheduler_pb2.Cancel(request_id=request_id))
    await eventually(lambda: all(gateway.seen[i].request_end for i in range(10, 14)))
    await eventually(lambda: all(gateway.seen[i].request_end for i in range(14, 18)), timeout_s=40)
    assert all(gateway.seen[i].tokens == alone for i in range(14, 18))
    lane = await serving.until_lane(lambda lane: lane.running == 0)
    assert (lane.owned_pages, list(lane.violations)) == (0, [])


async def test_every_process_drains_and_exits_0_on_sigterm(serving, eventually):
    gateway = serving.gateways[0]
    gateway.model = serving.model
    second = await serving.worker("w2")
    await serving.until_lane(lambda lane: lane.workers == 2)
    assert await serving.kill("w2", signal.SIGTERM) == 0
    assert second.returncode == 0
    await serving.until_lane(lambda lane: lane.workers == 1)
    assert len(await generate(gateway, eventually, 1, PROMPTS[1], output=5)) == 5
    await gateway.settle(1, output=5)
    assert await serving.kill("scheduler", signal.SIGTERM) == 0
    assert await serving.kill("w1", signal.SIGTERM) == 0
