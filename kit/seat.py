"""Run a service in the lowest free seat of a shared state directory: `python -m kit.seat SERVICE`.

Replicas that share one volume must not share state, yet what one leaves behind, such as events in its outbox,
must find an heir when its container is gone. So each takes a numbered seat: the directory SERVICE-N below
TOKENLOOM_STATE_DIR, which becomes its own state directory and names it in TOKENLOOM_<SERVICE>_ID. The seat is
free again when the process has ended, however it ended.
"""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SEATS = 1000


@dataclass(frozen=True, slots=True)
class Seat:
    """A seat that this process holds until it ends, also as the program that it becomes."""

    name: str
    directory: Path


def take(room: Path, service: str) -> Seat:
    """Take the lowest free seat; raises `OSError` when there is none."""
    for number in range(1, SEATS + 1):
        seat = Seat(f"{service}-{number}", room / f"{service}-{number}")
        seat.directory.mkdir(parents=True, exist_ok=True)
        if _lock(seat.directory / ".seat"):
            return seat
    raise OSError(f"all {SEATS} seats in {room} are taken")


def environment(inherited: Mapping[str, str], service: str, seat: Seat) -> dict[str, str]:
    """The service's environment: its seat is its name and its state."""
    own = {"TOKENLOOM_STATE_DIR": str(seat.directory), f"TOKENLOOM_{service.upper()}_ID": seat.name}
    return {**inherited, **own}


def _lock(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    # Kept through exec: the lock lives as long as the service.
    os.set_inheritable(descriptor, True)
    return True


def main() -> None:
    """Take a seat and become the service."""
    room = os.environ.get("TOKENLOOM_STATE_DIR")
    if len(sys.argv) != 2 or not room:
        sys.stderr.write("usage: TOKENLOOM_STATE_DIR=DIR python -m kit.seat SERVICE\n")
        sys.exit(2)
    service = sys.argv[1]
    env = environment(os.environ, service, take(Path(room), service))
    os.execve(sys.executable, [sys.executable, "-m", f"services.{service}"], env)  # noqa: S606 - it becomes it


if __name__ == "__main__":
    main()
