"""What a gateway's stream is told beside what a lane did."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from services.scheduler.core.messages import ChoiceEnded, RequestEnded, State, TokenCommitted

if TYPE_CHECKING:
    from services.scheduler.core.records import Record, Verdict


class Attached(NamedTuple):
    """All there is of a request; what comes later on the stream carries on where the record ends."""

    record: Record  # frozen at `at`
    state: State
    owner_epoch: int  # 0: the stream only follows, or the request is settled
    at: float


class Granted(NamedTuple):
    """The stream, which followed, owns the request from now on."""

    request_id: int
    owner_epoch: int


class Settled(NamedTuple):
    """The owner of a request that the stream follows has closed it."""

    request_id: int
    verdict: Verdict


class Sync(NamedTuple):
    """Asks the stream to say that it has taken in all that came before."""

    number: int


Notice = TokenCommitted | ChoiceEnded | RequestEnded | Attached | Granted | Settled | Sync
