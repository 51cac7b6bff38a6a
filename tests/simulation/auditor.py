"""The auditor: sees every effect of the lanes and every grant, and holds the platform to its promises."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.scheduler.core.messages import ChoiceEnded, RequestEnded, TokenCommitted
from tests.simulation.tokens import CONTEXT, VOCAB
from tests.unit.scheduler_core.model_worker import oracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.scheduler.core.desk import Desk
    from services.scheduler.core.messages import Capacity, Effect, Request, StepPlan
    from services.scheduler.core.replica import Replica
    from tests.simulation.kernel import World

QUEUED, PREFILLING, DECODING = "queued", "prefilling", "decoding"
ENDED, SETTLED, OWNERLESS, FOLLOWED = "ended-unsettled", "settled", "ownerless-on-lease", "followed"
SUBMITTED = "submitted"
STATES = (SUBMITTED, QUEUED, PREFILLING, DECODING, ENDED, SETTLED, OWNERLESS, FOLLOWED)


@dataclass(slots=True)
class Run:
    """One request in one life of a lane."""

    request: Request
    expected: list[list[int]]
    next_index: list[int]
    ended: list[bool]
    over: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """An ownership that the scheduler gave."""

    owner_epoch: int
    gateway: str
    life: int  # of the gateway
    at: float


class Auditor:
    """Watches the scheduler; what it finds ends the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.life_of: dict[str, int] = {}  # gateway -> life, as of now
        self.committed: dict[tuple[int, int], int] = defaultdict(int)
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.opened_at: dict[int, float] = {}
        self.grants: dict[int, list[Grant]] = defaultdict(list)
        self.checks = 0
        self.on_check: Callable[[], None] = lambda: None
        self._runs: dict[int, Run] = {}
        self._writers: dict[tuple[str, int], dict[int, str | None]] = {}

    def scheduler_starts(self) -> None:
        """Nothing runs in a new scheduler."""
        self._runs = {}

    def submitted(self, request: Request) -> None:
        """A lane took a request, perhaps with output that a lost scheduler had committed."""
        if request.probes is not None:
            return
        request_id = request.request_id
        expected = [oracle(request, choice, _CAPACITY) for choice in range(request.n)]
        starts = [len(one.token_ids) for one in request.output] or [0] * request.n
        for choice, output in enumerate(request.output):
            if list(output.token_ids) != expected[choice][: len(output.token_ids)]:
                self.world.fail(f"request {request_id} goes on from tokens that were never drawn")
            if starts[choice] > self.committed[request_id, choice]:
                self.world.fail(f"request {request_id} goes on from tokens that were never committed")
        ended = [one.finish_reason is not None for one in request.output] or [False] * request.n
        self._runs[request_id] = Run(request, expected, starts, ended)
        self.prompts[request_id] = request.prompt
        self.opened_at.setdefault(request_id, self.world.now)
        self.world.note("scheduler", "takes", request_id, request.n, starts)

    def effect(self, effect: Effect) -> None:
        """A lane did something to a request."""
        run = self._runs.get(effect.request_id)
        if run is None:
            return
        if run.over:
            self.world.fail(f"request {effect.request_id} goes on after its terminal message: {effect}")
        match effect:
            case TokenCommitted():
                self._token(run, effect)
            case ChoiceEnded():
                if run.ended[effect.choice]:
                    self.world.fail(f"choice {effect.choice} of request {effect.request_id} ends twice")
                run.ended[effect.choice] = True
                self.world.note("scheduler", "ends", effect.request_id, effect.choice, effect.reason.name)
            case RequestEnded():
                if not all(run.ended):
                    self.world.fail(f"request {effect.request_id} ends before its choices")
                run.over = True
                self.world.note("scheduler", "ended", effect.request_id)

    def _token(self, run: Run, effect: TokenCommitted) -> None:
        request_id, choice, at = effect.request_id, effect.choice, effect.index
        if run.ended[choice] or at != run.next_index[choice]:
            self.world.fail(f"request {request_id} commits token {at}, not {run.next_index[choice]}")
        if run.expected[choice][at] != effect.token_id:
            self.world.fail(f"request {request_id} draws {effect.token_id} as token {at}")
        run.next_index[choice] = at + 1
        self.committed[request_id, choice] = max(self.committed[request_id, choice], at + 1)

    def planned(self, replica: Replica, plan: StepPlan) -> None:
        """A step was planned: no tenant computes over what another one wrote."""
        tenants = {one.slot: one.accepted.request.tenant_id for one in replica.running}
        writers = self._writers.setdefault((replica.replica_id, replica.epoch), {})
        page_size = replica.capacity.page_size
        for new in plan.add:
            tenant = tenants.get(new.slot)
            hits = new.computed_len // page_size
            for page in new.pages[:hits]:
                if tenant is not None and writers.get(page) != tenant:
                    self.world.fail(f"{tenant} reads a page of {writers.get(page)}")
            for page in new.pages[hits:]:
                writers[page] = tenant
        for slot, page in zip(plan.page_slot, plan.page, strict=True):
            writers[page] = tenants.get(slot)

    def granted(self, request_id: int, owner_epoch: int, stream: str) -> None:
        """Somebody owns a request."""
        grants = self.grants[request_id]
        gateway = stream.rpartition("/")[0]
        if grants and owner_epoch < grants[-1].owner_epoch:
            # Only a new scheduler, which knows of no earlier grant but by its gateways, may do that.
            self.world.note("scheduler", "grants below", request_id, owner_epoch, grants[-1].owner_epoch)
        grants.append(Grant(owner_epoch, gateway, self.life_of[gateway], self.world.now))
        self.world.note("scheduler", "grants", request_id, owner_epoch, stream)

    def check(self, desk: Desk) -> None:
        """All that holds after every event of the scheduler."""
        self.checks += 1
        self.on_check()
        for lane in desk.lanes.values():
            if violations := lane.check_integrity():
                self.world.fail(f"accounts are wrong: {violations}")
        unsettled = {record.order.request_id for record in desk.records.unsettled()}
        for request_id in unsettled:
            if request_id not in desk.ownership:
                self.world.fail(f"request {request_id} is nobody's and not settled")
        for lane in desk.lanes.values():
            for request_id in lane._live:
                if request_id > 0 and request_id not in unsettled:
                    self.world.fail(f"request {request_id} is settled and still runs")


def states_of(desk: Desk) -> dict[int, set[str]]:
    """How far every request is, as the scheduler has it."""
    found: dict[int, set[str]] = {}
    orphans = set(desk.ownership.orphans)
    for request_id, record in desk.records._records.items():
        if record.verdict is not None:
            found[request_id] = {SETTLED}
            continue
        if record.end is not None:
            states = {ENDED}
        elif record.first_token_at is not None:
            states = {DECODING}
        else:
            started = desk.lanes[record.order.model_version].started(request_id)
            states = {PREFILLING if started else QUEUED}
        if request_id in orphans:
            states.add(OWNERLESS)
        if len(desk.ownership.audience(request_id)) > 1:
            states.add(FOLLOWED)
        found[request_id] = states
    return found


class _Model:
    context_length, vocab_size = CONTEXT, VOCAB


_CAPACITY: Capacity = _Model()  # type: ignore[assignment]
