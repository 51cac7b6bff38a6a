"""The certificates of a platform on one host: who proves itself with which, also the supervisor."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from tokenloom import certificates
from tokenloom.up.options import UpError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DAYS = 365


@dataclass(frozen=True, slots=True)
class Trust:
    """A directory of certificates, renewed at each start; without one everything is spoken in the clear."""

    directory: Path | None = None

    @classmethod
    def renewed(cls, directory: Path) -> Trust:
        """Make or renew the certificates there; raises `UpError`."""
        try:
            certificates.make(directory, days=_DAYS)
        except certificates.CertificateError as error:
            raise UpError(str(error)) from None
        return cls(directory)

    @property
    def ca(self) -> Path | None:
        """Who vouches for all of them."""
        return self.directory / "ca.pem" if self.directory else None

    @property
    def http(self) -> str:
        """The scheme of the gateways' URLs."""
        return "https" if self.directory else "http"

    @property
    def nats(self) -> str:
        """The scheme of NATS' URL."""
        return "tls" if self.directory else "nats"

    def settings(self, service: str) -> dict[str, str]:
        """What a service is told, without the prefix of its variables."""
        if not self.directory:
            return {}
        paths = {"TLS_CA": "ca.pem", "TLS_CERT": f"{service}.pem", "TLS_KEY": f"{service}.key"}
        if service == "gateway":
            paths |= {"PUBLIC_TLS_CERT": "edge.pem", "PUBLIC_TLS_KEY": "edge.key"}
        return {name: str(self.directory / file) for name, file in paths.items()}

    def nats_settings(self) -> Mapping[str, object]:
        """What the NATS server is told: its clients show a certificate, and begin with TLS."""
        if not self.directory:
            return {}
        files = {"cert_file": "nats.pem", "key_file": "nats.key", "ca_file": "ca.pem"}
        paths = {name: str(self.directory / file) for name, file in files.items()}
        return {"tls": {**paths, "verify": True, "handshake_first": True}}

    def nats_context(self) -> ssl.SSLContext | None:
        """How the operator connects to the NATS server."""
        if not self.directory:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.directory / "operator.pem", self.directory / "operator.key")
        return context

    def channel(self, target: str, service: str) -> grpc.aio.Channel:
        """The operator's channel to a service; a gateway is asked where callers ask it."""
        options = (("grpc.enable_http_proxy", 0),)
        if not self.directory:
            return grpc.aio.insecure_channel(target, options=options)
        role = "edge" if service == "gateway" else service
        ca, key, cert = (
            (self.directory / name).read_bytes() for name in ("ca.pem", "operator.key", "operator.pem")
        )
        named = ("grpc.ssl_target_name_override", f"{role}.{certificates.DOMAIN}")
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
        return grpc.aio.secure_channel(target, credentials, options=(*options, named))
