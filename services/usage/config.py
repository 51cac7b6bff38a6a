"""The usage service's configuration."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator

from kit.config import ServiceConfig

_SCHEMES = ("sqlite+aiosqlite://", "postgresql+asyncpg://")


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

    @property
    def ledger_url(self) -> str:
        """Where the ledger is."""
        return self.database_url or f"sqlite+aiosqlite:///{self.state_dir.absolute()}/usage.db"
