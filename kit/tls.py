"""TLS from PEM files: what a service proves itself with, checked at start, and its authority."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Who a certificate speaks for is its name below this one: `gateway.tokenloom.internal`.
DOMAIN = "tokenloom.internal"


class TlsError(ValueError):
    """Certificates that cannot be used; the message names the variable at fault."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its chain, and its private key."""

    cert: Path
    key: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """What a change of is a renewal."""
        return self.cert, self.key


@dataclass(frozen=True, slots=True)
class Identity:
    """A service among services: its own pair, and the authority that vouches for every one of them."""

    pair: KeyPair
    ca: Path
    require_client_cert: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        """What a change of is a renewal."""
        return (*self.pair.files, self.ca)


def peer_name(role: str) -> str:
    """The name in the certificate of a service."""
    return f"{role}.{DOMAIN}"


def all_or_none(settings: Mapping[str, Path | None]) -> bool:
    """Whether all of them are set; `TlsError` when some are."""
    missing = [name for name, path in settings.items() if path is None]
    if 0 < len(missing) < len(settings):
        present = next(name for name, path in settings.items() if path is not None)
        raise TlsError(f"{present} needs {' and '.join(missing)} beside it")
    return not missing


def check_pair(pair: KeyPair, cert: str, key: str) -> None:
    """Raise `TlsError`, naming the variable `cert` or `key`, unless the pair can be used now."""
    for name, path in ((cert, pair.cert), (key, pair.key)):
        _read(name, path)
    try:
        ssl.create_default_context(cafile=pair.cert)
    except ssl.SSLError:
        raise TlsError(f"{cert}: {pair.cert} holds no PEM certificate") from None
    try:
        accepting(pair)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{key}: {pair.key} is not the key of {cert}, {pair.cert}") from None
        raise TlsError(f"{key}: {pair.key} holds no PEM private key without a passphrase") from None
    try:
        _presented(pair, _trusting_itself(pair))
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"{cert}: {pair.cert} cannot be shown to anyone: {error.verify_message}") from None


def check_ca(ca: Path, variable: str) -> None:
    """Raise `TlsError`, naming the variable, unless the file holds certificates."""
    _read(variable, ca)
    try:
        ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise TlsError(f"{variable}: {ca} holds no PEM certificate") from None


def check_identity(identity: Identity, *, ca: str, cert: str, key: str) -> None:
    """Raise `TlsError` unless the pair can be used, and the authority vouches for it today."""
    check_ca(identity.ca, ca)
    check_pair(identity.pair, cert, key)
    try:
        _presented(identity.pair, ssl.create_default_context(cafile=identity.ca))
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        raise TlsError(f"{cert}: {ca} does not vouch for {identity.pair.cert}: {reason}") from None


def names(pair: KeyPair) -> list[str]:
    """The host names that the pair's certificate is for, whoever vouches for it."""
    alternatives = _presented(pair, _trusting_itself(pair)).get("subjectAltName", ())
    return [name for kind, name in alternatives if kind == "DNS"]


def expires_at(pair: KeyPair) -> float:
    """When the pair's certificate ends, in Unix time."""
    return ssl.cert_time_to_seconds(_presented(pair, _trusting_itself(pair))["notAfter"])


def client_context(identity: Identity | None, ca: Path | None = None) -> ssl.SSLContext:
    """For a client: trusts `ca`, else the identity's authority, else the system's, and shows the identity."""
    context = ssl.create_default_context(cafile=ca or (identity.ca if identity else None))
    if identity:
        context.load_cert_chain(identity.pair.cert, identity.pair.key)
    return context


def matched(pair: KeyPair) -> tuple[bytes, bytes]:
    """Key and certificate as PEM; raises `OSError` when they are no pair."""
    accepting(pair)
    return pair.key.read_bytes(), pair.cert.read_bytes()


def _read(variable: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise TlsError(f"{variable}: {path} cannot be read: {error.strerror}") from None


def accepting(pair: KeyPair) -> ssl.SSLContext:
    """For a server that anyone may connect to; raises `ssl.SSLError` when they are no pair."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without a password of our own the library would ask the terminal for one.
    context.load_cert_chain(pair.cert, pair.key, password=b"")
    return context


def _trusting_itself(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pair.cert)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _presented(pair: KeyPair, context: ssl.SSLContext) -> dict[str, Any]:
    """What a client with this context sees of the pair; raises as it would."""
    context.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server)
    server = accepting(pair).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(2):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert() or {}
