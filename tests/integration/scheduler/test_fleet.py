"""Workers come, go, restart and hang."""

import asyncio
import itertools
import time

from prometheus_client import CollectorRegistry

from kit.outbox import Outbox
from services.scheduler.adapters import replica
from services.scheduler.adapters.closer import Closer
from services.scheduler.adapters.epochs import EpochStore
from services.scheduler.adapters.fleet import Fleet
from services.scheduler.adapters.metrics import SchedulerMetrics
from services.scheduler.adapters.step_loop import StepLoop
from services.scheduler.core.desk import Desk
from services.scheduler.core.lane import Lane
from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.ownership import Ownership
from services.scheduler.core.records import Records
from tests.integration.scheduler.support import FINISH
from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.worker.v1 import worker_pb2


async def test_a_worker_that_was_ready_before_the_scheduler_started_is_attached(house):
    worker = await house.worker()
    await house.announce(worker)
    house.start()
    await house.until_lane(lambda lane: lane.workers == 1)


async def test_the_epoch_rises_above_the_workers_and_over_restarts_of_the_scheduler(house, eventually):
    worker = await house.worker()
    worker.last_epoch = 40
    await house.announce(worker)
    house.start()
    gateway = await house.gateway()
    await house.until_lane(lambda lane: lane.workers == 1)
    await gateway.submit(1)
    await eventually(lambda: gateway.seen[1].request_end)
    assert worker.plans[-1].epoch == 41
    first = gateway.welcome.scheduler_epoch
    await house.end()
    worker.last_epoch = 0
    house.start()
    again = await house.gateway()
    await house.until_lane(lambda lane: lane.workers == 1)
    assert again.welcome.scheduler_epoch > first
    await again.submit(2)
    await eventually(lambda: again.seen[2].request_end)
    assert worker.plans[-1].epoch > 41


async def test_the_same_event_twice_attaches_once(serving):
    (worker,) = serving.workers
    await serving.announce(worker)
    await asyncio.sleep(0.3)
    assert worker.streams == 1
    assert (await serving.lane()).workers == 1


