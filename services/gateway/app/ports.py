"""What the use cases ask of the outside, and what the lane tells the owner of a request."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kit.errors import ServiceError
    from services.gateway.core.choice import NewToken
    from services.gateway.core.limits import Prepared, Priority
    from services.gateway.core.outcome import Closed, FinishReason
    from services.gateway.core.spec import GenerationSpec
    from services.gateway.core.tokenizing import ModelTokenizer

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
class Order:
    """What is to be generated, for whom, and since when. Times are monotonic seconds."""

    request_id: int
    tenant: Tenant
    spec: GenerationSpec
    prepared: Prepared
    tokenizer: ModelTokenizer
    seed: int
    priority: Priority
    received: float
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the scheduler gets it, with the time left."""

    order: Order
    deadline_s: float | None


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
class ChoiceRecord:
    """One choice as the scheduler kept it; `reason` None: it runs."""

    tokens: Sequence[NewToken]
    reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an owner closed a request."""

    reason: FinishReason
    output_tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """What the scheduler keeps of a request; `verdict` once its owner closed it."""

    state: State
    model_version: str
    stop: tuple[str, ...]
    choices: Sequence[ChoiceRecord]
    input_tokens: int
    cached_tokens: int
    queue_s: float
    verdict: Verdict | None


class LaneOwner(Protocol):
    """One request, as the lane sees its owner. Calls come in order on the event loop and never block."""

    @property
    def request_id(self) -> int:
        """The request."""

    def submission(self) -> Submission:
        """What to send for admission; asked again when a lost scheduler is back."""

    def accepted(self, owner_epoch: int, runtime_revision: str) -> None:
        """The scheduler queued the request."""

    def refused(self, error: ServiceError) -> None:
        """The scheduler did not take the request, or could not be asked."""

    def token(self, choice: int, index: int, token: NewToken, now: float) -> None:
        """A token of a choice is final."""

    def choice_ended(self, choice: int, reason: FinishReason, error_reason: str) -> None:
        """The scheduler ended a choice; provisional until the owner's verdict."""

    def request_ended(self, input_tokens: int, cached_tokens: int, queue_s: float) -> None:
        """The one terminal message."""

    def disowned(self) -> None:
        """Another may have closed the request by now."""

    def lost(self) -> bool:
        """The scheduler is gone; True asks for a new submission when it is back."""


class Lane(Protocol):
    """The way to the scheduler."""

    def submit(self, owner: LaneOwner) -> None:
        """Ask for admission; raises NO_CAPACITY when there is no scheduler to ask."""

    def cancel(
        self,
        request_id: int,
        reason: FinishReason,
        *,
        choice: int | None = None,
        kept_tokens: int | None = None,
    ) -> None:
        """End a request, or one choice, in no plan built after this arrives."""

    def settle(
        self, request_id: int, owner_epoch: int, reason: FinishReason, output_tokens: Sequence[int]
    ) -> None:
        """Report the owner's verdict, after `closed` is durable."""

    def forget(self, request_id: int) -> None:
        """Tell the owner of a request nothing more."""


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


class Meter(Protocol):
    """What is measured of one model version and tenant. Seconds."""

    def first_token(self, seconds: float) -> None:
        """Time from arrival to the first token."""

    def next_token(self, seconds: float) -> None:
        """Gap between two tokens of a choice."""

    def ended(self, closed: Closed) -> None:
        """A request was closed."""


class Meters(Protocol):
    """The meters of all models and tenants."""

    def of(self, model_version: str, tenant_id: str) -> Meter:
        """The meter of a model version and tenant."""
