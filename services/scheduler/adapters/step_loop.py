"""The step loop: whatever arrives changes the desk, then every worker with room gets its next plan."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from typing import TYPE_CHECKING

from kit import log
from services.scheduler.adapters import lane_protos, protos
from services.scheduler.adapters.replica import Replica, Sent
from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.messages import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.scheduler.adapters.closer import Closer
    from services.scheduler.adapters.metrics import SchedulerMetrics
    from services.scheduler.adapters.session import Session
    from services.scheduler.core.closing import Closing
    from services.scheduler.core.desk import Desk
    from tokenloom.api.worker.v1 import worker_pb2

TICK_S = 0.05
SAMPLE_S = 1.0
PROBE = ""  # tenant of probes, which nobody owns: no record, no audience, no bill
INTEGRITY_S = 10.0
_log = log.get("steps")


class StepLoop:
    """Drives all lanes on one event loop. Nothing here waits for a gateway, a worker or a disk."""

    def __init__(
        self,
        desk: Desk,
        metrics: SchedulerMetrics,
        closer: Closer,
        *,
        depth: int,
        probe_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.desk = desk
        self.clock = clock
        self._metrics = metrics
        self._closer = closer
        self._depth = depth
        self._probe_s = probe_s
        self._replicas: dict[str, Replica] = {}
        self._sessions: dict[str, Session] = {}
        self._cancels: dict[int, tuple[str, float]] = {}
        self._probe_ids = itertools.count(-1, -1)
        self._wake = asyncio.Event()

    def connect(self, session: Session) -> None:
        """Deliver to a gateway's stream, and start its lease."""
        self._sessions[session.owner] = session
        self.desk.ownership.renew(session.owner, self.clock())
        if session.says_synced:
            self.desk.relay.trust(session.owner)

    def disconnect(self, session: Session) -> None:
        """Deliver no more to a stream; the loss starts its lease's clock the last time."""
        if self._sessions.pop(session.owner, None) is not None:
            self.desk.disconnect(session.owner, self.clock())

    def sessions(self) -> list[Session]:
        """Return the streams that are open."""
        return list(self._sessions.values())

    def attach(self, replica: Replica) -> None:
        """Start planning for a worker."""
        now = self.clock()
        self._replicas[replica.replica_id] = replica
        self.desk.attach(replica.worker, now)
        self.wake()

    def detach(self, replica: Replica) -> None:
        """Count a worker as lost."""
        del self._replicas[replica.replica_id]
        self.desk.detach(replica.replica_id, self.clock())
        self.wake()

    def drain(self, replica: Replica) -> None:
        """Give a worker no new sequences; its stream ends when it runs nothing more."""
        replica.draining = True
        self.desk.lanes[replica.worker.model_version].drain_replica(replica.replica_id)
        self.wake()

    def commit(self, replica: Replica, message: worker_pb2.StepResult) -> None:
        """Take a worker's result."""
        received = self.clock()
        sent = replica.received(message, received)
        if sent is None:
            _log.warning("result without a plan", worker=replica.replica_id, step=message.step)
            return
        lane = self.desk.lanes[replica.worker.model_version]
        lane.commit(replica.replica_id, protos.step_result(message), received)
        committed = self.clock()
        # The next plan leaves first: the worker waits for it, and gateways are served while it computes.
        self._plan(replica)
        self._observe(replica, message, sent, received, committed)
        self.wake()

    def refused(self, model_version: str, reason: str) -> None:
        """Count a refusal; a version that no lane has is not named."""
        known = model_version if model_version in self.desk.lanes else "unknown"
        self._metrics.refusals.labels(known, reason).inc()

    def cancelled(self, request_id: int) -> None:
        """Measure from now until the request holds nothing."""
        record = self.desk.records.get(request_id)
        if record is not None and record.end is None:
            self._cancels[request_id] = (record.order.model_version, self.clock())

    def detach_stream(self, session: Session, request_id: int) -> None:
        """Let a gateway stop following, or hand over what it owns."""
        self._close(self.desk.detach_stream(session.owner, request_id, self.clock()))
        self.wake()

    def close_orphans(self) -> None:
        """Close what nobody owns, and tell the gateways at once all that there is to tell."""
        now = self.clock()
        self._close(*self.desk.close_orphans(now))
        self._deliver(now)

    def wake(self) -> None:
        """Plan and deliver once what has arrived by now is taken in."""
        self._wake.set()

    async def settled(self) -> None:
        """Return once every request is closed by its owner, or in its place."""
        while self.desk.records.unsettled():  # noqa: ASYNC110 - a drain may take a tick longer
            await asyncio.sleep(TICK_S)

    async def turn(self) -> None:
        """Plan and deliver whenever woken, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for replica in list(self._replicas.values()):
                self._plan(replica)
            self._deliver(self.clock())

    async def keep_time(self) -> None:
        """Mind deadlines, leases, overdue steps, probes and samples, for ever."""
        gc.disable()  # collections come with the samples, away from the steps
        sampled = checked = 0.0
        try:
            while True:
                await asyncio.sleep(TICK_S)
                now = self.clock()
                self._tick(now)
                if now - sampled >= SAMPLE_S:
                    sampled = now
                    self._sample(now)
                if now - checked >= INTEGRITY_S:
                    checked = now
                    self._check()
        finally:
            gc.enable()

    def _plan(self, replica: Replica) -> None:
        lane = self.desk.lanes[replica.worker.model_version]
        while replica.in_flight < self._depth:
            started = self.clock()
            plan = lane.plan(replica.replica_id, started)
            if plan is None:
                break
            message = protos.plan_message(plan)
            now = self.clock()
            replica.send(message, Sent(now, now - started, len(plan.slot)))
        if replica.draining and not replica.in_flight and not lane.running(replica.replica_id):
            replica.finish()

    def _deliver(self, now: float) -> None:
        for stream, notices in self.desk.effects(now).items():
            session = self._sessions.get(stream)
            if session is not None:
                for message in lane_protos.responses(notices):
                    session.send(message)
        for request_id, (model_version, cancelled) in list(self._cancels.items()):
            record = self.desk.records.get(request_id)
            if record is None or record.end is not None:
                del self._cancels[request_id]
                self._metrics.cancel_to_free.labels(model_version).observe(now - cancelled)

    def _close(self, *closings: Closing | None) -> None:
        for closing in closings:
            if closing is not None:
                self._closer.close(closing)

    def _observe(
        self,
        replica: Replica,
        message: worker_pb2.StepResult,
        sent: Sent,
        received: float,
        committed: float,
    ) -> None:
        worker_us = message.queue_us + message.forward_us + message.sample_us
        parts = {
            "plan": sent.plan_s,
            "wire": received - sent.at - worker_us / 1e6,
            "queue": message.queue_us / 1e6,
            "forward": message.forward_us / 1e6,
            "sample": message.sample_us / 1e6,
            "commit": committed - received,
        }
        self._metrics.observe(replica.worker.model_version, parts, sent.rows)

    def _tick(self, now: float) -> None:
        for replica in self._replicas.values():
            if replica.overdue(now) and not replica.lost.is_set():
                _log.error("step timed out", worker=replica.replica_id)
                replica.lost.set()
        gone, closings = self.desk.expire(now)
        for owner in gone:
            session = self._sessions.pop(owner, None)
            if session is not None:
                _log.warning("lease ran out", owner=owner)
                session.end()
        self._close(*closings)
        self._probe(now)
        self.wake()

    def _probe(self, now: float) -> None:
        """Let every idle worker prove that it works: one token that nobody sees."""
        for replica in self._replicas.values():
            lane = self.desk.lanes[replica.worker.model_version]
            idle_since = lane.idle_since(replica.replica_id)
            if idle_since is None or now - idle_since < self._probe_s:
                continue
            probe = Request(next(self._probe_ids), PROBE, (0,), 1, probes=replica.replica_id)
            try:
                lane.submit(probe, now)
            except AdmissionError as error:
                _log.error("probe refused", worker=replica.replica_id, reason=error.reason)

    def _sample(self, now: float) -> None:
        for model_version, lane in self.desk.lanes.items():
            self._metrics.sample(model_version, lane.status(), lane.counters, now)
        self._metrics.sample_ownership(self.desk)
        busy = any(replica.in_flight for replica in self._replicas.values())
        gc.collect(0 if busy else 2)

    def _check(self) -> None:
        for model_version, lane in self.desk.lanes.items():
            violations = lane.check_integrity()
            if violations:
                self._metrics.violations.labels(model_version).inc(len(violations))
                _log.error("page accounting is wrong", model_version=model_version, violations=violations)
