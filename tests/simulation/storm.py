"""The storm: what goes wrong, when, and in which state it meets the requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.auditor import STATES
from tests.simulation.user import Canceller, Phase, User, Wish

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster import Cluster
    from tests.simulation.disk import SimulatedDisk
    from tests.simulation.kernel import Process

STORM_S = 9.0
RESTART_S = (0.1, 4.5)
PAUSE_S = (0.2, 8.0)
CUT_S = (0.1, 7.0)
FAULTS_A_SEED = (3, 7)
AIMED_A_SEED = 2


class Storm:
    """Chooses faults by the seed and counts which states each of them met."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.met: Counter[tuple[str, str]] = Counter()
        self.faults = 0
        self.over = False
        self._aims: list[tuple[str, str]] = []
        self._company = 0

    def gather(self) -> None:
        """Decide what will happen."""
        rng = self.world.rng
        for _ in range(rng.randint(*FAULTS_A_SEED)):
            name = rng.choice(NAMES)
            self.world.after(rng.uniform(0.5, STORM_S), lambda name=name: self.strike(name, None))
        pairs = [(state, name) for name in NAMES for state in STATES]
        first = self.world.seed * AIMED_A_SEED
        self._aims = [pairs[(first + i) % len(pairs)] for i in range(AIMED_A_SEED)]
        for user in self.cluster.users:
            if user.wish.deadline_s is not None:
                self._watch_deadline(user)
        self.world.after(STORM_S + 3.0, self.calm)

    def look(self) -> None:
        """Strike when a request is in a state that the seed aims at."""
        if not self._aims or self.world.now < 0.5:
            return
        states = self.cluster.states()
        for aim in list(self._aims):
            state, name = aim
            targets = [request_id for request_id, found in states.items() if state in found]
            if targets and self.world.chance(0.2):
                self._aims.remove(aim)
                target = self.world.rng.choice(targets)
                delay_s = self.world.rng.choice((0.0, self.world.rng.uniform(0.0, 0.01)))
                self.world.after(delay_s, lambda name=name, target=target: self.strike(name, target))

    def strike(self, name: str, target: int | None) -> None:
        """Let one fault happen; users' doings count for their own request, the others for all."""
        if self.over:
            return
        states = self.cluster.states()
        own = FAULTS[name](self, target)
        if own is _MISSED:
            return
        self.faults += 1
        self.world.note("storm", name, *(() if target is None else (target,)))
        self._count(name, states, own)

    def calm(self) -> None:
        """End the storm: everything heals and comes up."""
        cluster = self.cluster
        self.over = True
        cluster.network.heal_all()
        cluster.network.lossy = False
        cluster.network.slow_until = 0.0
        cluster.nats.full = cluster.database.failing = False
        for process in cluster.roles:
            process.resume()
            self._start(process)
        self.world.note("storm", "is over")

    def _count(self, name: str, states: dict[int, set[str]], own: int | None) -> None:
        for request_id, found in states.items():
            if own is None or own == request_id:
                for state in found:
                    self.met[state, name] += 1

    def _watch_deadline(self, user: User) -> None:
        wish = user.wish
        at = wish.start_s + (wish.deadline_s or 0.0) + 0.01

        def passes() -> None:
            if user.request_id:
                self._count("deadline", self.cluster.states(), user.request_id)

        self.world.after(at, passes)

    # What may go wrong

    def crash(self, process: Process) -> None:
        """Kill a process; it comes back after a while."""
        self.cluster.kill(process)
        self.world.after(self.world.rng.uniform(*RESTART_S), lambda: self._start(process))

    def tear(self, process: Process, disk: SimulatedDisk) -> None:
        """Let the power go in the middle of the next writes."""
        disk.fuse = self.world.rng.randrange(0, 400)

        def gone() -> None:
            self.cluster.kill(process)
            self.world.after(self.world.rng.uniform(*RESTART_S), lambda: self._start(process))

        self.world.after(0.8, gone)

    def cut(self, one: Process, other: Process) -> None:
        """Part two processes."""
        self.cluster.network.cut(one.name, other.name, self.world.rng.uniform(*CUT_S))

    def break_streams(self, processes: list[Process], server: Process) -> bool:
        """Break a stream between two processes."""
        streams = [s for p in processes for s in self.cluster.network.between(p.name, server.name)]
        if streams:
            self.world.rng.choice(streams).break_off("storm")
        return bool(streams)

    def user(self, target: int | None, fit: Callable[[User], bool]) -> User | None:
        """Choose a user, of the aimed request if there is an aim."""
        fitting = [
            user
            for user in self.cluster.users
            if (target is None or user.request_id == target) and user.request_id and fit(user)
        ]
        return self.world.rng.choice(fitting) if fitting else None

    def join(self, wish: Wish) -> None:
        """Add a user now."""
        self.cluster.start_one(self.cluster.add_user(wish))

    def cancel(self, user: User) -> None:
        """Let somebody delete what a user asked for."""
        self._company += 1
        name = f"cancel-{self._company}"
        Canceller(self.cluster.network, name, user, self.cluster.gateways).start()

    def repeat_step(self) -> bool:
        """Let a plan arrive twice."""
        streams = [
            s
            for w in self.cluster.workers
            for s in self.cluster.network.between(w.name, self.cluster.scheduler.name)
        ]
        if streams:
            self.world.rng.choice(streams).up.repeat()
        return bool(streams)

    def retell(self) -> None:
        """Let acknowledgements be lost: events come again, whatever came of them."""
        for consumer in self.cluster.nats.consumers.values():
            for sequence in sorted(consumer.acked):
                if self.world.chance(0.5):
                    consumer.acked.discard(sequence)
                    consumer.given.pop(sequence, None)
            consumer.first = 0

    def _start(self, process: Process) -> None:
        if not process.up:
            self.cluster.start_one(process)


