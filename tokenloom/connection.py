"""One gateway's connection, in the clear or over TLS."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from tokenloom.api.inference.v1 import inference_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

PUBLICLY_TRUSTED = "system"
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
)


class Gateway:
    """A gateway's channel and stub."""

    def __init__(self, target: str, ca: str | os.PathLike[str] | None) -> None:
        self.channel = _channel(target, ca)
        self.stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(self.channel)


def other_targets(known: Mapping[str, str]) -> Iterator[str]:
    """TOKENLOOM_GRPC_TARGET_2 and so on, as far as there are."""
    for number in count(2):
        if not (target := known.get(f"TOKENLOOM_GRPC_TARGET_{number}")):
            return
        yield target


def _channel(target: str, ca: str | os.PathLike[str] | None) -> grpc.aio.Channel:
    if not ca:
        return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
    roots = None if ca == PUBLICLY_TRUSTED else Path(ca).read_bytes()
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(roots), options=_CHANNEL_OPTIONS)
