"""What users say to gateways; the answers are the values that a reading gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.gateway.core.spec import GenerationSpec


@dataclass(frozen=True, slots=True)
class Start:
    """Asks for a generation."""

    tenant_id: str
    spec: GenerationSpec
    key: str | None
    deadline_s: float | None

    @property
    def told(self) -> str:
        """For the trace."""
        return f"start key={self.key}"


@dataclass(frozen=True, slots=True)
class Attach:
    """Asks to follow one, by its id or by its key, from a token of each choice on."""

    tenant_id: str
    request_id: int
    key: str | None
    start: tuple[int, ...]

    @property
    def told(self) -> str:
        """For the trace."""
        return f"attach {self.key or self.request_id} from {self.start}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Cancels one."""

    tenant_id: str
    request_id: int