_MISSED = -1


def _one_of(storm: Storm, processes: list[Process]) -> Process:
    return storm.world.rng.choice(processes)


def _slow(storm: Storm, _: int | None) -> None:
    storm.cluster.network.slow_until = storm.world.now + storm.world.rng.uniform(0.5, 3.0)


def _break_lane(storm: Storm, _: int | None) -> int | None:
    cluster = storm.cluster
    return None if storm.break_streams([*cluster.gateways], cluster.scheduler) else _MISSED


def _break_run(storm: Storm, _: int | None) -> int | None:
    cluster = storm.cluster
    return None if storm.break_streams([*cluster.workers], cluster.scheduler) else _MISSED


def _full(storm: Storm, _: int | None) -> None:
    storm.cluster.nats.full = True
    storm.world.after(storm.world.rng.uniform(0.5, 4.0), lambda: setattr(storm.cluster.nats, "full", False))


def _commit_fails(storm: Storm, _: int | None) -> None:
    database = storm.cluster.database
    database.failing = True
    storm.world.after(storm.world.rng.uniform(0.5, 4.0), lambda: setattr(database, "failing", False))


def _repeat(storm: Storm, _: int | None) -> int | None:
    return None if storm.repeat_step() else _MISSED


def _both(storm: Storm, _: int | None) -> None:
    storm.crash(_one_of(storm, [*storm.cluster.gateways]))
    storm.world.after(storm.world.rng.uniform(0.0, 1.5), lambda: storm.crash(storm.cluster.scheduler))


def _torn_gateway(storm: Storm, _: int | None) -> None:
    gateway = storm.world.rng.choice(storm.cluster.gateways)
    storm.tear(gateway, gateway.disk)


def _vanish(storm: Storm, target: int | None) -> int | None:
    user = storm.user(target, lambda user: user.up and user.phase is not Phase.OVER)
    if user is None:
        return _MISSED
    user.returns = user.lasting and storm.world.chance(0.7)
    user.crash()
    if user.returns:
        storm.world.after(storm.world.rng.uniform(0.05, 6.0), user.start)
    return user.request_id


def _slow_reader(storm: Storm, target: int | None) -> int | None:
    user = storm.user(target, lambda user: user.phase is not Phase.OVER)
    if user is None:
        return _MISSED
    user.wish.read_s = storm.world.rng.choice((0.6, 1.5, 7.0))
    return user.request_id


def _cancel(storm: Storm, target: int | None) -> int | None:
    user = storm.user(target, lambda _: True)
    if user is None:
        return _MISSED
    storm.cancel(user)
    return user.request_id


def _duplicate(storm: Storm, target: int | None) -> int | None:
    user = storm.user(target, lambda user: user.wish.key is not None and not user.wish.contested)
    if user is None:
        return _MISSED
    storm.join(Wish(user.wish.spec, user.wish.tenant_id, user.wish.key))
    return user.request_id


def _attach(storm: Storm, target: int | None) -> int | None:
    user = storm.user(target, lambda _: True)
    if user is None:
        return _MISSED
    storm.join(Wish(user.wish.spec, user.wish.tenant_id, follows=user))
    return user.request_id


FAULTS: dict[str, Callable[[Storm, int | None], int | None]] = {
    "slow network": _slow,
    "lane breaks": _break_lane,
    "run breaks": _break_run,
    "gateway | scheduler": lambda s, _: s.cut(_one_of(s, [*s.cluster.gateways]), s.cluster.scheduler),
    "scheduler | worker": lambda s, _: s.cut(s.cluster.scheduler, _one_of(s, [*s.cluster.workers])),
    "gateway | nats": lambda s, _: s.cut(_one_of(s, [*s.cluster.gateways]), s.cluster.nats),
    "scheduler | nats": lambda s, _: s.cut(s.cluster.scheduler, s.cluster.nats),
    "gateway crash": lambda s, _: s.crash(_one_of(s, [*s.cluster.gateways])),
    "scheduler crash": lambda s, _: s.crash(s.cluster.scheduler),
    "worker crash": lambda s, _: s.crash(_one_of(s, [*s.cluster.workers])),
    "usage crash": lambda s, _: s.crash(s.cluster.usage),
    "nats down": lambda s, _: s.crash(s.cluster.nats),
    "registry crash": lambda s, _: s.crash(s.cluster.registry),
    "both crash": _both,
    "gateway stops": lambda s, _: _one_of(s, [*s.cluster.gateways]).pause(s.world.rng.uniform(*PAUSE_S)),
    "scheduler stops": lambda s, _: s.cluster.scheduler.pause(s.world.rng.uniform(*PAUSE_S)),
    "worker stops": lambda s, _: _one_of(s, [*s.cluster.workers]).pause(s.world.rng.uniform(*PAUSE_S)),
    "usage stops": lambda s, _: s.cluster.usage.pause(s.world.rng.uniform(*PAUSE_S)),
    "nats stops": lambda s, _: s.cluster.nats.pause(s.world.rng.uniform(*PAUSE_S)),
    "registry stops": lambda s, _: s.cluster.registry.pause(s.world.rng.uniform(*PAUSE_S)),
    "torn gateway outbox": _torn_gateway,
    "torn scheduler outbox": lambda s, _: s.tear(s.cluster.scheduler, s.cluster.scheduler.disk),
    "nats full": _full,
    "commit fails": _commit_fails,
    "step repeated": _repeat,
    "events retold": lambda s, _: s.retell(),
    "client vanishes": _vanish,
    "slow reader": _slow_reader,
    "cancel": _cancel,
    "duplicate": _duplicate,
    "attach": _attach,
}
NAMES = tuple(FAULTS)
COUNTED = (*NAMES, "deadline")
