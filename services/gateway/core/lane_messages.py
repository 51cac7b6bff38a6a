"""What travels on the lane, as plain values; the adapter turns them to and from protos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit.errors import ServiceError
    from services.gateway.core.choice import NewToken
    from services.gateway.core.order import Order
    from services.gateway.core.outcome import FinishReason, Verdict


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """One choice's output so far; `reason` None: it runs."""

    tokens: Sequence[NewToken]
    reason: FinishReason | None = None


# Up, from the gateway.


@dataclass(frozen=True, slots=True)
class Hello:
    """Opens a stream."""

    gateway_id: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Asks for admission. `deadline_s` is the time left; `output` is what a successor goes on from."""

    order: Order
    deadline_s: float | None = None
    owner_epoch: int = 0
    output: tuple[ChoiceRecord, ...] = ()
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Asks to follow a request from its first token on."""

    request_id: int
    tenant_id: str
    owner_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """Callers are told of a request once this is proven to have arrived."""

    request_id: int
    owner_epoch: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Stops following; from the owner: gives the ownership up."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a request, or one choice after `kept_tokens`."""

    request_id: int
    reason: FinishReason
    choice: int | None = None
    kept_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """The owner's verdict; up from the owner, down to those who follow."""

    request_id: int
    owner_epoch: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Renews the lease, and asks for the proof of it."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Synced:
    """All before a `Sync` has been taken in."""

    number: int


# Down, from the scheduler.


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answers `Hello`; another epoch is another life of the scheduler."""

    scheduler_epoch: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """Proves that a heartbeat and all before it was heard."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Asks for a word: what we have heard, others may hear."""

    number: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is queued and ours. `opened_at` is in seconds since 1970, of this gateway's clock."""

    request_id: int
    owner_epoch: int
    runtime_revision: str
    opened_at: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A submission or an attachment is not taken."""

    request_id: int
    error: ServiceError


@dataclass(frozen=True, slots=True)
class Attached:
    """All there is of a request; `owner_epoch` 0: we only follow. Times are seconds since acceptance."""

    request_id: int
    owner_epoch: int
    submit: Submit
    choices: Sequence[ChoiceRecord]
    end: RequestEnd | None
    verdict: Verdict | None
    runtime_revision: str
    opened_at: float
    age_s: float
    first_token_s: float | None


@dataclass(frozen=True, slots=True)
class Granted:
    """What we followed is ours."""

    request_id: int
    owner_epoch: int


class ChoiceEnd(NamedTuple):
    """The scheduler's provisional end of a choice."""

    request_id: int
    choice: int
    reason: FinishReason
    output_tokens: int
    error_reason: str = ""


class RequestEnd(NamedTuple):
    """The one terminal message of an accepted request."""

    request_id: int
    input_tokens: int
    cached_tokens: int
    queue_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """What one step means for us: token columns of equal length, then ends."""

    request_ids: Sequence[int] = ()
    choices: Sequence[int] = ()
    indices: Sequence[int] = ()
    tokens: Sequence[NewToken] = ()
    choice_ends: Sequence[ChoiceEnd] = ()
    request_ends: Sequence[RequestEnd] = ()


Word = Open | Attach | Detach | Cancel | Settle
Up = Hello | Submit | Open | Attach | Detach | Cancel | Settle | Heartbeat | Synced
Down = Accepted | Refused | Attached | Granted | Settle | HeartbeatAck | Sync | Step
