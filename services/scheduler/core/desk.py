"""The desk between gateways and lanes: who may ask what, and who is told what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError, invalid
from services.scheduler.core.closing import Closing, verdict_on, void
from services.scheduler.core.messages import Capacity, FinishReason, Output, Request, State
from services.scheduler.core.notices import Attached, Granted, Notice, Settled
from services.scheduler.core.ownership import Ownership, Promotion, Takeover, same_gateway
from services.scheduler.core.records import not_found

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.scheduler.core.lane import Lane
    from services.scheduler.core.records import Order, Record, Records, Verdict

RETRY_AFTER_MS = 2_000
MOST_ATTACHED_BYTES = 15 << 20  # a larger message would end the gateway's stream, and all that is on it


@dataclass(frozen=True, slots=True)
class Worker:
    """An attached worker: a replica of its model version's lane."""

    replica_id: str
    model_version: str
    runtime_revision: str
    capacity: Capacity
    epoch: int


@dataclass(slots=True)
class Tally:
    """What became of requests whose owner was lost, by model version."""

    handovers: dict[str, int] = field(default_factory=dict)  # to a stream that attached or followed
    takeovers: dict[str, int] = field(default_factory=dict)  # by the scheduler, which closed them


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
        self.tally = Tally()
        self._out: dict[str, list[Notice]] = {}

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

    def submit(self, stream: str, request: Request, order: Order, now: float) -> int:
        """Queue a request and return its owner epoch, or raise the refusal.

        A gateway whose stream broke may submit a request again that had no token yet: the earlier try ends.
        """
        if refusal := self.draining or self.backpressure:
            raise refusal
        if order.model_version not in self._serving():
            raise unavailable("NO_CAPACITY", f"no worker serves {order.model_version}")
        self._check_id(order.request_id, stream)
        self._collect(now)
        self.cancel(order.request_id, now)
        self._collect(now, told=False)
        self.lanes[order.model_version].submit(request, now)
        self.records.open(order, request.output or (Output(),) * request.n)
        # Nobody comes back to a request that nobody was told of.
        resume_lease_s = order.resume_lease_s if order.opened else 0.0
        return self.ownership.grant(
            order.request_id, stream, above=order.owner_epoch, resume_lease_s=resume_lease_s
        )

    def open(self, stream: str, request_id: int, owner_epoch: int) -> None:
        """Note that callers are told of a request from now on; a stale ownership's word changes nothing."""
        record = self.records.get(request_id)
        if record is None or not self._speaks(stream, request_id, owner_epoch):
            return
        record.opened = True
        self.ownership.keep(request_id, record.order.resume_lease_s)

    def attach_stream(
        self, stream: str, request_id: int, tenant_id: str, now: float, *, above: int = 0
    ) -> None:
        """Tell a stream all there is of a request and let it follow, or own what nobody owns; or refuse."""
        record = self.records.find(request_id, tenant_id)
        owned = above > 0 and self.owns(stream, request_id)
        if not (record.opened or record.verdict is not None or owned):
            raise not_found()  # nobody was told of it but its owner
        if record.wire_bytes() > MOST_ATTACHED_BYTES:
            message = "the output is too large to be sent again"
            raise ServiceError(Code.FAILED_PRECONDITION, "RESULT_EXPIRED", message)
        self._collect(now)  # what is told already is in the record, what comes later is not
        epoch = 0
        if request_id in self.ownership:
            before = self.ownership.epoch_of(request_id)
            epoch = self.ownership.attach(request_id, stream, above)
            if epoch > before:
                _count(self.tally.handovers, record)
        self._tell(stream, Attached(record.copy(), self.state(record), epoch, now))

    def detach_stream(self, stream: str, request_id: int, now: float) -> Closing | None:
        """Stop following, or hand over what the stream owns; return what nobody is left to close."""
        self._collect(now)
        outcome = self.ownership.detach(request_id, stream, now)
        if isinstance(outcome, Promotion):
            self._promote(outcome)
        return self._close(outcome, now) if isinstance(outcome, Takeover) else None

    def disconnect(self, stream: str, now: float) -> None:
        """Note that a stream broke: its lease runs out unless its gateway attaches on another one."""
        self.ownership.disconnect(stream, now)

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

    def owns(self, stream: str, request_id: int) -> bool:
        """Whether a stream speaks for a request: its own, or one of its gateway's broken streams."""
        holder = self.ownership.owner_of(request_id)
        return holder is not None and same_gateway(holder, stream)

    def _speaks(self, stream: str, request_id: int, owner_epoch: int) -> bool:
        return self.owns(stream, request_id) and self.ownership.epoch_of(request_id) == owner_epoch

    def state(self, record: Record) -> State:
        """Tell how far a request is: queued until its first prefill step, finished once ended or closed."""
        if record.end is not None or record.verdict is not None:
            return State.FINISHED
        order = record.order
        started = self.lanes[order.model_version].started(order.request_id)
        return State.RUNNING if started or record.first_token_at is not None else State.QUEUED

    def settle(self, stream: str, request_id: int, verdict: Verdict, now: float) -> None:
        """Take the owner's verdict; one of a stale ownership, or of another gateway, changes nothing."""
        if not self._speaks(stream, request_id, verdict.owner_epoch):
            return
        self.cancel(request_id, now)
        self._collect(now)
        for follower in self.ownership.release(request_id):
            self._tell(follower, Settled(request_id, verdict))
        self.records.settle(request_id, verdict, now)

    def expire(self, now: float) -> tuple[list[str], list[Closing]]:
        """End what is out of time; return the streams whose lease ran out and what to close for them."""
        for lane in self.lanes.values():
            lane.expire(now)
        for model_version, since in list(self._vacant_since.items()):
            if now - since >= self._vacant_s:
                del self._vacant_since[model_version]
                waiting = [
                    one for one in self.records.unsettled() if one.order.model_version == model_version
                ]
                self._end(waiting, now, FinishReason.ERROR, "WORKER_LOST")
        self._collect(now)
        expired = self.ownership.expire(now)
        for promotion in expired.promotions:
            self._promote(promotion)
        closings = [self._close(takeover, now) for takeover in expired.takeovers]
        self.records.expire(now)
        return expired.gone, closings

    def close_orphans(self, now: float) -> list[Closing]:
        """Close what has no owner, INCOMPLETE where tokens were committed, else CANCELLED.

        The rest is its owners' own to end, or to submit again to another scheduler.
        """
        takeovers = self.ownership.abandon()
        orphans = [record for one in takeovers if (record := self.records.get(one.request_id))]
        self._end(orphans, now, FinishReason.CANCELLED)
        return [self._close(takeover, now) for takeover in takeovers]

    def effects(self, now: float) -> dict[str, list[Notice]]:
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

    def _collect(self, now: float, *, told: bool = True) -> None:
        """Note what the lanes did, and tell whoever hears of it; probes have neither record nor audience."""
        audience, out = self.ownership.audience, self._out
        for lane in self.lanes.values():
            for effect in lane.effects():
                self.records.apply(effect, now)
                for stream in audience(effect.request_id) if told else ():
                    out.setdefault(stream, []).append(effect)

    def _tell(self, stream: str, notice: Notice) -> None:
        self._out.setdefault(stream, []).append(notice)

    def _promote(self, promotion: Promotion) -> None:
        stream, request_id, owner_epoch = promotion
        _count(self.tally.handovers, self.records.get(request_id))
        self._tell(stream, Granted(request_id, owner_epoch))

    def _serving(self) -> set[str]:
        return {worker.model_version for worker in self.workers.values()}

    def _check_id(self, request_id: int, stream: str) -> None:
        holder = self.ownership.owner_of(request_id)
        orphaned = holder is not None and holder != stream and same_gateway(holder, stream)
        if request_id <= 0 or (request_id in self.records and not orphaned):
            raise invalid("request_id", "must be a fresh positive number")

    def _close(self, takeover: Takeover, now: float) -> Closing:
        """End a request that nobody owns and judge it in its owner's place."""
        request_id, owner_epoch = takeover
        self.cancel(request_id, now)
        self._collect(now)
        record = self.records.get(request_id)
        assert record is not None
        _count(self.tally.takeovers, record)
        verdict = (verdict_on if record.opened else void)(record, owner_epoch, now)
        self.records.settle(request_id, verdict, now)
        return Closing(record, verdict)


def _count(counts: dict[str, int], record: Record | None) -> None:
    if record is not None:
        version = record.order.model_version
        counts[version] = counts.get(version, 0) + 1


def unavailable(reason: str, message: str) -> ServiceError:
    """Refuse for now: capacity may come back."""
    return ServiceError(Code.UNAVAILABLE, reason, message, retry_after_ms=RETRY_AFTER_MS)
