"""Files of a data directory: the lock, the secrets, and what tells clients where the platform listens."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tokenloom.up.nats import USERS
from tokenloom.up.options import UpError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEV_ENV = "dev.env"
SERVICES = "services.json"
_LOCK = "up.lock"
_RUN = "run"
# A unix socket's path holds at most 107 characters; the longest name below the directory takes 20.
_SOCKET_DIR_LIMIT = 80
_SECRETS = "secrets.json"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What one data directory keeps for itself."""

    api_key: str
    nats: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one gateway listens."""

    http_url: str
    grpc_target: str


@contextlib.contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Hold the data directory, or raise `UpError` naming the process that does."""
    with _open_lock(data_dir) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise UpError(
                f"{data_dir} is in use by another `tokenloom up` (process {owner}): "
                "stop it, or choose another --data-dir"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _open_lock(data_dir: Path) -> TextIO:
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return (data_dir / _LOCK).open("a+")
    except OSError as error:
        raise UpError(
            f"{data_dir} cannot be used: {error.strerror or error}; choose another --data-dir"
        ) from None


def load_secrets(data_dir: Path) -> Secrets:
    """Read the secrets, making them on first use."""
    path = data_dir / _SECRETS
    try:
        known = json.loads(path.read_text()) if path.exists() else {}
        api_key = known.get("api_key") or f"tl-{secrets.token_hex(20)}"
        nats = {user: known.get("nats", {}).get(user) or secrets.token_hex(24) for user in USERS}
    except (OSError, ValueError, AttributeError, RecursionError):
        raise UpError(f"{path} is damaged: restore it, or remove it for new secrets") from None
    write_private(path, json.dumps({"api_key": api_key, "nats": nats}, indent=1))
    return Secrets(api_key, nats)


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        staged.unlink()
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    staged.replace(path)


def write_dev_env(
    data_dir: Path, endpoints: Sequence[Endpoint], api_key: str, ca: Path | None = None
) -> None:
    """Tell clients where to go: the first gateway under the plain names, others numbered from 2."""
    lines = []
    for number, endpoint in enumerate(endpoints, 1):
        suffix = "" if number == 1 else f"_{number}"
        lines.append(f"TOKENLOOM_HTTP_URL{suffix}={endpoint.http_url}")
        lines.append(f"TOKENLOOM_GRPC_TARGET{suffix}={endpoint.grpc_target}")
        lines.append(f"TOKENLOOM_API_KEY{suffix}={api_key}")
    if ca:
        lines.append(f"TOKENLOOM_CA={ca}")
    write_private(data_dir / DEV_ENV, "\n".join(lines) + "\n")


def write_services(data_dir: Path, services: Sequence[Mapping[str, Any]]) -> None:
    """Tell operators which processes run."""
    write_private(data_dir / SERVICES, json.dumps({"services": list(services)}, indent=1) + "\n")


def forget_running(data_dir: Path) -> None:
    """Remove what was true only while the platform ran."""
    for name in (DEV_ENV, SERVICES):
        (data_dir / name).unlink(missing_ok=True)


def make_sockets(data_dir: Path) -> Path:
    """A private directory for unix sockets, also reachable as `run` in the data directory."""
    # What a platform that was killed left behind.
    remove_sockets(data_dir)
    directory = Path(tempfile.mkdtemp(prefix="tokenloom-"))
    if len(str(directory)) > _SOCKET_DIR_LIMIT:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="tokenloom-", dir="/tmp"))
    (data_dir / _RUN).symlink_to(directory)
    return directory


def remove_sockets(data_dir: Path) -> None:
    """Remove the directory of `make_sockets`."""
    link = data_dir / _RUN
    if link.is_symlink():
        shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink()
