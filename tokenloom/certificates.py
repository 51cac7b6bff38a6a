"""Certificates for a platform: one authority, and one certificate for each role, in a directory of PEM files.

`ca.pem` and `ca.key` last; `<role>.pem` and `<role>.key` are made anew each time. Keys are readable by their
owner only. The authority's key is needed for the next renewal and for nothing else.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DOMAIN = "tokenloom.internal"
CA_DAYS = 3650
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
# What each may be used for: services are servers and clients of one another, an operator only calls.
ROLES = {
    "scheduler": (_SERVER, _CLIENT),
    "gateway": (_SERVER, _CLIENT),
    "worker": (_SERVER, _CLIENT),
    "usage": (_SERVER, _CLIENT),
    "registry": (_SERVER, _CLIENT),
    "operator": (_CLIENT,),
    "nats": (_SERVER,),
    "edge": (_SERVER,),
}
# Callers and services reach these under the names of their hosts.
_NAMED_BY_HOST = ("nats", "edge")
_LOCAL = ("localhost", "127.0.0.1", "::1")
# Clocks differ.
_BACKDATED = datetime.timedelta(minutes=5)


class CertificateError(Exception):
    """Certificates cannot be made there; the message names the file at fault."""


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make(directory: Path, *, days: int, hosts: Iterable[str] = ()) -> list[Path]:
    """Write a certificate for every role, valid for `days`; returns them. The authority is made once.

    `hosts` are the names and addresses at which callers reach the gateway, and services NATS; without any,
    those of the certificates that are renewed stay.
    """
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = _authority(directory, now)
        until = min(now + datetime.timedelta(days=days), authority.certificate.not_valid_after_utc)
        reached = (*_LOCAL, *(tuple(hosts) or _known_hosts(directory / "edge.pem")))
        return [_write_leaf(directory, role, authority, (now, until), reached) for role in ROLES]
    except OSError as error:
        raise CertificateError(f"{error.filename or directory}: {error.strerror}") from None


def _authority(directory: Path, now: datetime.datetime) -> _Authority:
    cert_path, key_path = directory / "ca.pem", directory / "ca.key"
    if cert_path.exists() and key_path.exists():
        return _load_authority(cert_path, key_path, now)
    for path in (cert_path, key_path):
        if path.exists():
            raise CertificateError(f"{path} is there without its other half: restore that, or remove both")
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Tokenloom CA")
    builder = _begin(name, name, key, (now, now + datetime.timedelta(days=CA_DAYS)))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(sign_certificates=True), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write(key_path, _pem(key), 0o600)
    _write(cert_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return _Authority(certificate, key)


def _load_authority(cert_path: Path, key_path: Path, now: datetime.datetime) -> _Authority:
    try:
        certificate = x509.load_pem_x509_certificate(cert_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    except (ValueError, TypeError):
        raise CertificateError(f"{cert_path} or {key_path} is damaged") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise CertificateError(f"{key_path} is not the key of {cert_path}")
    if certificate.not_valid_after_utc <= now:
        raise CertificateError(f"{cert_path} has expired: remove it and {key_path} for a new authority")
    return _Authority(certificate, key)


def _known_hosts(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    try:
        extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    except ValueError:
        raise CertificateError(f"{path} is damaged: remove it, and say every --host again") from None
    found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = (*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress)))
    return tuple(name for name in names if name != "edge" and not name.endswith(f".{DOMAIN}"))


def _write_leaf(
    directory: Path,
    role: str,
    authority: _Authority,
    validity: tuple[datetime.datetime, datetime.datetime],
    hosts: tuple[str, ...],
) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    names = [f"{role}.{DOMAIN}", *((role, *hosts) if role in _NAMED_BY_HOST else ())]
    issuer = authority.certificate
    builder = _begin(_name(role), issuer.subject, key, validity)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(sign_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(ROLES[role]), critical=False)
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in dict.fromkeys(names)])
    builder = builder.add_extension(alternatives, critical=False)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer_key, critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    path = directory / f"{role}.pem"
    _write(path.with_suffix(".key"), _pem(key), 0o600)
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return path


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    validity: tuple[datetime.datetime, datetime.datetime],
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(validity[0] - _BACKDATED).not_valid_after(validity[1])
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise CertificateError(f"{host!r} is neither a host name in ASCII nor an address") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file in one step."""
    staged = path.with_name(f".{path.name}.new")
    staged.unlink(missing_ok=True)
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    staged.replace(path)
