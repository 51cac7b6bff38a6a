"""The desk between gateways and lanes: who may ask what, and who is told what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError, invalid
from services.scheduler.core.closing import Closing, verdict_on, void
from services.scheduler.core.errors import unavailable
from services.scheduler.core.messages import ChoiceEnded, FinishReason, Output, Request, State
from services.scheduler.core.notices import Attached, Granted, Settled
from services.scheduler.core.ownership import Ownership, Promotion, Takeover, Tally, same_gateway
from services.scheduler.core.records import not_found
from services.scheduler.core.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.scheduler.core.lane import Lane
    from services.scheduler.core.messages import Effect, Worker
    from services.scheduler.core.notices import Notice
    from services.scheduler.core.records import Order, Record, Records, Verdict

MOST_ATTACHED_BYTES = 15 << 20  # a larger message would end the gateway's stream, and all that is on it


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
        self.relay = Relay()

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
        before = self.ownership.owner_of(order.request_id)
        self._collect(now)
        self.cancel(order.request_id, now)
        self._collect(now, told=False)
        self.lanes[order.model_version].submit(request, now)
        record = self.records.open(order, request.output or (Output(),) * request.n)
        # Nobody comes back to a request that nobody was told of.
        resume_lease_s = order.resume_lease_s if order.opened else 0.0
        for follower in self.relay.withdraw(order.request_id, before):  # the new try is all it hears of
            attached = Attached(record.copy(), State.QUEUED, 0, now)
            self.relay.tell_after(stream, follower, order.request_id, attached)
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
        owner, before, epoch = self.ownership.owner_of(request_id), self.ownership.epoch_of(request_id), 0
        if request_id in self.ownership:
            epoch = self.ownership.attach(request_id, stream, above)
        attached = Attached(record.copy(), self.state(record), epoch, now)
        if owner is None or epoch:
            self.relay.tell(stream, attached)
        else:
            self.relay.tell_after(owner, stream, request_id, attached)
        if epoch > before:
            self.tally.count(self.tally.handovers, record)
            self.relay.hand_over(request_id, owner, stream)

    def detach_stream(self, stream: str, request_id: int, now: float) -> Closing | None:
        """Stop following, or hand over what the stream owns; return what nobody is left to close."""
        self._collect(now)
        outcome = self.ownership.detach(request_id, stream, now)
        if isinstance(outcome, Promotion):
            self._promote(outcome, now)
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
        """End a request or one of its choices; what is unknown, closed or ended stays as it is.

        But a stop string that its owner found stands, whatever else ended the choice beyond it.
        """
        record = self.records.get(request_id)
        if record is None or record.verdict is not None:
            return
        self.lanes[record.order.model_version].cancel(
            request_id,
            now,
            choice=choice,
            kept_tokens=kept_tokens,
            reason=reason,
            error_reason=error_reason,
        )
        if reason is FinishReason.STOP and choice is not None and kept_tokens is not None:
            self._cut(record, ChoiceEnded(request_id, choice, reason, kept_tokens, ""), now)

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
        record = self.records.get(request_id)
        assert record is not None
        late = self.relay.withdraw(request_id, self.ownership.owner_of(request_id))
        self.records.settle(request_id, verdict, now)
        for follower in self.ownership.release(request_id):
            if follower in late and record.wire_bytes() <= MOST_ATTACHED_BYTES:  # the rest, as it is billed
                self.relay.tell(follower, Attached(record.copy(), State.FINISHED, 0, now))
            else:
                self.relay.tell(follower, Settled(request_id, verdict))

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
            self._promote(promotion, now)
        closings = [self._close(takeover, now) for takeover in expired.takeovers]
        for stream in expired.gone:
            self.relay.forget(stream)
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
        return self.relay.take()

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
        for lane in self.lanes.values():
            for effect in lane.effects():
                self.records.apply(effect, now)
                if told:
                    self._spread(effect)

    def _spread(self, effect: Effect) -> None:
        audience = self.ownership.audience(effect.request_id)
        if audience:
            self.relay.tell(audience[0], effect)
            for follower in audience[1:]:
                self.relay.tell_after(audience[0], follower, effect.request_id, effect)

    def _cut(self, record: Record, ended: ChoiceEnded, now: float) -> None:
        """Let a choice that has gone on beyond its end, or ended otherwise, end here."""
        if not 0 <= ended.choice < len(record.choices):
            return
        self._collect(now)
        choice = record.choices[ended.choice]
        if choice.finish_reason is not ended.reason or len(choice.token_ids) > ended.output_tokens:
            self.records.apply(ended, now)
            self._spread(ended)

    def _promote(self, promotion: Promotion, now: float) -> None:
        stream, request_id, owner_epoch, before = promotion
        record = self.records.get(request_id)
        assert record is not None
        self.tally.count(self.tally.handovers, record)
        own = self.relay.hand_over(request_id, before, stream)
        if any(isinstance(notice, Attached) for notice in own):
            self.relay.tell(stream, Attached(record.copy(), self.state(record), owner_epoch, now))
            return
        # First the grant: what it hears beyond the last owner it can close with.
        for notice in (Granted(request_id, owner_epoch), *own):
            self.relay.tell(stream, notice)

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
        self.tally.count(self.tally.takeovers, record)
        verdict = (verdict_on if record.opened else void)(record, owner_epoch, now)
        self.records.settle(request_id, verdict, now)
        return Closing(record, verdict)
