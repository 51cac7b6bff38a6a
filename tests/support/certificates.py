"""Certificates for the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from kit.tls import Identity, KeyPair
from tokenloom import certificates

if TYPE_CHECKING:
    from pathlib import Path


class Authority:
    """A directory as `tokenloom certs` writes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.renew()

    @classmethod
    def at(cls, directory: Path) -> Authority:
        """What is there already, as it is."""
        found = cls.__new__(cls)
        found.directory = directory
        return found

    def renew(self) -> None:
        certificates.make(self.directory, days=1)

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    def pair(self, role: str) -> KeyPair:
        return KeyPair(self.directory / f"{role}.pem", self.directory / f"{role}.key")

    def identity(self, role: str) -> Identity:
        return Identity(self.pair(role), self.ca)

    def settings(self, role: str) -> dict[str, str]:
        pair = self.pair(role)
        names = {"TOKENLOOM_TLS_CA": self.ca, "TOKENLOOM_TLS_CERT": pair.cert, "TOKENLOOM_TLS_KEY": pair.key}
        return {name: str(path) for name, path in names.items()}


async def check_turned_away(
    target: str, service: str, authority: Authority, stranger: KeyPair, method: str
) -> None:
    """Without a certificate, or with another authority's, there is no connection to a service."""
    ca = authority.ca.read_bytes()
    name = (("grpc.ssl_target_name_override", f"{service}.tokenloom.internal"),)
    for credentials in (
        grpc.ssl_channel_credentials(ca),
        grpc.ssl_channel_credentials(ca, stranger.key.read_bytes(), stranger.cert.read_bytes()),
    ):
        async with grpc.aio.secure_channel(target, credentials, options=name) as to_service:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = to_service.unary_unary(method)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
