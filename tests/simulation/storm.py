"""The storm: what goes wrong, when, and in which state it meets the requests."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.auditor import DECODING, FOLLOWED, OWNERLESS, STATES
from tests.simulation.faults import FAULTS, MISSED, NAMES
from tests.simulation.user import Canceller

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster import Cluster
    from tests.simulation.disk import SimulatedDisk
    from tests.simulation.kernel import Process
    from tests.simulation.user import User, Wish

STORM_S = 9.0
RESTART_S = (0.1, 4.5)
PAUSE_S = (0.2, 8.0)
CUT_S = (0.1, 7.0)
PATIENT_S = 0.2  # between two reads, once the storm is over
FAULTS_A_SEED = (3, 6)
AIMED_A_SEED = 3
AIMED_FROM_S = 4.0
AIM_AGAIN_S = 0.5
REST_S = 5.0


class Storm:
    """Chooses faults by the seed and counts which states each of them met."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster: Cluster = cluster
        self.world = cluster.world
        self.met: Counter[tuple[str, str]] = Counter()
        self.faults = 0
        self.over = False
        self._aims: list[tuple[str, str]] = []
        self._aims_from = cluster.world.rng.uniform(0.5, AIMED_FROM_S)
        self._company = 0
        self._orphaned = False

    def gather(self) -> None:
        """Decide what will happen."""
        rng = self.world.rng
        for _ in range(rng.randint(*FAULTS_A_SEED)):
            name = rng.choice(NAMES)
            self.world.after(rng.uniform(0.5, STORM_S), partial(self.strike, name, None))
        pairs = [(state, name) for name in NAMES for state in STATES]
        first = self.world.seed * AIMED_A_SEED
        self.cluster.auditor.on_check = self.look
        self._aims = [pairs[(first + i) % len(pairs)] for i in range(AIMED_A_SEED)]
        for user in self.cluster.users:
            if user.wish.deadline_s is not None:
                self._watch_deadline(user)
        self.world.after(STORM_S + 3.0, self.calm)

    def look(self) -> None:
        """Strike when a request is in a state that the seed aims at."""
        if not self._aims or self.over or self.world.now < self._aims_from:
            return
        states = self.cluster.states()
        if not self._orphaned and any(state == OWNERLESS for state, _ in self._aims):
            self._orphan(states)
        for aim in list(self._aims):
            state, name = aim
            targets = [request_id for request_id, found in states.items() if state in found]
            if targets and self.world.chance(0.3):
                self._aims.remove(aim)
                self._aims_from = self.world.now + AIM_AGAIN_S
                target = self.world.rng.choice(targets)
                delay_s = self.world.rng.choice((0.0, self.world.rng.uniform(0.0, 0.01)))
                self.world.after(delay_s, partial(self.strike, name, target))

    def _orphan(self, states: dict[int, set[str]]) -> None:
        """Make way for a state that is rare: an owner that is gone, and nobody who follows."""
        desk = self.cluster.scheduler.desk
        assert desk is not None
        for request_id, found in states.items():
            record = desk.records.get(request_id)
            lasts = record is not None and record.opened and record.order.resume_lease_s > 0
            owner = desk.ownership.owner_of(request_id)
            if lasts and owner is not None and DECODING in found and FOLLOWED not in found:
                gateway = next(one for one in self.cluster.gateways if one.name == owner.rpartition("/")[0])
                self._orphaned = True
                for user in self.cluster.users:
                    user.rest_s = REST_S if user.request_id == request_id else 0.0
                self.world.after(0.0, partial(self.crash, gateway))
                return

    def strike(self, name: str, target: int | None) -> None:
        """Let one fault happen; users' doings count for their own request, the others for all."""
        if self.over:
            return
        states = self.cluster.states()
        own = FAULTS[name](self, target)
        if own == MISSED:
            if target is None:
                self.world.after(0.2, lambda: self.strike(self.world.rng.choice(NAMES), None))
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
        for user in cluster.users:
            user.rest_s = 0.0
            user.wish.read_s = min(user.wish.read_s, PATIENT_S)
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

    def crash(self, process: Process) -> int | None:
        """Kill a process; it comes back after a while."""
        if not process.up:
            return MISSED
        self.cluster.kill(process)
        self.world.after(self.world.rng.uniform(*RESTART_S), lambda: self._start(process))
        return None

    def stop(self, process: Process) -> int | None:
        """Stop a process for a while."""
        if not process.up or process.paused:
            return MISSED
        process.pause(self.world.rng.uniform(*PAUSE_S))
        return None

    def tear(self, process: Process, disk: SimulatedDisk) -> int | None:
        """Let the power go in the middle of the next writes."""
        if not process.up:
            return MISSED
        disk.fuse = self.world.rng.randrange(0, 400)

        def gone() -> None:
            self.cluster.kill(process)
            self.world.after(self.world.rng.uniform(*RESTART_S), lambda: self._start(process))

        self.world.after(0.8, gone)
        return None

    def cut(self, one: Process, other: Process) -> None:
        """Part two processes."""
        self.cluster.network.cut(one.name, other.name, self.world.rng.uniform(*CUT_S))

    def break_streams(self, processes: list[Process], server: Process) -> bool:
        """Break a stream between two processes."""
        streams = [s for p in processes for s in self.cluster.network.between(p.name, server.name)]
        if streams:
            self.world.rng.choice(streams).break_off("storm")
        return bool(streams)

    def user(self, target: int | None, fit: Callable[[User], bool]) -> tuple[User, int] | None:
        """Choose a user and its request, the aimed one if there is an aim."""
        if target is None:
            fitting = [
                (user, user.request_id) for user in self.cluster.users if user.request_id and fit(user)
            ]
        else:
            fitting = [(user, target) for user in self.cluster.callers_of(target) if fit(user)]
        return self.world.rng.choice(fitting) if fitting else None

    def join(self, wish: Wish) -> None:
        """Add a user now."""
        self.cluster.start_one(self.cluster.add_user(wish))

    def cancel(self, user: User, request_id: int) -> None:
        """Let somebody delete what a user asked for."""
        self._company += 1
        name = f"cancel-{self._company}"
        Canceller(self.cluster.network, name, user, request_id, self.cluster.gateways).start()

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
