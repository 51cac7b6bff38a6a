"""One gateway's side of the lane: its requests, its lease, and what to say when the stream comes and goes."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, Any

from kit.errors import Code, ServiceError
from services.gateway.core.again import Again
from services.gateway.core.effects import Ended, Fault, Refuse, Timer
from services.gateway.core.lane_messages import (
    Accepted,
    Attach,
    Attached,
    Cancel,
    Detach,
    Granted,
    HeartbeatAck,
    Hello,
    Open,
    Refused,
    Settle,
    Step,
    Submit,
    Sync,
    Synced,
)
from services.gateway.core.lease import Lease
from services.gateway.core.outcome import FinishReason, no_scheduler, void
from services.gateway.core.owner import Owner
from services.gateway.core.sayings import Sayings

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.gateway.core.effects import Effect, Meter
    from services.gateway.core.lane_messages import Down, Up, Welcome, Word
    from services.gateway.core.life import Life
    from services.gateway.core.order import Order
    from services.gateway.core.vocabulary import Vocabulary


class LaneBook:
    """Every request of one gateway, and one stream after the other; times are monotonic seconds.

    The shell says `hello`, `welcome`, `hear`, `disconnect` and `tick`; it writes what `next_message` returns
    and carries out what `take_effects` returns. Between two of these calls anything may be asked of an owner.
    """

    def __init__(self, gateway_id: str, *, resubmit_s: float = 5.0) -> None:
        """`resubmit_s`: how long a lost scheduler may take to come back, and then to find its workers."""
        self.connected = False
        self.lease: Lease | None = None
        self.owners: dict[int, Owner] = {}
        self._gateway_id, self._resubmit_s = gateway_id, resubmit_s
        self._scheduler_epoch = 0
        self._hello_at = 0.0
        self._beat_at = math.inf
        self._give_up_at = math.inf
        self._again = Again()
        self._sayings = Sayings()
        self._asked = 0  # for our word, and not answered yet: the number of the last `Sync`
        self._effects: list[tuple[Owner, Effect]] = []
        self._order_of_timers = itertools.count()
        self._timers: list[tuple[float, int, int, bool]] = []

    # Requests

    def submit(
        self, order: Order, vocabulary: Vocabulary, now: float, *, meter: Meter | None = None
    ) -> Owner:
        """Ask for admission; raises NO_CAPACITY when there is no scheduler to ask."""
        return self._begin(
            Owner(order.request_id, order.tenant_id, vocabulary, self._take, order=order, meter=meter), now
        )

    def attach(
        self, request_id: int, tenant_id: str, vocabulary: Vocabulary, now: float, meter: Meter | None = None
    ) -> Owner:
        """Ask to follow a request that is not among `owners`; raises NO_CAPACITY."""
        return self._begin(Owner(request_id, tenant_id, vocabulary, self._take, meter=meter), now)

    def take_effects(self) -> list[tuple[Owner, Effect]]:
        """What owners asked for since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    # The stream

    def hello(self, now: float) -> Hello:
        """A stream is opened."""
        self._hello_at = now
        return Hello(self._gateway_id)

    def welcome(self, message: Welcome, now: float) -> None:
        """The stream stands: ask for everything again, of the same scheduler or another."""
        self.lease = Lease(message.lease_s, self._hello_at)
        same = message.scheduler_epoch == self._scheduler_epoch
        self._scheduler_epoch = message.scheduler_epoch
        self.connected = True
        self._give_up_at = math.inf
        self._beat_at = now + self.lease.period_s
        for owner in list(self.owners.values()):
            question = owner.call(now, same_scheduler=same)
            if question is not None:
                self._sayings.say(question)
            if isinstance(question, Submit) or not same:
                self._again.allow(owner.request_id, now + self._resubmit_s)
        self._sayings.beat()  # however long it took to be welcomed, the lease is a whole one

    def hear(self, message: Down, now: float) -> None:
        """Take a message; raises LaneLostError when the lease has run out: it must change nothing."""
        assert self.lease is not None
        self.lease.check(now)
        match message:
            case Step():
                self._deal(message, now)
            case HeartbeatAck():
                self._proven(message.sequence, now)
            case Sync():
                self._asked = message.number
            case Refused():
                self._refused(message, now)
            case Accepted() | Attached() | Granted() | Settle():
                self._answer(message, self.lease, now)
        self._give_word()

    def disconnect(self, now: float) -> None:
        """The stream is lost, or never stood."""
        if not self.connected:
            return
        self.connected, self._asked = False, 0
        self._sayings.cut_off(self.owners)
        self._beat_at = math.inf
        self._give_up_at = now + self._resubmit_s
        for owner in list(self.owners.values()):
            owner.cut_off(now)

    def next_message(self, now: float) -> Up | None:
        """What to write next on a stream that stands; None when all is said."""
        if not self.connected:
            return None
        assert self.lease is not None
        return self._sayings.next(self.lease, now)

    @property
    def waiting(self) -> bool:
        """Whether there is something to write."""
        return bool(self._sayings)

    def prove(self) -> None:
        """Have the scheduler prove that all that was said has arrived."""
        self._sayings.beat()

    @property
    def proven(self) -> bool:
        """Whether it has; what asks for an answer counts from the next proof on."""
        return self._sayings.all_proven

    # Time

    def next_timer(self) -> float:
        """When to call `tick` next."""
        first = self._timers[0][0] if self._timers else math.inf
        return min(first, self._beat_at, self._give_up_at)

    def tick(self, now: float) -> None:
        """Do what is due."""
        while self._timers and self._timers[0][0] <= now:
            _, _, request_id, ask = heapq.heappop(self._timers)
            owner = self.owners.get(request_id)
            if owner is not None and ask:
                self._ask(owner, now)
            elif owner is not None:
                owner.tick(now)
        if self.lease is not None and self._beat_at <= now:
            self._beat_at = now + self.lease.period_s
            self._sayings.beat()
        if self._give_up_at <= now:
            self._give_up_at = math.inf
            for owner in list(self.owners.values()):
                owner.refused(no_scheduler(), now)

    # Inside

    def _begin(self, owner: Owner, now: float) -> Owner:
        if not self.connected:
            raise no_scheduler()
        self.owners[owner.request_id] = owner
        self._ask(owner, now)
        return owner

    def _ask(self, owner: Owner, now: float) -> None:
        if self.connected and (question := owner.call(now, same_scheduler=True)):
            self._sayings.say(question)

    def _take(self, owner: Life, effect: Effect | Word | Timer) -> None:
        match effect:
            case Open():
                self._sayings.say(effect)
                self._sayings.beat()
            case Cancel() | Settle() | Detach() | Attach():
                self._sayings.say(effect)
            case Timer(when):
                self._at(when, owner.request_id)
            case _:
                assert isinstance(owner, Owner)
                self._effects.append((owner, effect))
        if isinstance(effect, Ended | Refuse):
            self.owners.pop(owner.request_id, None)
            self._again.settled(owner.request_id)
            self._give_word()

    def _give_word(self) -> None:
        # Not while we close something with less than we may have heard of it.
        if self._asked and not any(owner.closing_unheard for owner in self.owners.values()):
            self._sayings.say(Synced(self._asked))
            self._asked = 0

    def _at(self, when: float, request_id: int, *, ask: bool = False) -> None:
        heapq.heappush(self._timers, (when, next(self._order_of_timers), request_id, ask))

    def _proven(self, sequence: int, now: float) -> None:
        assert self.lease is not None
        self.lease.heard(sequence)
        for message in self._sayings.proven(sequence):
            if owner := self.owners.get(message.request_id):
                owner.open_heard(message.owner_epoch, now)

    def _answer(self, message: Accepted | Attached | Granted | Settle, lease: Lease, now: float) -> None:
        owner = self.owners.get(message.request_id)
        if owner is None:
            self._decline(message)
            return
        if not owner.informed and not isinstance(message, Attached):
            return  # it was said to an earlier attachment
        self._again.settled(message.request_id)
        match message:
            case Accepted():
                self._tell(owner, owner.accepted, message, lease, now)
            case Attached():
                self._tell(owner, owner.attached, message, lease, now)
            case Granted():
                self._tell(owner, owner.granted, message.owner_epoch, lease, now)
            case Settle():
                self._tell(owner, owner.settled, message.verdict, now)

    def _decline(self, message: Accepted | Attached | Granted | Settle) -> None:
        # Given up meanwhile. Of what was accepted nobody was told, so nobody pays.
        request_id = message.request_id
        if isinstance(message, Accepted):
            self._sayings.say(Cancel(request_id, FinishReason.CANCELLED))
            self._sayings.say(Settle(request_id, message.owner_epoch, void(0)))
        elif isinstance(message, Attached | Granted):
            self._sayings.say(Detach(request_id))

    def _refused(self, message: Refused, now: float) -> None:
        owner = self.owners.get(message.request_id)
        if owner is None:
            return
        when = self._again.after(message.request_id, message.error.reason, now)
        if when is None:
            owner.refused(message.error, now)
        else:
            self._at(when, owner.request_id, ask=True)

    def _deal(self, step: Step, now: float) -> None:
        owners = self.owners
        for request_id, choice, index, token in zip(
            step.request_ids, step.choices, step.indices, step.tokens, strict=True
        ):
            if (owner := owners.get(request_id)) and owner.informed:
                try:
                    owner.token(choice, index, token, now)
                except Exception as fault:  # one request's fault ends one request
                    self._give_up_on(owner, fault, now)
        for end in step.choice_ends:
            if (owner := owners.get(end.request_id)) and owner.informed:
                self._tell(owner, owner.choice_ended, end, now)
        for last in step.request_ends:
            if (owner := owners.get(last.request_id)) and owner.informed:
                said = last.input_tokens, last.cached_tokens, last.queue_s
                self._tell(owner, owner.request_ended, *said, now)

    def _tell(self, owner: Owner, what: Callable[..., None], *said: Any) -> None:  # noqa: ANN401
        """Tell an owner: one request's fault ends one request. The last word is the time."""
        try:
            what(*said)
        except Exception as fault:  # as above
            self._give_up_on(owner, fault, said[-1])

    def _give_up_on(self, owner: Owner, fault: Exception, now: float) -> None:
        self._effects.append((owner, Fault(type(fault).__name__)))
        owner.fail(ServiceError(Code.INTERNAL, "INTERNAL", "the gateway failed on this request"), now)
