"""One choice of a request on its way: `computed` chases the tokens that are known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from services.scheduler.core.messages import FinishReason, Output, Request, RequestEnded

if TYPE_CHECKING:
    from services.scheduler.core.prefix import Chain
    from services.scheduler.core.queue import Account
    from services.scheduler.core.replica import Replica

MOST_LOSSES = 1  # workers a sequence without a token may lose before it fails
MOST_RESUMED_LOSSES = 3  # and a resumable one with tokens, in a row without a further token
NO_OUTPUT = Output()


@dataclass(slots=True)
class Work:
    """What one or several sequences ask of a lane."""

    prefill_tokens: float = 0.0
    output_tokens: float = 0.0
    pages: float = 0.0
    sequences: float = 0.0
    steps: float = 0.0  # in which a slot is taken, summed over sequences
    page_steps: float = 0.0  # pages times the steps they are held

    def add(self, other: Work, share: float = 1.0) -> None:
        """Add a share of other work; a negative share takes it away."""
        self.prefill_tokens += share * other.prefill_tokens
        self.output_tokens += share * other.output_tokens
        self.pages += share * other.pages
        self.sequences += share * other.sequences
        self.steps += share * other.steps
        self.page_steps += share * other.page_steps


class Hits(NamedTuple):
    """Tokens of a sequence that need not be computed, and those of them in pages that others hold anyway."""

    cached: int = 0
    held: int = 0


@dataclass(slots=True, eq=False)
class Accepted:
    """An accepted request with its choices."""

    request: Request
    order: int  # of arrival
    accepted_at: float
    choices: list[Sequence] = field(default_factory=list)
    open_choices: int = 0
    started_at: float | None = None  # when its first prefill step was planned
    cached_tokens: int = 0
    home: str | None = None  # the replica that holds its prompt's pages

    def ended(self, now: float) -> RequestEnded:
        """Return the one terminal message; without a prefill step there is no input to bill."""
        request, started_at = self.request, self.started_at
        queue_s = (now if started_at is None else started_at) - self.accepted_at
        if started_at is None and not any(one.token_ids for one in request.output):
            return RequestEnded(request.request_id, 0, 0, queue_s)
        return RequestEnded(request.request_id, len(request.prompt), self.cached_tokens, queue_s)

    @property
    def has_tokens(self) -> bool:
        """Whether any choice has output."""
        return any(one.output_len for one in self.choices)


class Sequence:
    """A choice. Invariant: computed <= known <= limit, and known - len(tokens) samples are in flight."""

    __slots__ = (
        "accepted",
        "account",
        "chain",
        "charged",
        "choice",
        "computed",
        "finish_reason",
        "generation",
        "known",
        "limit",
        "losses",
        "lost",
        "next_full",
        "page_room",
        "pages",
        "preemptions",
        "prompt_len",
        "queued_at",
        "replica",
        "request_id",
        "slot",
        "stop_token_ids",
        "tokens",
        "tokens_at_loss",
        "wait_until",
        "work",
    )

    def __init__(self, accepted: Accepted, choice: int, context_length: int) -> None:
        request = accepted.request
        self.accepted = accepted
        self.choice = choice
        self.request_id = request.request_id
        self.stop_token_ids = request.stop_token_ids
        output = request.output[choice] if request.output else NO_OUTPUT
        self.tokens = [*request.prompt, *output.token_ids]
        self.prompt_len = len(request.prompt)
        self.limit = min(self.prompt_len + request.max_output_tokens, context_length)
        self.finish_reason = output.finish_reason
        # Progress and residency.
        self.computed = 0  # positions whose KV is written or being written
        self.known = len(self.tokens)  # tokens that are known or being sampled
        self.generation = 0  # fresh id of this residency, 0 while it has no slot
        self.replica: Replica | None = None
        self.slot = -1
        self.pages: list[int] = []
        self.page_room = 0  # positions that `pages` can hold
        self.next_full = 0  # committed positions at which the next page enters the cache
        self.chain: Chain | None = None
        # Waiting.
        self.account: Account | None = None
        self.queued_at = accepted.accepted_at
        self.wait_until: float | None = None
        self.work = Work()
        self.charged = 0.0  # output tokens its tenant paid for in advance
        # History.
        self.preemptions = 0
        self.losses = 0  # workers lost in a row without a token in between
        self.tokens_at_loss = 0
        self.lost = 0  # computed tokens that its last preemption, or its worker's end, threw away

    @property
    def output_len(self) -> int:
        """Committed output tokens."""
        return len(self.tokens) - self.prompt_len

    @property
    def protection(self) -> tuple[int, int, int]:
        """Order of protection, most protected first; each preemption raises the class by one."""
        rank = max(0, self.accepted.request.priority - self.preemptions)
        return rank, self.accepted.order, self.choice

    def due_end(self) -> FinishReason | None:
        """Say why output brought along is already complete; None when it goes on."""
        if self.output_len and self.tokens[-1] in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.limit else None

    def outlives_worker(self) -> bool:
        """Count the loss of its worker and say whether it may wait for another one."""
        self.losses = self.losses + 1 if len(self.tokens) == self.tokens_at_loss else 1
        self.tokens_at_loss = len(self.tokens)
        if not self.output_len:
            return self.losses <= MOST_LOSSES
        return self.accepted.request.resume and self.losses <= MOST_RESUMED_LOSSES

    def leave(self) -> None:
        """Forget all residency: whatever is in flight for it will be discarded unread."""
        self.generation = 0
        self.replica = None
        self.slot = -1
        self.pages = []
        self.page_room = 0
        self.next_full = 0
        self.computed = 0
        self.known = len(self.tokens)


def accept(request: Request, order: int, now: float, context_length: int) -> Accepted:
    """Make the choices of a request; those that ended elsewhere are not open."""
    accepted = Accepted(request, order, now)
    accepted.choices = [Sequence(accepted, choice, context_length) for choice in range(request.n)]
    accepted.open_choices = sum(one.finish_reason is None for one in accepted.choices)
    return accepted


PROTECTION = attrgetter("protection")


def whole_prompt(known: int, page_size: int) -> Hits:
    """Return what a request's later choices find: the full pages of the first one's prompt."""
    full = (known - 1) // page_size * page_size
    return Hits(full, full)


def predict_work(known: int, output: float, page_size: int, chunk_tokens: int, hits: Hits) -> Work:
    """Predict what one sequence asks for, with `known` tokens."""
    prefill = known - hits.cached
    pages = math.ceil((known + output - 1) / page_size) - hits.held // page_size
    steps = output + math.ceil(prefill / chunk_tokens)
    return Work(prefill, output, pages, 1, steps, pages * steps)


def work_of(
    sequence: Sequence, page_size: int, chunk_tokens: int, output_share: float, hits: Hits | None = None
) -> Work:
    """Predict what a sequence still asks for; without `hits`, a later choice counts on the first one's."""
    known = len(sequence.tokens)
    if hits is None:
        first = sequence.choice == 0 or sequence.output_len > 0
        hits = Hits() if first else whole_prompt(known, page_size)
    output = max(1.0, (sequence.limit - known) * output_share)
    return predict_work(known, output, page_size, chunk_tokens, hits)
