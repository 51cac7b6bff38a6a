"""Every fault by its name: what it does, and whose request it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.user import Phase, Wish

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.kernel import Process
    from tests.simulation.storm import Storm

MISSED = -1  # there was nothing to do it to


def _one_of(storm: Storm, processes: list[Process]) -> Process:
    return storm.world.rng.choice(processes)


def _slow(storm: Storm, _: int | None) -> None:
    storm.cluster.network.slow_until = storm.world.now + storm.world.rng.uniform(0.5, 3.0)


def _break_lane(storm: Storm, _: int | None) -> int | None:
    cluster = storm.cluster
    return None if storm.break_streams([*cluster.gateways], cluster.scheduler) else MISSED


def _break_run(storm: Storm, _: int | None) -> int | None:
    cluster = storm.cluster
    return None if storm.break_streams([*cluster.workers], cluster.scheduler) else MISSED


def _full(storm: Storm, _: int | None) -> None:
    storm.cluster.nats.full = True
    storm.world.after(storm.world.rng.uniform(0.5, 4.0), lambda: setattr(storm.cluster.nats, "full", False))


def _commit_fails(storm: Storm, _: int | None) -> None:
    database = storm.cluster.database
    database.failing = True
    storm.world.after(storm.world.rng.uniform(0.5, 4.0), lambda: setattr(database, "failing", False))


def _repeat(storm: Storm, _: int | None) -> int | None:
    return None if storm.repeat_step() else MISSED


def _both(storm: Storm, _: int | None) -> int | None:
    missed = storm.crash(_one_of(storm, [*storm.cluster.gateways]))
    storm.world.after(storm.world.rng.uniform(0.0, 1.5), lambda: storm.crash(storm.cluster.scheduler))
    return missed


def _torn_gateway(storm: Storm, _: int | None) -> int | None:
    gateway = storm.world.rng.choice(storm.cluster.gateways)
    return storm.tear(gateway, gateway.disk)


def _vanish(storm: Storm, target: int | None) -> int | None:
    found = storm.user(target, lambda user: user.up and user.phase is not Phase.OVER)
    if found is None:
        return MISSED
    user, request_id = found
    user.returns = user.lasting and storm.world.chance(0.7)
    user.crash()
    if user.returns:
        storm.world.after(storm.world.rng.uniform(0.05, 6.0), user.start)
    return request_id


def _slow_reader(storm: Storm, target: int | None) -> int | None:
    found = storm.user(target, lambda user: user.phase is not Phase.OVER or target is not None)
    if found is None:
        return MISSED
    found[0].wish.read_s = storm.world.rng.choice((0.6, 1.5, 7.0))
    return found[1]


def _cancel(storm: Storm, target: int | None) -> int | None:
    found = storm.user(target, lambda _: True)
    if found is None:
        return MISSED
    storm.cancel(*found)
    return found[1]


def _duplicate(storm: Storm, target: int | None) -> int | None:
    found = storm.user(target, lambda user: user.wish.key is not None and not user.wish.contested)
    if found is None:
        return MISSED
    wish = found[0].wish
    storm.join(Wish(wish.spec, wish.tenant_id, wish.key))
    return found[1]


def _attach(storm: Storm, target: int | None) -> int | None:
    found = storm.user(target, lambda _: True)
    if found is None:
        return MISSED
    user, request_id = found
    storm.join(Wish(user.wish.spec, user.wish.tenant_id, follows=user))
    return request_id


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
    "gateway stops": lambda s, _: s.stop(_one_of(s, [*s.cluster.gateways])),
    "scheduler stops": lambda s, _: s.stop(s.cluster.scheduler),
    "worker stops": lambda s, _: s.stop(_one_of(s, [*s.cluster.workers])),
    "usage stops": lambda s, _: s.stop(s.cluster.usage),
    "nats stops": lambda s, _: s.stop(s.cluster.nats),
    "registry stops": lambda s, _: s.stop(s.cluster.registry),
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
