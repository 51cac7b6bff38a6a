"""The usage service's configuration."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, SecretStr, field_validator

from kit import tls as kit_tls
from kit.config import ServiceConfig

_SCHEMES = ("sqlite+aiosqlite://", "postgresql+asyncpg://")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


class UsageConfig(ServiceConfig):
    """Read from TOKENLOOM_*; without a database URL the ledger is a SQLite file in the state directory."""

    usage_listen: str
    database_url: str = ""
    dev_api_key: SecretStr | None = None
    usage_lease_s: float = Field(default=30.0, gt=0)

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if url.startswith("postgresql://"):
            return url.replace("postgresql://", "postgresql+asyncpg://", 1)
        if url and not url.startswith(_SCHEMES):
            raise ValueError("allowed: postgresql://..., " + ", ".join(f"{scheme}..." for scheme in _SCHEMES))
        return url

    @field_validator("database_url")
    @classmethod
    def _usable_files(cls, url: str) -> str:
        query = dict(parse_qsl(urlsplit(url).query))
        if query.get("sslmode", _SSL_MODES[0]) not in _SSL_MODES:
            raise ValueError(f"sslmode: allowed are {', '.join(_SSL_MODES)}")
        if ca := query.get("sslrootcert"):
            kit_tls.check_ca(Path(ca), "sslrootcert")
        cert, key = (Path(query[name]) if name in query else None for name in ("sslcert", "sslkey"))
        kit_tls.all_or_none({"sslcert": cert, "sslkey": key})
        if cert and key:
            kit_tls.check_pair(kit_tls.KeyPair(cert, key), "sslcert", "sslkey")
        return url

    @property
    def ledger_url(self) -> str:
        """Where the ledger is."""
        return self.database_url or f"sqlite+aiosqlite:///{self.state_dir.absolute()}/usage.db"