async def test_a_brief_loss_of_the_registry_detaches_no_live_worker(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    await serving.announce(worker, "GONE")
    await asyncio.sleep(0.3)
    await gateway.submit(1, output=20)
    await eventually(lambda: gateway.seen[1].request_end)
    assert len(gateway.seen[1].tokens) == 20
    await serving.announce(worker, "READY")
    await asyncio.sleep(0.3)
    await gateway.submit(2, output=20)
    await eventually(lambda: gateway.seen[2].request_end)
    assert len({plan.epoch for plan in worker.plans}) == 1
    await worker.die()
    again = await serving.worker()
    await serving.until_lane(lambda lane: again.streams == 1 and lane.workers == 1)


async def test_a_worker_lost_before_the_first_token_costs_a_delay_and_after_it_incomplete(
    serving, eventually
):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 10
    await gateway.submit(1, output=100)
    await eventually(lambda: gateway.seen[1].tokens)
    await eventually(lambda: not worker.open.is_set())
    await gateway.submit(2, output=5)
    await eventually(lambda: gateway.seen[2].accepted)
    await worker.die()
    await eventually(lambda: gateway.seen[1].request_end)
    assert gateway.seen[1].choice_end.finish_reason == FINISH.FINISH_REASON_INCOMPLETE
    assert gateway.seen[1].choice_end.output_tokens == len(gateway.seen[1].tokens)
    assert gateway.seen[2].choice_end is None
    again = await serving.worker(incarnation="i2")
    await serving.announce(again)
    await eventually(lambda: gateway.seen[2].request_end)
    assert len(gateway.seen[2].tokens) == 5
    assert [len(added.token_ids) for plan in again.plans for added in plan.add] == [3]


async def test_a_hung_step_loses_the_worker_and_attaches_again_under_a_new_epoch(house, eventually):
    house.start(step_timeout_s=1.5)
    worker = await house.worker()
    await house.announce(worker)
    await house.until_lane(lambda lane: lane.workers == 1)
    gateway = await house.gateway()
    worker.open.clear()
    await gateway.submit(1, output=3)
    await eventually(lambda: len({plan.epoch for plan in worker.plans}) == 2)
    worker.open.set()
    await eventually(lambda: gateway.seen[1].request_end)
    assert gateway.seen[1].tokens == [4, 5, 6]
    epochs = [plan.epoch for plan in worker.plans]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2
    assert next(plan.step for plan in worker.plans if plan.epoch == epochs[-1]) == 1


async def test_a_resumable_request_goes_on_at_the_next_worker_with_no_token_repeated_or_missing(
    serving, eventually
):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 10
    await gateway.submit(1, output=60, n=2, resume=True)
    await eventually(lambda: len(gateway.seen[1].tokens) >= 5)
    await worker.die()
    again = await serving.worker("w2")
    await serving.announce(again, worker_id="w2")
    await eventually(lambda: gateway.seen[1].request_end)
    assert gateway.seen[1].choices == {choice: list(range(4, 64)) for choice in range(2)}
    resumed = [added for plan in again.plans for added in plan.add if added.prompt_len == 3]
    assert all(len(added.token_ids) > 3 for added in resumed)
    named = {"model_version": "tiny@1"}
    value = serving.metrics.get_sample_value
    # Sampled together, and the last of them to happen.
    await eventually(lambda: value("tokenloom_scheduler_recomputed_tokens_total", named))
    assert value("tokenloom_scheduler_resumed_sequences_total", named) == 2
    assert value("tokenloom_scheduler_workers_lost_total", named) == 1


async def test_a_worker_without_heartbeats_is_lost_as_soon_as_its_step_is_late_too(
    serving, eventually, monkeypatch
):
    (gateway,), (worker,) = serving.gateways, serving.workers
    monkeypatch.setattr(replica, "SUSPECT_S", 0.3)
    worker.open.clear()
    await gateway.submit(1, output=3)
    await asyncio.sleep(0.6)
    assert (await serving.lane()).workers == 1
    await serving.announce(worker, "GONE")
    await serving.until_lane(lambda lane: lane.workers == 0, within_s=4)
    worker.open.set()
    await serving.announce(worker, "READY")
    await eventually(lambda: gateway.seen[1].request_end)
    assert gateway.seen[1].tokens == [4, 5, 6]


async def test_a_worker_whose_stream_breaks_again_and_again_is_not_stormed(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.open.clear()
    for request_id in range(1, 21):
        await gateway.submit(request_id, output=3, resume=request_id % 2 == 0)
    await eventually(lambda: gateway.seen[20].accepted)
    worker.flaps = True
    await worker.die()
    await worker.start()
    await eventually(lambda: all(gateway.seen[one].request_end for one in range(1, 21)))
    ends = [gateway.seen[one].choice_end for one in range(1, 21)]
    assert {(end.finish_reason, end.error_reason) for end in ends} == {
        (FINISH.FINISH_REASON_ERROR, "WORKER_LOST")
    }
    before, used = worker.attempts, time.process_time()
    await asyncio.sleep(2.0)
    assert worker.attempts - before <= 8
    assert time.process_time() - used < 0.5
    worker.flaps = False
    worker.open.set()
    await serving.until_lane(lambda lane: lane.workers == 1 and worker.streams)
    await gateway.submit(21, output=3)
    await eventually(lambda: gateway.seen[21].request_end)
    assert len(gateway.seen[21].tokens) == 3


async def test_a_restarted_worker_is_a_new_attachment(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    await worker.die()
    again = await serving.worker("w1-again", incarnation="i2")
    await serving.announce(again)
    await serving.until_lane(lambda lane: lane.workers == 1 and again.streams)
    await gateway.submit(1)
    await eventually(lambda: gateway.seen[1].request_end)
    assert {plan.epoch for plan in again.plans} != {plan.epoch for plan in worker.plans}


async def test_a_terminating_worker_gets_nothing_new_finishes_and_is_let_go(serving, eventually):
    (gateway,), (worker,) = serving.gateways, serving.workers
    worker.holds_at = 10
    await gateway.submit(1, output=40)
    await eventually(lambda: gateway.seen[1].tokens)
    await serving.announce(worker, "DRAINING")
    for later in itertools.count(2):  # what comes before the scheduler hears of it is taken
        await gateway.submit(later)
        await eventually(lambda later=later: gateway.seen[later].accepted or gateway.seen[later].refused)
        if gateway.seen[later].refused:
            break
    assert gateway.seen[later].refused.reason == "DRAINING"
    worker.go_on()
    await eventually(lambda: gateway.seen[1].request_end)
    assert len(gateway.seen[1].tokens) == 40
    await eventually(lambda: worker.streams == 0)
    await serving.until_lane(lambda lane: lane.workers == 0)


async def test_two_workers_share_a_lane_and_one_may_die(serving, eventually):
    (gateway,) = serving.gateways
    second = await serving.worker("w2")
    await serving.announce(second, worker_id="w2")
    await serving.until_lane(lambda lane: lane.workers == 2)
    for request_id in range(1, 13):
        await gateway.submit(request_id, output=8)
    await eventually(lambda: all(gateway.seen[i].request_end for i in range(1, 13)))
    assert all(any(plan.add for plan in worker.plans) for worker in serving.workers)
    await second.die()
    await serving.until_lane(lambda lane: lane.workers == 1)
    await gateway.submit(20)
    await eventually(lambda: gateway.seen[20].request_end)


async def test_a_worker_that_still_loads_is_attached_once_it_is_ready(house):
    house.start()
    worker = await house.worker()
    worker.state = worker_pb2.WORKER_STATE_LOADING
    await house.announce(worker)
    await asyncio.sleep(0.3)
    assert (await house.lane()).workers == 0
    worker.state = worker_pb2.WORKER_STATE_READY
    await house.until_lane(lambda lane: lane.workers == 1)


async def test_every_idle_worker_is_probed_and_nobody_billed(house, eventually):
    house.start(probe_s=0.2)
    for name in ("w1", "w2"):
        await house.announce(await house.worker(name), worker_id=name)
    gateway = await house.gateway()
    await eventually(lambda: all(len(worker.plans) >= 3 for worker in house.workers))
    # In the middle of a probe there is a page that it owns.
    lane = await house.until_lane(lambda lane: lane.last_step_age_us < 1_000_000 and not lane.owned_pages)
    assert gateway.steps == 0
    assert list(lane.violations) == []


async def test_a_worker_that_is_gone_is_forgotten(tmp_path, eventually):
    desk = Desk(Ownership(10), Records(60, 1000), lambda m: Lane(m, LaneLimits()), vacant_s=1)
    closer = Closer(Outbox(tmp_path / "outbox", max_bytes=1000), desk)
    steps = StepLoop(desk, SchedulerMetrics(CollectorRegistry()), closer, depth=1, probe_s=60)
    fleet = Fleet(steps, EpochStore(tmp_path / "epoch"), step_timeout_s=1)
    for availability in ("READY", "GONE"):
        for number in range(3):
            fleet.on_change(
                events_pb2.WorkerChanged(
                    worker_id=f"w{number}",
                    target=f"unix:{tmp_path}/nobody",
                    availability=f"WORKER_AVAILABILITY_{availability}",
                )
            )
    await eventually(lambda: not fleet._attachments)
    await fleet.close()
