"""Claims of one key against a model of the bucket and the scheduler, in every order that hypothesis finds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import ServiceError
from services.gateway.core.idempotency import (
    Claim,
    End,
    Entry,
    Follow,
    Patience,
    Read,
    Run,
    Write,
    entry_name,
)

CONTENT = b"content"
PATIENCE = Patience(claim_s=10.0, resubmit_s=5.0)


@dataclass
class World:
    """The bucket's one entry with its revision, and what the scheduler knows."""

    now: float = 1000.0
    entry: Entry | None = None
    revision: int = 0
    admitted: set[int] = field(default_factory=set)
    # Accepted by the scheduler and closed without a bill: nobody may have been told of it.
    abandoned: set[int] = field(default_factory=set)
    # Closed as failed, with a row that bills nothing: whoever was told of it is told that too.
    failed: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, step: Write) -> bool:
        if step.revision != self.revision:
            return False
        self.entry, self.revision = step.entry, self.revision + 1
        return True


@dataclass
class Caller:
    """One gateway's way through a claim, one step at a time."""

    world: World
    skew: float
    refused: bool = False
    claim: Claim = field(init=False)
    step: object = field(init=False)
    own: int = 0
    followed: int = 0
    outcome: str = ""
    doomed: bool = False

    def __post_init__(self) -> None:
        self.claim = Claim(CONTENT, lambda: next(self.world.ids), PATIENCE)
        self.step = self.claim.begin(self.now)

    @property
    def now(self) -> float:
        return self.world.now + self.skew

    def go(self, *, lost: bool = False, refuse: bool = False) -> None:
        """Take the next step; `lost`: nobody learns whether its write was stored."""
        try:
            self.step = self._next(lost=lost, refuse=refuse)
        except ServiceError as error:
            self.outcome = error.reason

    def _next(self, *, lost: bool, refuse: bool) -> object:
        claim, world, step = self.claim, self.world, self.step
        match step:
            case Read():
                world.now += step.pause_s
                return claim.found(world.entry, world.revision, self.now)
            case Write():
                stored = world.write(step)
                if lost:
                    return self._unknown()
                return claim.written(world.revision) if stored else claim.beaten()
            case Follow():
                return self._follow(step.request_id)
            case Run():
                self.own = step.request_id
                if refuse:
                    self.doomed = True
                    return claim.refused()
                world.admitted.add(self.own)
                return claim.admitted()
            case End.CONFIRMED:
                self._tell(self.followed or self.own)
            case End.REFUSED:
                self.outcome = "REFUSED"
            case End.LOST:
                world.abandoned.add(self.own)
                self.own = 0
                return Read()
        return step

    def _follow(self, request_id: int) -> object:
        self.followed = 0
        if request_id in self.world.failed:
            return self.claim.given_up(self.now)
        if request_id not in self.world.admitted:
            return self.claim.missing(self.now)
        self.followed = request_id
        return self.claim.attached()

    def _unknown(self) -> object:
        if self.own in self.world.admitted and not self.followed:
            self.world.failed.add(self.own)
        self.outcome = "IDEMPOTENCY_UNAVAILABLE"
        return self.step

    def _tell(self, request_id: int) -> None:
        assert request_id not in self.world.abandoned, "a caller was told of a generation nobody bills"
        self.world.told.add(request_id)
        self.outcome = "TOLD"

    def finish(self) -> None:
        for _ in range(200):
            if self.outcome:
                return
            self.go()
        raise AssertionError(f"goes on for ever at {self.step}")


def check(world: World) -> None:
    assert len(world.told - world.failed) <= 1, "two generations for one key"
    assert not world.told & world.abandoned


orders = st.lists(st.integers(0, 4), max_size=60)
skews = st.lists(st.sampled_from([0.0, 0.0, -3600.0, 3600.0, 11.0]), min_size=2, max_size=5)


@given(skews, orders)
@settings(max_examples=400, deadline=None)
def test_racing_first_requests_make_one_generation_in_every_order(skews, order):
    """A response is lost, the client tries again, and both run and bill: not here."""
    world = World()
    callers = [Caller(world, skew) for skew in skews]
    for turn in order:
        caller = callers[turn % len(callers)]
        if not caller.outcome:
            caller.go()
        check(world)
    for caller in callers:
        caller.finish()
        check(world)
    assert {caller.outcome for caller in callers} == {"TOLD"}
    assert len(world.told) == 1
    running = world.admitted - world.abandoned
    assert running == world.told, "a second generation runs on"


events = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["go"] * 12 + ["crash", "lose", "refuse", "wait", "forget", "join"]),
    ),
    max_size=80,
)


@given(skews, events)
@settings(max_examples=400, deadline=None)
def test_no_crash_refusal_or_loss_makes_a_second_generation_that_somebody_is_told_of(skews, events):
    world = World()
    callers = [Caller(world, skew) for skew in skews]
    for turn, event in events:
        caller = callers[turn % len(callers)]
        if event == "wait":
            world.now += 4.0
        elif event == "forget":
            world.admitted.clear()  # the scheduler has lost what it kept
        elif event == "join":
            callers.append(Caller(world, 0.0))
        elif event == "crash":
            caller.outcome = caller.outcome or "CRASHED"
        elif not caller.outcome:
            caller.go(lost=event == "lose", refuse=event == "refuse")
        check(world)
    for caller in callers:
        caller.finish()
        check(world)
    last = Caller(world, 0.0)
    last.finish()
    check(world)
    assert last.outcome in {"TOLD", "RESULT_EXPIRED"}
    if world.told - world.failed - world.admitted:
        assert last.outcome == "RESULT_EXPIRED", "generated again after its record was lost"


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_an_entry_name_is_of_one_tenant_and_key_only(data):
    pair = st.tuples(st.text("ab\N{GREEK SMALL LETTER ALPHA}", max_size=4), st.text("ab", max_size=4))
    one, other = data.draw(pair), data.draw(pair)
    assert (entry_name(*one) == entry_name(*other)) == (one == other)
