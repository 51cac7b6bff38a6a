"""What the owner of a request asks of the gateway around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kit.errors import ServiceError
    from services.gateway.core.outcome import Closed
    from services.gateway.core.reader import Reader


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What both usage events of a request say."""

    request_id: int
    owner_epoch: int
    tenant_id: str
    model_version: str
    tokenizer_version: str
    runtime_revision: str
    opened_at: float


@dataclass(frozen=True, slots=True)
class AppendOpened:
    """Make `opened` durable, then say `opened_done` or `opened_failed`."""

    usage: UsageRecord


@dataclass(frozen=True, slots=True)
class AppendClosed:
    """Make `closed` durable, then say `closed_done`."""

    usage: UsageRecord
    closed: Closed


@dataclass(frozen=True, slots=True)
class Opened:
    """Callers may see `accepted`."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Callers get this instead of `accepted`."""

    error: ServiceError


@dataclass(frozen=True, slots=True)
class Ended:
    """The request is over for this gateway: the owner's `closed` and `error` say how."""


@dataclass(frozen=True, slots=True)
class TurnAway:
    """Interrupt a reader that does not read."""

    reader: Reader


@dataclass(frozen=True, slots=True)
class Fault:
    """The request made this gateway fail and was given up; for the log."""

    kind: str


@dataclass(frozen=True, slots=True)
class Timer:
    """Call `tick` at this moment."""

    when: float


Effect = AppendOpened | AppendClosed | Opened | Refuse | Ended | TurnAway | Fault


class Meter(Protocol):
    """What is measured of one model version and tenant. Seconds."""

    def first_token(self, seconds: float) -> None:
        """Time from arrival to the first token."""

    def next_token(self, seconds: float) -> None:
        """Gap between two tokens of a choice."""

    def freed(self, seconds: float) -> None:
        """Time from a client's going, or a cancel's arrival, until the scheduler has its pages free."""

    def ended(self, closed: Closed) -> None:
        """A request was closed."""


class NoMeter:
    """Measures nothing."""

    def first_token(self, seconds: float) -> None:
        """Nothing."""

    def next_token(self, seconds: float) -> None:
        """Nothing."""

    def freed(self, seconds: float) -> None:
        """Nothing."""

    def ended(self, closed: Closed) -> None:
        """Nothing."""
