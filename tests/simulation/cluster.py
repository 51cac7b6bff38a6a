"""The whole platform in one world: every role, its users, and who died when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.gateway.core.spec import GenerationSpec
from tests.simulation import tokens
from tests.simulation.auditor import SUBMITTED, Auditor, states_of
from tests.simulation.gateway import Gateway
from tests.simulation.nats import Nats
from tests.simulation.network import Network
from tests.simulation.registry import Registry
from tests.simulation.scheduler import LEASE_S, Scheduler
from tests.simulation.usage import Database, Usage
from tests.simulation.user import Phase, User, Wish
from tests.simulation.worker import Worker, capacity_of

if TYPE_CHECKING:
    from tests.simulation.kernel import Process, World

LEDGER_WINDOW_S = LEASE_S + 30.0

REQUESTS = (20, 24)
ARRIVALS_S = 6.0


class Cluster:
    """Two or three gateways, a scheduler, two or three workers, usage, registry, NATS."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = Network(world)
        self.nats = Nats(self.network)
        self.database = Database()
        self.usage = Usage(self.nats, self.database, LEDGER_WINDOW_S)
        self.auditor = Auditor(world)
        self.scheduler = Scheduler(self.network, self.nats, self.auditor)
        count = world.rng.choice((2, 2, 3))
        self.gateways = [Gateway(self.nats, f"gateway-{i}", self.scheduler) for i in range(count)]
        capacity = capacity_of(world)
        count = world.rng.choice((2, 2, 3))
        self.workers = [
            Worker(self.network, f"worker-{i}", tokens.MODEL_VERSION, capacity) for i in range(count)
        ]
        self.registry = Registry(self.nats, self.workers)
        self.users: list[User] = []
        self.deaths = world.deaths
        self._last_states: dict[int, set[str]] = {}
        for wish in wishes(world):
            self.add_user(wish)
        self.requests = len(self.users)
        self._plan_company()

    @property
    def roles(self) -> list[Process]:
        """Every process that is not a user."""
        return [
            self.nats,
            self.usage,
            self.registry,
            self.scheduler,
            *self.workers,
            *self.gateways,
        ]

    def start(self) -> None:
        """Bring everything up."""
        for process in (*self.roles, *self.users):
            self.start_one(process)

    def start_one(self, process: Process) -> None:
        """Bring one process up."""
        self.auditor.life_of[process.name] = process.life + (not process.up)
        process.start()

    def kill(self, process: Process) -> None:
        """Kill one process."""
        if process.up:
            if process is self.scheduler:
                self._last_states = self.states()
            process.crash()

    def add_user(self, wish: Wish) -> User:
        """Add a user, not started yet."""
        user = User(self.network, f"user-{len(self.users)}", wish, self.gateways)
        self.users.append(user)
        return user

    def states(self) -> dict[int, set[str]]:
        """How far every request is; of a scheduler that is gone, when it went."""
        desk = self.scheduler.desk if self.scheduler.up else None
        found = states_of(desk) if desk is not None else dict(self._last_states)
        for gateway in self.gateways:
            for request_id in gateway.live if gateway.up else ():
                if request_id not in found:
                    found[request_id] = {SUBMITTED}
        return found

    def callers_of(self, request_id: int) -> list[User]:
        """Who asked for a request, whether or not it was told its id."""
        prompts = [self.auditor.prompts.get(request_id)]
        prompts += [gateway.prompt_of(request_id) for gateway in self.gateways]
        asked = next((prompt for prompt in prompts if prompt is not None), None)
        return [
            user
            for user in self.users
            if user.request_id == request_id or (user.asks and user.wish.spec.prompt_token_ids == asked)
        ]

    def quiet(self) -> bool:
        """Whether all is over: users, requests, events."""
        desk = self.scheduler.desk
        return (
            desk is not None
            and all(process.up for process in self.roles)
            and all(user.phase is Phase.OVER for user in self.users)
            and not desk.records.unsettled()
            and not any(gateway.live for gateway in self.gateways)
            and not any(gateway.outbox.pending for gateway in self.gateways if gateway.outbox)
            and self.scheduler.outbox is not None
            and not self.scheduler.outbox.pending
            and self.nats.caught_up
        )

    def unrest(self) -> str:
        """What is not quiet."""
        desk = self.scheduler.desk
        users = [f"{user.name} {user.phase.name}" for user in self.users if user.phase is not Phase.OVER]
        live = {gateway.name: gateway.live for gateway in self.gateways if gateway.live}
        unsettled = [one.order.request_id for one in desk.records.unsettled()] if desk is not None else []
        down = [process.name for process in self.roles if not process.up]
        return (
            f"{len(users)} users {users[:4]}, live {live}, unsettled {unsettled}, "
            f"down {down}, ledger caught up {self.nats.caught_up}"
        )

    def _plan_company(self) -> None:
        """Let some ask twice by key, some under a key that is taken, and some read along."""
        rng = self.world.rng
        for user in list(self.users):
            wish = user.wish
            chance = rng.random()
            start_s = wish.start_s + rng.choice((0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 2.0)))
            if wish.key is not None and chance < 0.35:
                self.add_user(Wish(wish.spec, wish.tenant_id, wish.key, start_s=start_s))
            elif wish.key is not None and chance < 0.5:
                other = wish.spec.model_copy(
                    update={"max_output_tokens": 1 + (wish.spec.max_output_tokens or 1)}
                )
                late = wish.start_s + 8.0
                self.add_user(Wish(other, wish.tenant_id, wish.key, start_s=late, contested=True))
                wish.contested = True
            elif chance < 0.6:
                self.add_user(Wish(wish.spec, wish.tenant_id, start_s=start_s, follows=user))


def wishes(world: World) -> list[Wish]:
    """What the first users want."""
    rng = world.rng
    shared = [rng.randrange(2, tokens.VOCAB) for _ in range(12)]
    found = []
    for number in range(rng.randint(*REQUESTS)):
        own = (number % tokens.VOCAB, *(rng.randrange(2, tokens.VOCAB) for _ in range(rng.randint(0, 10))))
        spec = GenerationSpec(
            model=tokens.NAME,
            prompt_token_ids=(*shared[: rng.choice((0, 0, 4, 8, 12))], *own),
            max_output_tokens=rng.choice((1, 2, 5, 9, 14, 20)),
            n=rng.choice((1, 1, 1, 1, 2, 3)),
            seed=rng.choice((None, rng.getrandbits(40))),
            stop=rng.choice(((), (), ("ab",), ("cd", "hg", "aaa"))),
            ignore_eos=rng.random() < 0.3,
            resume=rng.random() < 0.4,
        )
        found.append(
            Wish(
                spec,
                tenant_id=rng.choice(("acme", "acme", "globex")),
                key=f"key-{number}" if rng.random() < 0.4 else None,
                deadline_s=rng.choice((None, None, None, rng.uniform(0.05, 4.0))),
                start_s=rng.uniform(0.3, ARRIVALS_S),
                read_s=rng.choice((0.0, 0.0, 0.0, rng.uniform(0.02, 0.3))),
            )
        )
    return found
