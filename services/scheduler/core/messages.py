"""What goes into a lane and what comes out: the values that the shell translates to and from protos."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple


class FinishReason(enum.IntEnum):
    """Why a choice ended; numbered as in the inference proto."""

    STOP = 1
    LENGTH = 2
    DEADLINE = 3
    CANCELLED = 4
    INCOMPLETE = 5
    ERROR = 6


class State(enum.IntEnum):
    """How far an accepted request is; numbered as in the inference proto."""

    QUEUED = 1
    RUNNING = 2
    FINISHED = 3


class Priority(enum.IntEnum):
    """A class of requests; numbered as in the inference proto."""

    INTERACTIVE = 1
    STANDARD = 2
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; `top_logprobs` is None when no log-probabilities were asked for."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    top_logprobs: int | None = None


class Logprobs(NamedTuple):
    """A sampled token's log-probability and its likeliest alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Output:
    """What a lost scheduler had of one choice; `logprobs` is empty or as long as `token_ids`."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error_reason: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One accepted or offered generation. Times are seconds on the caller's monotonic clock."""

    request_id: int
    tenant_id: str
    prompt: tuple[int, ...]
    max_output_tokens: int
    n: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    stop_token_ids: frozenset[int] = frozenset()
    deadline: float | None = None
    priority: Priority = Priority.STANDARD
    tokenizer_version: str = ""  # part of the prefix cache's key
    probes: str | None = None  # the one replica that may run it, to prove that it works
    resume: bool = False  # goes on after the loss of a worker though it has tokens
    output: tuple[Output, ...] = ()  # of every choice, when it goes on after the loss of a scheduler


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one worker can hold, from its Describe."""

    page_size: int
    page_count: int
    slot_count: int
    max_step_tokens: int
    context_length: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Worker:
    """An attached worker: a replica of its model version's lane."""

    replica_id: str
    model_version: str
    runtime_revision: str
    capacity: Capacity
    epoch: int


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A choice that becomes resident in a slot."""

    slot: int
    sequence_id: int
    token_ids: list[int]
    prompt_len: int
    computed_len: int
    pages: list[int]
    choice: int
    sampling: Sampling


@dataclass(slots=True)
class StepPlan:
    """One step of one worker: `drop`, then `add`, then pages, then rows. Parallel lists match."""

    epoch: int
    step: int
    drop: list[int] = field(default_factory=list)
    add: list[NewSequence] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)
    token_count: list[int] = field(default_factory=list)
    page_slot: list[int] = field(default_factory=list)
    page: list[int] = field(default_factory=list)


@dataclass(slots=True)
class StepResult:
    """What one step produced: the rows that sampled, in parallel lists, and the rows that failed."""

    epoch: int
    step: int
    slot: list[int] = field(default_factory=list)
    token_id: list[int] = field(default_factory=list)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)  # position in `slot` -> values
    row_error: dict[int, str] = field(default_factory=dict)  # slot -> reason


class TokenCommitted(NamedTuple):
    """Effect: a token of a choice is final."""

    request_id: int
    choice: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    token_id: int
    logprobs: Logprobs | None


class ChoiceEnded(NamedTuple):
    """Effect: a choice ended, after its last token."""

    request_id: int
    choice: int
    reason: FinishReason
    output_tokens: int
    error_reason: str


class RequestEnded(NamedTuple):
    """Effect: the one terminal message of an accepted request."""

    request_id: int
    input_tokens: int
    cached_tokens: int
    queue_s: float


Effect = TokenCommitted | ChoiceEnded | RequestEnded
