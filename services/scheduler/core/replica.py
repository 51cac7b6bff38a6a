"""What is resident on one worker: slots, pages, running sequences and the steps in flight."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from services.scheduler.core.errors import StepOutOfOrder
from services.scheduler.core.messages import Capacity, NewSequence, StepPlan
from services.scheduler.core.pages import PagePool
from services.scheduler.core.prefix import Chain, PrefixCache, root_of
from services.scheduler.core.sequence import PROTECTION, Hits, Sequence, Work

# Sequence, its generation, positions computed after this row, whether it samples.
Row = tuple[Sequence, int, int, bool]


@dataclass(slots=True)
class Flight:
    """A step on its way; its rows remember whom they were planned for."""

    step: int
    planned_at: float
    rows: list[Row] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_rows: int = 0


class Replica:
    """One attached worker of a lane."""

    def __init__(self, replica_id: str, model_version: str, capacity: Capacity, epoch: int) -> None:
        self.replica_id = replica_id
        self.model_version = model_version
        self.capacity = capacity
        self.epoch = epoch
        self.draining = False
        self.pool = PagePool(capacity.page_count)
        self.cache = PrefixCache(self.pool)
        self.running: list[Sequence] = []  # most protected first
        self.flights: deque[Flight] = deque()
        self.reserved = Work()  # what the running sequences are predicted to need
        self.last_commit_at = float("-inf")
        # Every resident sequence decodes in every step, so there are no more slots than budget.
        self._slots = min(capacity.slot_count, capacity.max_step_tokens)
        self._free_slots = list(range(self._slots - 1, -1, -1))
        self._drops: list[int] = []
        self._step = 0

    @property
    def slots(self) -> int:
        """Sequences that can be resident at once."""
        return self._slots

    @property
    def free_slots(self) -> int:
        """Slots that nobody has."""
        return len(self._free_slots)

    def pages_for(self, tokens: int) -> int:
        """Return how many pages hold `tokens` positions."""
        return -(-tokens // self.capacity.page_size)

    def fits(self, sequence: Sequence) -> bool:
        """Say whether the sequence could run to its end here, alone. Its last token needs no page."""
        if sequence.accepted.request.probes not in {None, self.replica_id}:
            return False
        most = self.pages_for(sequence.limit - 1)
        return sequence.limit <= self.capacity.context_length and most <= self.pool.count

    def cached_pages(self, sequence: Sequence) -> list[int]:
        """Return the cached pages the sequence could start from; its last known token is always computed."""
        limit = (len(sequence.tokens) - 1) // self.capacity.page_size
        return self.cache.match(self._chain(sequence), sequence.tokens, limit)

    def count(self, hits: list[int]) -> Hits:
        """Count the tokens of cached pages; those that someone holds come before those that nobody does."""
        held = sum(self.pool.holders[page] > 0 for page in hits)
        return Hits(len(hits) * self.capacity.page_size, held * self.capacity.page_size)

    def awaited(self, sequence: Sequence, hits: int) -> bytes | None:
        """Return the digest of the page after its hits, when someone else is computing it."""
        limit = (len(sequence.tokens) - 1) // self.capacity.page_size
        chain = self._chain(sequence)
        return chain.digests[hits] if hits < limit and self.cache.promised(chain, hits) else None

    def admit(self, sequence: Sequence, hits: list[int], generation: int) -> NewSequence:
        """Give a waiting sequence a slot and the pages of all its known tokens."""
        sequence.generation = generation
        sequence.replica = self
        sequence.slot = self._free_slots.pop()
        for page in hits:
            self.pool.hold(page)
        pages = self.pages_for(len(sequence.tokens))
        sequence.pages = hits + [self.take_page() for _ in range(pages - len(hits))]
        page_size = self.capacity.page_size
        sequence.page_room = pages * page_size
        sequence.computed = len(hits) * page_size
        sequence.next_full = sequence.computed + page_size
        chain = self._chain(sequence)
        whole = len(sequence.tokens) // page_size
        chain.extend(sequence.tokens, whole)
        self.cache.promise(chain, len(hits), whole, generation)
        self.reserved.add(sequence.work)
        insort(self.running, sequence, key=PROTECTION)
        return NewSequence(
            slot=sequence.slot,
            sequence_id=generation,
            token_ids=sequence.tokens.copy(),
            prompt_len=sequence.prompt_len,
            computed_len=sequence.computed,
            pages=sequence.pages.copy(),
            choice=sequence.choice,
            sampling=sequence.accepted.request.sampling,
        )

    def release(self, sequence: Sequence) -> None:
        """Take slot and pages back; the next plan carries the drop and may give both out again."""
        self.running.remove(sequence)
        self._free_slots.append(sequence.slot)
        self._drops.append(sequence.slot)
        if sequence.chain is not None:
            committed = sequence.next_full // self.capacity.page_size - 1
            self.cache.withdraw(sequence.chain, committed, sequence.generation)
        for page in reversed(sequence.pages):  # tails are given out before prefixes
            self.pool.release(page)
        self.reserved.add(sequence.work, -1)
        sequence.leave()

    def take_page(self) -> int:
        """Take the least needed page and forget what it held."""
        page = self.pool.take()
        self.cache.forget(page)
        return page

    def returns_pages(self, sequence: Sequence) -> bool:
        """Say whether releasing the sequence makes any page available now."""
        holders = self.pool.holders
        return any(holders[page] == 1 for page in reversed(sequence.pages))

    def commit_pages(self, sequence: Sequence, end: int) -> None:
        """Let the full pages below position `end` into the prefix cache."""
        page_size = self.capacity.page_size
        chain = self._chain(sequence)
        while sequence.next_full <= end:
            index = sequence.next_full // page_size - 1
            page = sequence.pages[index]
            self.cache.commit(chain, sequence.tokens, index, page, sequence.generation)
            sequence.next_full += page_size

    def launch(self, plan: StepPlan, flight: Flight) -> StepPlan:
        """Number a plan, hand it the drops and remember its rows."""
        self._step += 1
        plan.step = flight.step = self._step
        plan.drop, self._drops = self._drops, []
        self.flights.append(flight)
        return plan

    def land(self, step: int) -> Flight | None:
        """Take the oldest step out of flight; None for one that landed before."""
        if self.flights and self.flights[0].step == step:
            return self.flights.popleft()
        oldest = self.flights[0].step if self.flights else self._step + 1
        if step < oldest:
            return None
        raise StepOutOfOrder(f"{self.replica_id} returned step {step}, the oldest in flight is {oldest}")

    def _chain(self, sequence: Sequence) -> Chain:
        page_size = self.capacity.page_size
        chain = sequence.chain
        if chain is None or chain.page_size != page_size:
            request = sequence.accepted.request
            root = root_of(
                self.model_version, "", request.tokenizer_version, f"page{page_size}", request.tenant_id
            )
            chain = sequence.chain = Chain(root, page_size)
        return chain
