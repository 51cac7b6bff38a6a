"""What the use cases ask of the outside."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.gateway.core.choice import Piece
    from services.gateway.core.effects import Effect, Meter, UsageRecord
    from services.gateway.core.lane_messages import ChoiceRecord
    from services.gateway.core.limits import Priority
    from services.gateway.core.order import Order
    from services.gateway.core.outcome import Closed, Verdict
    from services.gateway.core.owner import Owner
    from services.gateway.core.tokenizing import ModelTokenizer
    from services.gateway.core.vocabulary import Vocabulary

P = ParamSpec("P")
T = TypeVar("T")


class State(enum.IntEnum):
    """Coarse state of a generation; numbered as in the inference proto."""

    QUEUED = 1
    RUNNING = 2
    FINISHED = 3

    @property
    def label(self) -> str:
        """The word used in JSON."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who calls, from the authenticated key alone."""

    tenant_id: str
    priority: Priority


@dataclass(frozen=True, slots=True)
class Route:
    """A model version that can be called."""

    name: str
    model_version: str
    artifact_uri: str
    context_length: int
    family: str


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """What the scheduler keeps of a request; `verdict` once its owner closed it."""

    state: State
    model_version: str
    stop: tuple[str, ...]
    choices: Sequence[ChoiceRecord]
    verdict: Verdict | None


class Outlet(Protocol):
    """The way to one client."""

    @property
    def clear(self) -> bool:
        """Whether all that was written has left, so that more leaves at once."""

    def put(self, pieces: Sequence[Piece]) -> None:
        """Write while the way is clear."""

    async def write(self, pieces: Sequence[Piece]) -> None:
        """Write, however long the client takes."""


class Lane(Protocol):
    """The way to the scheduler, and the owners of what goes over it."""

    @property
    def connected(self) -> bool:
        """The scheduler has welcomed us and the stream stands."""

    @property
    def catching_up(self) -> bool:
        """The scheduler may have yet to hear of what a lost one ran."""

    def listen(self, carry_out: Callable[[Owner, Effect], None]) -> None:
        """Who does what owners ask for."""

    def submit(self, order: Order, vocabulary: Vocabulary, meter: Meter) -> Owner:
        """Ask for admission; raises NO_CAPACITY when there is no scheduler to ask."""

    def attach(self, request_id: int, tenant_id: str, vocabulary: Vocabulary, meter: Meter) -> Owner:
        """Ask to follow a request that this gateway has no owner of; raises NO_CAPACITY."""

    def tell(self, say: Callable[..., None], *what: object) -> None:
        """Give an owner one of its inputs, `now` added, and do what comes of it."""


class Records(Protocol):
    """The scheduler's kept records, of requests that any gateway owns."""

    async def get(self, request_id: int, tenant_id: str) -> KeptRecord:
        """The record of a tenant's request; raises NOT_FOUND or RESULT_EXPIRED."""

    async def cancel(self, request_id: int, tenant_id: str) -> State:
        """Cancel a tenant's request; the state found."""


class Routes(Protocol):
    """Which models can be called."""

    def find(self, model: str, field: str = "model") -> Route:
        """The route of a name or `name@version`; raises NOT_FOUND naming `field`."""

    def list(self) -> list[Route]:
        """Every route, by name."""


class Tokenizers(Protocol):
    """CPU work off the loop, bounded."""

    async def load(self, route: Route) -> ModelTokenizer:
        """The tokenizer of a route's version."""

    def loaded(self, model_version: str) -> ModelTokenizer | None:
        """The tokenizer of a version that was loaded before."""

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the pool; raises QUEUE_FULL."""


class UsageJournal(Protocol):
    """Where usage events become durable; calls return once they are."""

    def check_room(self) -> None:
        """Raise USAGE_BACKPRESSURE when new work must be refused."""

    async def opened(self, record: UsageRecord) -> None:
        """The request will be billed."""

    async def closed(self, record: UsageRecord, closed: Closed) -> None:
        """The request's terminal record; waits for room rather than lose it."""

    async def renewed(self, request_ids: Sequence[int]) -> None:
        """These requests still run; said only where it can be heard at once."""


class Ticket(Protocol):
    """The leave to tell callers of a request that others may be asking for too."""

    @property
    def request_id(self) -> int:
        """The id it is to have."""

    async def confirm(self) -> None:
        """Asked once the request is accepted, before `opened`: return, or raise what callers get instead."""


class Meters(Protocol):
    """The meters of all models and tenants."""

    def of(self, model_version: str, tenant_id: str) -> Meter:
        """The meter of a model version and tenant."""
