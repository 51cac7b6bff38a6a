"""The owner of one request: from submission to the terminal record, whoever ends it and whatever is lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from kit.errors import Code, ServiceError
from services.gateway.app.ports import Submission, UsageRecord
from services.gateway.core.outcome import FinishReason, Timings, close, error_of, ownership_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.gateway.app.ports import Lane, Meter, Order, UsageJournal
    from services.gateway.app.reader import Reader
    from services.gateway.core.choice import ChoiceAssembler, NewToken
    from services.gateway.core.outcome import Closed

# The scheduler answers a cancel with its terminal message; after this long the owner closes without it.
TERMINAL_WAIT_S = 5.0
# The scheduler ends what passed its deadline; the owner steps in when it did not.
DEADLINE_GRACE_S = 0.25
# A reader that leaves this short before its deadline left because of it: clocks and timers differ.
_DEADLINE_SLACK_S = 0.025


class Generation:
    """One request. The lane calls it, one reader follows it, `run` takes it through its life."""

    def __init__(
        self,
        order: Order,
        choices: Sequence[ChoiceAssembler],
        reader: Reader,
        *,
        lane: Lane,
        journal: UsageJournal,
        meter: Meter,
    ) -> None:
        self.order = order
        self.choices = choices
        self.reader = reader
        self.closed: Closed | None = None
        self.runtime_revision = ""
        # While False, how the request ends is not ours to tell: our closing may lose against another's.
        self.owned = True
        self._lane, self._journal, self._meter = lane, journal, meter
        self._failure: ServiceError | None = None
        self._owner_epoch = 0
        self._opened_at = 0.0
        self._adrift = False  # between a lost scheduler and the next
        self._terminal: tuple[int, int, float] | None = None
        self._first_token: float | None = None
        self._last_token = [0.0] * len(choices)
        self._loop = asyncio.get_running_loop()
        self._admission: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []

    # What a face asks.

    @property
    def request_id(self) -> int:
        """The request."""
        return self.order.request_id

    @property
    def model_version(self) -> str:
        """`name@version`, fixed for the request's life."""
        return self.order.tokenizer.model_version

    async def opened(self) -> None:
        """Return once the caller may see `accepted`; raises the refusal."""
        await asyncio.shield(self._opened)

    async def ended(self) -> Closed:
        """The terminal record, once it is durable."""
        await self._ended.wait()
        assert self.closed is not None
        return self.closed

    @property
    def running(self) -> bool:
        """Whether a choice has yet to end."""
        return any(choice.finish_reason is None for choice in self.choices)

    @property
    def started(self) -> bool:
        """Whether any token has come."""
        return self._first_token is not None

    @property
    def error(self) -> ServiceError | None:
        """Why the request failed, if it did."""
        if self.closed is not None and not self.owned:
            return ownership_lost()
        if self.closed is None or self.closed.finish_reason is not FinishReason.ERROR:
            return None
        reasons = [choice.error_reason for choice in self.choices if choice.error_reason]
        return self._failure or error_of(reasons[0] if reasons else "")

    def cancel(self) -> None:
        """The client cancelled or does not read: in no plan built after this arrives."""
        self._stop(FinishReason.CANCELLED)

    def abandon(self) -> None:
        """The reader is gone; past the deadline, that is why."""
        self.reader.left = True
        deadline = self.order.deadline
        late = deadline is not None and time.monotonic() >= deadline - _DEADLINE_SLACK_S
        self._stop(FinishReason.DEADLINE if late else FinishReason.CANCELLED)

    def shut_down(self) -> None:
        """This gateway leaves: what has tokens stands as it is, what has none failed."""
        if self.started:
            self._stop(FinishReason.INCOMPLETE)
            return
        self._failure = ServiceError(
            Code.UNAVAILABLE, "DRAINING", "the gateway shut down", retry_after_ms=1000
        )
        self._stop(FinishReason.ERROR)

    def check_reader(self, now: float) -> None:
        """Cancel when the reader has read nothing for too long."""
        if self.reader.stalled(now):
            self._dismiss_reader()

    async def run(self) -> None:
        """Live: admission, `opened`, tokens, `closed`, settle. The one way to the end, for every reason."""
        try:
            await self._admission
            self._opened_at = time.time()
            await self._journal.opened(self._usage())
        except ServiceError as refusal:
            self._refuse(refusal)
            return
        self._opened.set_result(None)
        if self.order.deadline is not None:
            left = self.order.deadline - time.monotonic()
            self._after(left + DEADLINE_GRACE_S, lambda: self._stop(FinishReason.DEADLINE))
        await self._over
        for timer in self._timers:
            timer.cancel()
        closed = self._close()
        await self._journal.closed(self._usage(), closed)
        self._settle(closed.finish_reason, [choice.output_tokens for choice in self.choices])
        self._meter.ended(closed)
        self.closed = closed
        self._ended.set()
        self.reader.close()

    # What the lane says.

    def submission(self) -> Submission:
        """The request for the scheduler, with the time left now."""
        deadline = self.order.deadline
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return Submission(self.order, left)

    def accepted(self, owner_epoch: int, runtime_revision: str) -> None:
        """The scheduler queued the request, perhaps for the second time."""
        self._owner_epoch, self.runtime_revision = owner_epoch, runtime_revision
        self._adrift, self.owned = False, True
        if not self._admission.done():
            self._admission.set_result(None)

    def refused(self, error: ServiceError) -> None:
        """Not taken: a refusal before acceptance, a failure after."""
        if not self._admission.done():
            self._admission.set_exception(error)
            return
        if error.code is Code.DEADLINE_EXCEEDED:
            self._end_choices(FinishReason.DEADLINE)
        elif self.running:
            self._failure = error
            self._end_choices(FinishReason.ERROR, error.reason)
        self._finish()

    def token(self, choice: int, index: int, token: NewToken, now: float) -> None:
        """Take one token; a completed stop string ends its choice at the scheduler too."""
        assembler = self.choices[choice]
        if assembler.finish_reason is not None or index != assembler.output_tokens:
            return
        if self._first_token is None:
            self._first_token = now
            self._meter.first_token(now - self.order.received)
        elif index:
            self._meter.next_token(now - self._last_token[choice])
        self._last_token[choice] = now
        if assembler.feed((token,)):
            self._lane.cancel(
                self.request_id, FinishReason.STOP, choice=choice, kept_tokens=assembler.output_tokens
            )
            self._await_terminal()
        if not self.reader.offer(token, assembler.records[-1].text, now):
            self._dismiss_reader()

    def choice_ended(self, choice: int, reason: FinishReason, error_reason: str) -> None:
        """The scheduler's end of a choice; a stop string found before it stands."""
        self.choices[choice].end(reason, error_reason)
        self.reader.wake()

    def request_ended(self, input_tokens: int, cached_tokens: int, queue_s: float) -> None:
        """The terminal message, with what only the scheduler knows."""
        self._terminal = (input_tokens, cached_tokens, queue_s)
        self._finish()

    def disowned(self) -> None:
        """The lease ran out: whoever took over says how the request ended."""
        self.owned = False

    def lost(self) -> bool:
        """The scheduler is gone: what has no token may be asked for again, the rest ends here."""
        if self.running and not self.started:
            self._adrift = True
            return True
        self._stop(FinishReason.INCOMPLETE)
        self._finish()
        return False

    # How it ends.

    def _stop(self, reason: FinishReason) -> None:
        if not self.running:
            return
        self._end_choices(reason)
        self._lane.cancel(
            self.request_id,
            FinishReason.ERROR if reason is FinishReason.ERROR else FinishReason.CANCELLED,
        )
        self._await_terminal()

    def _end_choices(self, reason: FinishReason, error_reason: str = "") -> None:
        for choice in self.choices:
            choice.end(reason, error_reason)
        self.reader.wake()

    def _await_terminal(self) -> None:
        if not self.running:
            self._after(0.0 if self._adrift else TERMINAL_WAIT_S, self._finish)

    def _finish(self) -> None:
        self._end_choices(FinishReason.INCOMPLETE)
        self._lane.forget(self.request_id)
        if not self._admission.done():
            self._admission.set_exception(self._failure or _cancelled())
        if not self._over.done():
            self._over.set_result(None)

    def _dismiss_reader(self) -> None:
        self.cancel()
        self.reader.dismiss()

    def _refuse(self, refusal: ServiceError) -> None:
        if self._owner_epoch:
            self._lane.cancel(self.request_id, FinishReason.CANCELLED)
            self._settle(FinishReason.CANCELLED, [0] * len(self.choices))
        self._opened.set_exception(refusal)
        self._opened.exception()  # the caller may be gone

    def _settle(self, reason: FinishReason, output_tokens: Sequence[int]) -> None:
        self._lane.settle(self.request_id, self._owner_epoch, reason, output_tokens)

    def _close(self) -> Closed:
        prompt_tokens = len(self.order.prepared.prompt_token_ids) if self.started else 0
        input_tokens, cached_tokens, queue_s = self._terminal or (prompt_tokens, 0, 0.0)
        timings = Timings(self.order.received, time.monotonic(), self._first_token, queue_s)
        return close(
            [choice.finish_reason or FinishReason.INCOMPLETE for choice in self.choices],
            [choice.output_tokens for choice in self.choices],
            timings,
            input_tokens=input_tokens,
            cached_tokens=cached_tokens,
        )

    def _usage(self) -> UsageRecord:
        order = self.order
        return UsageRecord(
            request_id=order.request_id,
            owner_epoch=self._owner_epoch,
            tenant_id=order.tenant.tenant_id,
            model_version=order.tokenizer.model_version,
            tokenizer_version=order.tokenizer.tokenizer_version,
            runtime_revision=self.runtime_revision,
            opened_at=self._opened_at,
        )

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(max(0.0, delay_s), action))


def _cancelled() -> ServiceError:
    return ServiceError(Code.CANCELLED, "CANCELLED", "the request was cancelled")
