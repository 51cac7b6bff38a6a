"""One request at one gateway: from submission or attachment to the terminal record, whatever is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.gateway.core import outcome
from services.gateway.core.lane_messages import Attach, Cancel, ChoiceEnd, Detach, Settle
from services.gateway.core.life import Life
from services.gateway.core.outcome import FinishReason

if TYPE_CHECKING:
    from services.gateway.core.choice import NewToken
    from services.gateway.core.lane_messages import Accepted, Attached, Up
    from services.gateway.core.lease import Lease
    from services.gateway.core.outcome import Verdict
    from services.gateway.core.reader import Reader

_NATURAL = frozenset({FinishReason.STOP, FinishReason.LENGTH})
_UNKNOWN = frozenset({"NOT_FOUND", "RESULT_EXPIRED"})


class Owner(Life):
    """A request that this gateway owns, or follows and may come to own.

    Every input takes `now`, monotonic seconds; what is to be done goes to `emit`. The lane book says what the
    scheduler says and what becomes of the stream; the gateway around says the rest.
    """

    # Readers, operators and clocks

    def join(self, reader: Reader, now: float) -> None:
        """Let one more read."""
        self._timers.pop("alone", None)
        self.output.join(reader)
        if self.ended:
            reader.close(now)

    def cancel(self, now: float) -> None:
        """The caller cancelled: in no plan built after this arrives."""
        self._stop(FinishReason.CANCELLED, now)

    def check_readers(self, now: float) -> None:
        """Turn those away who have read nothing for too long."""
        for reader in [one for one in self.output.readers if one.stalled(now)]:
            self._turn_away(reader, now)

    def shut_down(self, now: float) -> None:
        """This gateway leaves: hand over what another may go on with, end the rest."""
        resumable = self.opened and not self.over and self.order.resume_lease_s > 0
        if not self.owning or (resumable and self._stopping is None):
            self._emit(Detach(self.request_id))
            self._end(outcome.handed_over(), now)
        elif self.output.started:
            self._stop(FinishReason.INCOMPLETE, now)
        else:
            message = "the gateway shut down"
            failure = ServiceError(Code.UNAVAILABLE, "DRAINING", message, retry_after_ms=1000)
            self._stop(FinishReason.ERROR, now, failure)

    def tick(self, now: float) -> None:
        """Do what is due."""
        for name in [name for name, when in self._timers.items() if when <= now]:
            self._timers.pop(name, None)
            if name == "terminal" and self._adrift and self.held(now):
                self._await_terminal(now)  # meanwhile others may see what we do not
            elif name == "terminal":
                self._conclude(FinishReason.INCOMPLETE, now)
            else:
                self._stop(FinishReason.DEADLINE if name == "deadline" else FinishReason.CANCELLED, now)

    # The journal

    def opened_done(self, now: float) -> None:
        """`opened` is durable."""
        self._durable = True
        if self.ended:
            return
        if self._known:
            self._open(now)
        else:
            self._announce()
        self._advance(now)

    def open_heard(self, owner_epoch: int, now: float) -> None:
        """The scheduler knows that callers are told: now they may be."""
        if not (self.ended or self._known or self._given_up) and owner_epoch == self.owner_epoch:
            self._known = True
            self._open(now)
            self._advance(now)

    def opened_failed(self, error: ServiceError, now: float) -> None:
        """`opened` cannot be written, or the request is not ours to open: nobody pays unless others know."""
        if self.ended:
            return
        if self._known or not self.owning:
            self._emit(Detach(self.request_id))
        else:
            self._emit(Cancel(self.request_id, FinishReason.CANCELLED))
            self._emit(Settle(self.request_id, self.owner_epoch, outcome.void(len(self.choices))))
        self._end(error, now)

    def closed_done(self, now: float) -> None:
        """`closed` is durable; it is ours to tell if nobody else can have closed meanwhile."""
        account = self._account
        epoch, account.closing_epoch = account.closing_epoch, 0
        if self.ended or not self.owning:
            return
        if epoch != self.owner_epoch:
            self._advance(now)
            return
        verdict = account.judge(self.order, self.output, now)
        self._meter.ended(verdict.closed)
        if self.held(now):
            self._emit(Settle(self.request_id, epoch, verdict))
            self._end(self._given_up or account.error(verdict), now, certain=self.opened)
        else:
            # Who followed it may have seen more than we did: whoever owns it next closes it for good.
            self._emit(Detach(self.request_id))
            self._end(self._given_up or outcome.ownership_lost(), now)

    # The lane: what the scheduler says

    def accepted(self, message: Accepted, lease: Lease, now: float) -> None:
        """The scheduler queued the request, perhaps for the second time."""
        self._own(message.owner_epoch, lease)
        self.runtime_revision = message.runtime_revision
        for choice in self.choices:  # what was found before was submitted with it
            choice.knows(FinishReason.STOP, choice.output_tokens)
        self.output.wake()
        if not self._accepted:
            self._accepted, self._account.opened_at = True, message.opened_at
            self._append_opened(self.owner_epoch)
        self._advance(now)

    def refused(self, error: ServiceError, now: float) -> None:
        """Not taken: a refusal before acceptance, an end after."""
        if not self._accepted:
            # Our first try was accepted after all, and given up: nobody was told of it.
            self._end(outcome.no_scheduler() if error.field == "request_id" else error, now)
        elif not self.owning:
            self._end(outcome.ownership_lost(), now)
        elif not self._known:
            self._give_up(error, now)
        elif error.reason in _UNKNOWN:
            self._lease = None  # whoever closed it says how it ended
            self._conclude(FinishReason.INCOMPLETE, now)
        elif error.field == "request_id":
            self.owning = False  # another gateway was granted it and was faster
            self._emit(Attach(self.request_id, self.tenant_id, self._known_epoch(now)))
        elif error.code is Code.DEADLINE_EXCEEDED:
            self._conclude(FinishReason.DEADLINE, now)
        elif self.output.started:
            self._conclude(FinishReason.INCOMPLETE, now)
        else:
            self._conclude(FinishReason.ERROR, now, error)

    def fail(self, error: ServiceError, now: float) -> None:
        """This gateway failed on the request: nothing is billed."""
        self._emit(Cancel(self.request_id, FinishReason.ERROR) if self.owning else Detach(self.request_id))
        if self.owning and self._accepted:
            self._conclude(FinishReason.ERROR, now, error)
        else:
            self._end(error, now)

    def attached(self, message: Attached, lease: Lease, now: float) -> None:
        """All there is of the request: what is had already is passed over."""
        fresh = self._order is None
        if fresh:
            self._take_over(message, now)
        self._adrift, self._anew = False, False
        self.owning = self.owning and message.owner_epoch > 0
        self.runtime_revision = message.runtime_revision
        for number, record in enumerate(message.choices):
            count = len(record.tokens)
            for index in range(self.choices[number].output_tokens, count):
                self.token(number, index, record.tokens[index], now)
            if record.reason is not None:
                self.choice_ended(ChoiceEnd(self.request_id, number, record.reason, count), now)
        if fresh and message.verdict is None:
            # Its first owner may be gone with its own: of what callers hear there is a row.
            self._append_opened(message.owner_epoch)
        self._accepted = True
        if message.verdict is not None:
            if fresh:
                self._keep(message)
            self.settled(message.verdict, now)
        elif message.owner_epoch:
            self.granted(message.owner_epoch, lease, now)
        if message.end is not None:
            self.request_ended(*message.end[1:], now)

    def granted(self, owner_epoch: int, lease: Lease, now: float) -> None:
        """The request is ours from now on, as far as it has come."""
        self._own(owner_epoch, lease)
        self._watch_deadline()
        for choice in self.choices:
            if choice.unheard_of:
                self._cut_short(choice)
        if self._stopping is not None and not self.over:
            self._emit(Cancel(self.request_id, self._stopping))
        self._await_terminal(now)
        if not self.output.readers:
            self._left_alone(now)
        self._advance(now)

    def settled(self, verdict: Verdict, now: float) -> None:
        """The request is closed, by its owner or in its place."""
        if self.ended:
            return
        if not self._known:
            void = verdict.error_reason == outcome.NEVER_OPENED
            self._end(outcome.no_scheduler() if void else outcome.ownership_lost(), now)
            return
        if not self.opened:
            self._open(now)
        self._account.verdict = verdict
        self.output.adopt(verdict)
        if self.output.agrees(verdict):
            self._end(self._account.error(verdict), now, certain=True)
        else:  # a stop string found here was never heard there: what readers had is not what is billed
            self._end(outcome.ownership_lost(), now)

    def token(self, choice: int, index: int, token: NewToken, now: float) -> None:
        """Take one token; a completed stop string ends its choice, at the scheduler first."""
        record = self.output.feed(choice, index, token)
        if record is None:
            return
        self.output.measure(choice, now, self.order.received, ours=self.owning)
        if self.choices[choice].finish_reason is not None:
            self._cut_short(self.choices[choice])
            self._await_terminal(now)
        for reader in self.output.offer(record, now):
            self._turn_away(reader, now)

    def choice_ended(self, end: ChoiceEnd, now: float) -> None:
        """The scheduler's end of a choice; a stop string found before it stands, and is told if it agrees."""
        reason = end.reason
        if self._stopping is not None and reason not in _NATURAL:
            reason = self._stopping
        self.choices[end.choice].knows(reason, end.output_tokens)
        self.output.end(reason, end.error_reason, choice=end.choice)
        self._await_terminal(now)

    def request_ended(self, input_tokens: int, cached_tokens: int, queue_s: float, now: float) -> None:
        """The terminal message, with what only the scheduler knows."""
        if not self.over:
            if self._stopping is FinishReason.CANCELLED:
                self._meter.freed(now - self._stopped_at)
            self._account.terminal = (input_tokens, cached_tokens, queue_s)
            self._conclude(FinishReason.INCOMPLETE, now)

    # The lane: what becomes of the stream

    def cut_off(self, now: float) -> None:
        """The stream is lost; what it would have said may still be learned on the next one."""
        self._adrift = True
        if self._stopping is not None and not self.output.started:
            self._conclude(self._stopping, now)

    def call(self, now: float, *, same_scheduler: bool) -> Up | None:
        """What to ask on a new stream, or again on this one; None when there is nothing to ask."""
        if self.ended:
            return None
        if not same_scheduler:
            self._anew, self._adrift = True, False
        attach = Attach(self.request_id, self.tenant_id, self._known_epoch(now))
        if self.owning:
            return self._submission(now) if self._anew or not self._accepted else attach
        if not same_scheduler and self.output.started and not self.order.resume:
            self._end(outcome.ownership_lost(), now)
            return None
        return attach
