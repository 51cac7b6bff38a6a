"""The state of one request at one gateway, and its ways from one state to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.gateway.core import outcome
from services.gateway.core.account import Account
from services.gateway.core.effects import (
    AppendClosed,
    AppendOpened,
    Ended,
    NoMeter,
    Opened,
    Refuse,
    Timer,
    TurnAway,
)
from services.gateway.core.lane_messages import Cancel, Detach, Open, Submit
from services.gateway.core.outcome import FinishReason
from services.gateway.core.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit.errors import ServiceError
    from services.gateway.core.choice import ChoiceAssembler
    from services.gateway.core.effects import Effect, Meter
    from services.gateway.core.lane_messages import Attached, Word
    from services.gateway.core.lease import Lease
    from services.gateway.core.order import Order
    from services.gateway.core.outcome import Closed, Verdict
    from services.gateway.core.reader import Reader
    from services.gateway.core.vocabulary import Vocabulary

    Emit = Callable[["Life", Effect | Word | Timer], None]

# The scheduler answers a cancel with its terminal message; after this long the owner closes without it.
TERMINAL_WAIT_S = 5.0
# The scheduler ends what passed its deadline; the owner steps in when it did not.
DEADLINE_GRACE_S = 0.25
# A reader that leaves this short before its deadline left because of it: clocks and timers differ, and gRPC
# tells a server of a deadline rounded up, by less than this share of the time it gives.
_DEADLINE_SLACK_S, _DEADLINE_SLACK_SHARE = 0.025, 0.01


class Life:
    """What `Owner` makes of its inputs: submitted or attached to, accepted, opened, over, closing, ended."""

    def __init__(
        self,
        request_id: int,
        tenant_id: str,
        vocabulary: Vocabulary,
        emit: Emit,
        *,
        order: Order | None = None,
        meter: Meter | None = None,
    ) -> None:
        """With an `order` it is to be submitted, without one to be attached to."""
        self.request_id, self.tenant_id, self.vocabulary = request_id, tenant_id, vocabulary
        self.owning = order is not None
        self.informed = order is not None  # what happens to it can be understood
        self.opened = False  # callers may see `accepted`
        self.over = False  # nothing more is expected of the scheduler
        self.ended = False
        self.error: ServiceError | None = None
        self.owner_epoch = 0
        self.runtime_revision = ""
        self.output = Output(meter or NoMeter())
        self._order = order
        self._emit_to, self._meter = emit, meter or NoMeter()
        self._account = Account()
        self._lease: Lease | None = None
        self._accepted = False
        self._durable = False  # `opened` is written
        self._announced = False  # the scheduler may know that callers are told of it
        self._known = order is None  # it does
        self._given_up: ServiceError | None = None  # before callers were told: nobody pays
        self._certain = False  # the verdict stands, and is told
        self._adrift = False  # between a lost stream and what comes of it
        self._anew = False  # asked of a scheduler that knows nothing of us yet
        self._stopping: FinishReason | None = None
        self._stopped_at = 0.0
        self._timers: dict[str, float] = {}
        if order is not None:
            self.output.open(vocabulary, order.stop, order.n)

    @property
    def order(self) -> Order:
        """What was asked for; known of an attached request once it is `opened`."""
        assert self._order is not None
        return self._order

    @property
    def choices(self) -> list[ChoiceAssembler]:
        """The output so far."""
        return self.output.choices

    @property
    def closed(self) -> Closed:
        """The terminal record: to be told once `ended` without an `error`."""
        return self._account.judge(self.order, self.output, self.order.received).closed

    @property
    def certain_verdict(self) -> Verdict | None:
        """How it is closed for good; None before, and where that is not ours to tell."""
        return self._account.verdict if self._certain else None

    @property
    def closing_unheard(self) -> bool:
        """Whether it is being closed without the scheduler's last word."""
        return self.owning and self.over and self._account.terminal is None

    def held(self, now: float) -> bool:
        """Whether the request is ours and nobody else can have closed it by now."""
        return self.owning and self._lease is not None and self._lease.held(now)

    def leave(self, reader: Reader, now: float) -> None:
        """A reader has all it will take; the last one ends the request, or starts its resume lease."""
        reader.left = True
        if self.output.leave(reader):
            self._left_alone(now)

    def _submission(self, now: float) -> Submit | None:
        order, started = self.order, self.output.started
        if self._stopping is not None or not self.output.running or (started and not order.resume):
            self._conclude(FinishReason.INCOMPLETE, now)
            self._give_up(outcome.no_scheduler(), now)
            return None
        left = None if order.deadline is None else max(0.0, order.deadline - now)
        output = self.output.records() if started else ()
        return Submit(order, left, self._known_epoch(now), output, self.opened)

    def _known_epoch(self, now: float) -> int:
        # Without the lease somebody may have been granted the next one.
        return self.owner_epoch + (self.owning and self.owner_epoch > 0 and not self.held(now))

    def _own(self, owner_epoch: int, lease: Lease) -> None:
        self.owning, self._adrift, self._anew = True, False, False
        self.owner_epoch, self._lease = owner_epoch, lease
        self._announce()

    def _announce(self) -> None:
        """Have the scheduler know that callers are to be told."""
        heard = self.owner_epoch > 0 and not self._adrift and not self._anew
        if heard and self._durable and not self._known and self._given_up is None:
            self._announced = True
            self._emit(Open(self.request_id, self.owner_epoch))

    def _give_up(self, error: ServiceError, now: float) -> None:
        """End an accepted request of which nobody was told: if it has a row, that bills nothing."""
        if self._known or self.ended or not self._accepted or self._given_up is not None:
            return
        # What was announced may go on there, and be followed: then it is not over for everybody.
        self._given_up, self.over = outcome.ownership_lost() if self._announced else error, True
        self._timers.clear()
        self._advance(now)

    def _take_over(self, message: Attached, now: float) -> None:
        submit, received = message.submit, now - message.age_s
        deadline = None if submit.deadline_s is None else now + submit.deadline_s
        self._order = replace(submit.order, received=received, deadline=deadline)
        self.informed = True
        self._account.opened_at = message.opened_at
        self.output.open(self.vocabulary, self.order.stop, self.order.n)
        if message.first_token_s is not None:
            self.output.first_token = received + message.first_token_s

    def _keep(self, message: Attached) -> None:
        for choice, record in zip(self.choices, message.choices, strict=True):
            if record.reason is not None:
                choice.keep(record.tokens, record.reason)

    def _append_opened(self, owner_epoch: int) -> None:
        self._emit(AppendOpened(self._account.usage(self.order, owner_epoch, self.runtime_revision)))

    def _open(self, now: float) -> None:
        self.opened = True
        self._emit(Opened())
        if self.owning:
            self._watch_deadline()

    def _stop(self, reason: FinishReason, now: float, failure: ServiceError | None = None) -> None:
        if not self.owning or self.over or self._stopping is not None or not self.output.running:
            return
        self._stopping, self._account.failure = reason, failure
        self._stopped_at = now
        self._emit(Cancel(self.request_id, reason))
        if self._adrift and not self.output.started:
            self._conclude(reason, now)
        else:
            self._set("terminal", now + TERMINAL_WAIT_S)

    def _await_terminal(self, now: float) -> None:
        if self.owning and not self.over and not self.output.running and "terminal" not in self._timers:
            self._set("terminal", now + TERMINAL_WAIT_S)

    def _conclude(self, reason: FinishReason, now: float, failure: ServiceError | None = None) -> None:
        if self.over or self.ended:
            return
        self.over = True
        if self._adrift and self.output.started:
            self._lease = None  # a scheduler that lives on may close it otherwise
        if failure is not None and self.output.running:
            self._account.failure, self._stopping = failure, reason
        self.output.end_in_silence(self._stopping or reason)
        self._timers.clear()
        if self.owning and not self._accepted:
            self._end(self._account.failure or outcome.cancelled(), now)
        self._advance(now)

    def _advance(self, now: float) -> None:
        account = self._account
        tellable = self.opened or (self._durable and self._given_up is not None)
        if self.owning and self.over and tellable and not self.ended and not account.closing_epoch:
            if self._given_up is None:
                account.verdict = account.judge(self.order, self.output, now)
            else:
                account.verdict = outcome.void(len(self.choices))
            account.closing_epoch = self.owner_epoch
            usage = account.usage(self.order, self.owner_epoch, self.runtime_revision)
            self._emit(AppendClosed(usage, account.verdict.closed))

    def _end(self, error: ServiceError | None, now: float, *, certain: bool = False) -> None:
        if self.ended:
            return
        self._certain = certain
        if certain:
            self.output.speak()
        self.ended, self.error = True, error
        self._timers.clear()
        self.output.close(now)
        self._emit(Refuse(error) if error is not None and not self.opened else Ended())

    def _left_alone(self, now: float) -> None:
        if self.ended:
            return
        if not self.owning:
            self._emit(Detach(self.request_id))
            self._end(outcome.cancelled(), now)
        elif self.order.resume_lease_s > 0:
            self._set("alone", now + self.order.resume_lease_s)
        else:
            self._stop(FinishReason.DEADLINE if self._late(now) else FinishReason.CANCELLED, now)

    def _late(self, now: float) -> bool:
        received, deadline = self.order.received, self.order.deadline
        if deadline is None:
            return False
        return now >= deadline - _DEADLINE_SLACK_S - _DEADLINE_SLACK_SHARE * (deadline - received)

    def _turn_away(self, reader: Reader, now: float) -> None:
        self._emit(TurnAway(reader))
        self.leave(reader, now)

    def _cut_short(self, choice: ChoiceAssembler) -> None:
        if self.owning:
            kept = choice.output_tokens
            self._emit(Cancel(self.request_id, FinishReason.STOP, choice=choice.choice, kept_tokens=kept))

    def _watch_deadline(self) -> None:
        if self.order.deadline is not None:
            self._set("deadline", self.order.deadline + DEADLINE_GRACE_S)

    def _set(self, name: str, when: float) -> None:
        self._timers[name] = when
        self._emit(Timer(when))

    def _emit(self, effect: Effect | Word | Timer) -> None:
        self._emit_to(self, effect)
