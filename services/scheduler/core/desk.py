"""The desk between gateways and lanes: who may ask what, and who is told what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError, invalid
from services.scheduler.core.messages import Capacity, Effect, FinishReason, Request, State
from services.scheduler.core.ownership import Ownership, same_gateway
from services.scheduler.core.records import Order, Record, Records, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.scheduler.core.lane import Lane

INTERNAL = ""  # owner of probes: no gateway, no record, no bill
RETRY_AFTER_MS = 2_000


@dataclass(frozen=True, slots=True)
class Worker:
    """An attached worker: a replica of its model version's lane."""

    replica_id: str
    model_version: str
    runtime_revision: str
    capacity: Capacity
    epoch: int


@dataclass(frozen=True, slots=True)
class Closing:
    """A request that the scheduler closes in its vanished owner's place."""

    record: Record
    verdict: Verdict
    closed_at: float  # monotonic seconds


class Desk:
    """All lanes, their workers, ownership and records, moved together.

    One thread; every `now` is monotonic seconds. `vacant_s` is how long a lane that lost its last worker
    keeps what waits in it.
    """

    def __init__(
        self, ownership: Ownership, records: Records, make_lane: Callable[[str], Lane], *, vacant_s: float
    ) -> None:
        self.ownership = ownership
        self.records = records
        self.lanes: dict[str, Lane] = {}
        self.workers: dict[str, Worker] = {}
        self.draining: ServiceError | None = None
        self.backpressure: ServiceError | None = None
        self._make_lane = make_lane
        self._vacant_s = vacant_s
        self._vacant_since: dict[str, float] = {}
        self._out: dict[str, list[Effect]] = {}

    def attach(self, worker: Worker, now: float) -> None:
        """Let a worker serve its model version's lane."""
        if worker.model_version not in self.lanes:
            self.lanes[worker.model_version] = self._make_lane(worker.model_version)
        self.workers[worker.replica_id] = worker
        self._vacant_since.pop(worker.model_version, None)
        self.lanes[worker.model_version].add_replica(worker.replica_id, worker.capacity, worker.epoch, now)

    def detach(self, replica_id: str, now: float) -> None:
        """Count a worker as lost: what it ran is queued again or ends."""
        worker = self.workers.pop(replica_id)
        self.lanes[worker.model_version].remove_replica(replica_id, now)
        if not self.workers_of(worker.model_version):
            self._vacant_since[worker.model_version] = now

    def workers_of(self, model_version: str) -> list[Worker]:
        """Return the workers attached to a lane."""
        return [worker for worker in self.workers.values() if worker.model_version == model_version]

    def submit(self, request: Request, order: Order, now: float) -> int:
        """Queue a request and return its owner epoch, or raise the refusal.

        A gateway whose stream broke may submit a request again that had no token yet: the earlier try ends.
        """
        if refusal := self.draining or self.backpressure:
            raise refusal
        if order.model_version not in self._serving():
            raise unavailable("NO_CAPACITY", f"no worker serves {order.model_version}")
        self._check_id(order.request_id, request.owner)
        self.cancel(order.request_id, now)
        self._collect(now)
        self.lanes[order.model_version].submit(request, now)
        self.records.open(order)
        return self.ownership.grant(order.request_id, request.owner)

    def cancel(
        self,
        request_id: int,
        now: float,
        *,
        choice: int | None = None,
        kept_tokens: int | None = None,
        reason: FinishReason = FinishReason.CANCELLED,
        error_reason: str = "",
    ) -> None:
        """End a request or one of its choices; an unknown or ended one stays as it is."""
        record = self.records.get(request_id)
        if record is None or record.end is not None:
            return
        lane = self.lanes[record.order.model_version]
        lane.cancel(
            request_id,
            now,
            choice=choice,
            kept_tokens=kept_tokens,
            reason=reason,
            error_reason=error_reason,
        )

    def owns(self, owner: str, request_id: int) -> bool:
        """Whether a stream speaks for a request: its own, or one of its gateway's broken streams."""
        holder = self.ownership.owner_of(request_id)
        return holder is not None and same_gateway(holder, owner)

    def state(self, record: Record) -> State:
        """Tell how far a request is: queued until its first prefill step, finished once ended or closed."""
        if record.end is not None or record.verdict is not None:
            return State.FINISHED
        order = record.order
        return State.RUNNING if self.lanes[order.model_version].started(order.request_id) else State.QUEUED

    def settle(self, request_id: int, verdict: Verdict, now: float) -> None:
        """Take the owner's verdict; one from a stale ownership changes nothing."""
        if not self.ownership.settle(request_id, verdict.owner_epoch):
            return
        self.cancel(request_id, now)
        self._collect(now)
        self.records.settle(request_id, verdict, now)

    def expire(self, now: float) -> tuple[list[str], list[Closing]]:
        """End what is out of time; return the owners whose lease ran out and what to close for them."""
        for lane in self.lanes.values():
            lane.expire(now)
        for model_version, since in list(self._vacant_since.items()):
            if now - since >= self._vacant_s:
                del self._vacant_since[model_version]
                waiting = [
                    one for one in self.records.unsettled() if one.order.model_version == model_version
                ]
                self._end(waiting, now, FinishReason.ERROR, "WORKER_LOST")
        gone, takeovers = self.ownership.expire(now)
        for takeover in takeovers:
            self.cancel(takeover.request_id, now)
        self._collect(now)
        closings = [self._close(takeover.request_id, takeover.owner_epoch, now) for takeover in takeovers]
        self.records.expire(now)
        return gone, closings

    def end_all(self, now: float) -> None:
        """End every live request: INCOMPLETE where tokens were committed, else CANCELLED."""
        self._end(self.records.unsettled(), now, FinishReason.CANCELLED)

    def effects(self, now: float) -> dict[str, list[Effect]]:
        """Return all that happened since the last call, by gateway stream, in order."""
        self._collect(now)
        out, self._out = self._out, {}
        return out

    def _end(
        self, records: list[Record], now: float, without_tokens: FinishReason, error_reason: str = ""
    ) -> None:
        for record in records:
            if record.first_token_at is not None:
                self.cancel(record.order.request_id, now, reason=FinishReason.INCOMPLETE)
            else:
                self.cancel(record.order.request_id, now, reason=without_tokens, error_reason=error_reason)

    def _collect(self, now: float) -> None:
        for lane in self.lanes.values():
            for effect in lane.effects():
                if effect.owner != INTERNAL:
                    self.records.apply(effect, now)
                    self._out.setdefault(effect.owner, []).append(effect)

    def _serving(self) -> set[str]:
        return {worker.model_version for worker in self.workers.values()}

    def _check_id(self, request_id: int, owner: str) -> None:
        holder = self.ownership.owner_of(request_id)
        orphaned = holder is not None and holder != owner and same_gateway(holder, owner)
        if request_id <= 0 or (request_id in self.records and not orphaned):
            raise invalid("request_id", "must be a fresh positive number")

    def _close(self, request_id: int, owner_epoch: int, now: float) -> Closing:
        record = self.records.get(request_id)
        assert record is not None
        reason = max(choice.finish_reason or FinishReason.CANCELLED for choice in record.choices)
        verdict = Verdict(owner_epoch, reason, tuple(len(choice.token_ids) for choice in record.choices))
        self.records.settle(request_id, verdict, now)
        return Closing(record, verdict, now)


def unavailable(reason: str, message: str) -> ServiceError:
    """Refuse for now: capacity may come back."""
    return ServiceError(Code.UNAVAILABLE, reason, message, retry_after_ms=RETRY_AFTER_MS)
