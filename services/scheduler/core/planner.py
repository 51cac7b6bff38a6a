"""Builds one step: decodes first, then prompts under way and those that come in, short ones first."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING

from services.scheduler.core.messages import NewSequence, StepPlan
from services.scheduler.core.replica import Flight, Replica
from services.scheduler.core.sequence import Sequence, work_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.scheduler.core.limits import Counters, LaneLimits
    from services.scheduler.core.queue import WaitingQueue
    from services.scheduler.core.rates import Rates
    from services.scheduler.core.sequence import Hits

MOST_SKIPPED = 8  # waiting sequences looked past in one step


class Gate(Enum):
    """What to do with the next waiting sequence."""

    ADMIT = auto()
    WAIT = auto()
    SKIP = auto()
    STOP = auto()


@dataclass(slots=True)
class Draft:
    """A step being built."""

    replica: Replica
    peers: Collection[Replica]
    plan: StepPlan
    flight: Flight
    now: float
    budget: int
    prompts: list[Sequence] = field(default_factory=list)  # resident, with prompt tokens to compute


class Planner:
    """Fills steps from the running and the waiting sequences of a lane."""

    def __init__(self, limits: LaneLimits, queue: WaitingQueue, rates: Rates, counters: Counters) -> None:
        self._limits = limits
        self._queue = queue
        self._rates = rates
        self._counters = counters
        self._generations = count(1)

    def predict(self, sequence: Sequence, page_size: int, hits: Hits | None = None) -> None:
        """Say what a sequence that begins to wait, or to run, will ask for."""
        chunk = self._limits.chunk_tokens
        sequence.work = work_of(sequence, page_size, chunk, self._rates.output_share, hits)

    def build(self, replica: Replica, peers: Collection[Replica], now: float) -> StepPlan | None:
        """Return the replica's next step, or None when nothing can compute."""
        plan, flight = StepPlan(replica.epoch, 0), Flight(0, now)
        draft = Draft(replica, peers, plan, flight, now, replica.capacity.max_step_tokens)
        self._decode(draft)
        if self._queue and draft.budget:
            self._admit(draft)
        if draft.prompts and flight.decode_rows:
            # Not before: who is let in gets on beside a long prompt, which takes all of a small budget.
            target_s = self._limits.step_target_s
            draft.budget = self._rates.prompt_budget(flight.decode_rows, draft.budget, target_s)
        if draft.prompts:
            self._prefill(draft)
        if not flight.rows:
            return None
        counters = self._counters
        counters.steps += 1
        counters.decode_tokens += flight.decode_rows
        counters.prefill_tokens += flight.prefill_tokens
        counters.scheduled_tokens += flight.decode_rows + flight.prefill_tokens
        return replica.launch(plan, flight)

    def _decode(self, draft: Draft) -> None:
        """Plan one token of everything that decodes; collect those with a prompt to compute."""
        replica = draft.replica
        slots, rows, prompts = draft.plan.slot, draft.flight.rows, draft.prompts
        stalled: list[Sequence] = []
        for sequence in replica.running:  # only entries behind the present one leave it meanwhile
            known = sequence.known
            if known >= sequence.limit:
                continue  # it surely ends with what is in flight
            position = known - 1
            if sequence.computed != position or known == sequence.prompt_len:
                prompts.append(sequence)
                continue
            if position >= sequence.page_room and not self._grow(draft, sequence):
                stalled.append(sequence)
                continue
            slots.append(sequence.slot)
            rows.append((sequence, sequence.generation, known, True))
            sequence.computed = known
            sequence.known = known + 1
        for _ in range(2):  # a second time, since the first may have returned pages
            stalled = [one for one in reversed(stalled) if not self._retry(draft, one)]
        draft.flight.decode_rows = len(rows)
        draft.plan.token_count = [1] * len(rows)
        draft.budget -= len(rows)

    def _grow(self, draft: Draft, sequence: Sequence) -> bool:
        """Give a sequence one more page, if need be from the least protected one behind it."""
        replica = draft.replica
        if not replica.pool.available:
            for victim in reversed(replica.running):
                if victim is sequence:
                    return False
                if replica.returns_pages(victim):
                    self._preempt(draft, victim)
                    break
        self._give_page(draft, sequence)
        return True

    def _retry(self, draft: Draft, sequence: Sequence) -> bool:
        """Plan a sequence that was short of a page, or let it give its own pages back."""
        if draft.replica.pool.available:
            self._give_page(draft, sequence)
            draft.plan.slot.append(sequence.slot)
            draft.flight.rows.append((sequence, sequence.generation, sequence.known, True))
            sequence.computed = sequence.known
            sequence.known += 1
            return True
        if draft.replica.returns_pages(sequence):
            self._preempt(draft, sequence)
            return True
        return False

    def _give_page(self, draft: Draft, sequence: Sequence) -> None:
        page = draft.replica.take_page()
        sequence.pages.append(page)
        sequence.page_room += draft.replica.capacity.page_size
        draft.plan.page_slot.append(sequence.slot)
        draft.plan.page.append(page)

    def _preempt(self, draft: Draft, victim: Sequence) -> None:
        replica = draft.replica
        self._counters.preemptions += 1
        victim.lost = victim.computed
        victim.preemptions += 1
        replica.release(victim)
        self.predict(victim, replica.capacity.page_size)
        self._queue.push_front(victim, draft.now)

    def _admit(self, draft: Draft) -> None:
        """Let waiting sequences in while they can compute in this step; short ones pass long ones."""
        replica, chunk = draft.replica, self._chunk(draft.replica)
        under_way = [one.known - one.computed for one in draft.prompts]
        room = draft.budget - sum(min(chunk, left) for left in under_way)
        short_room = draft.budget - sum(left for left in under_way if left <= chunk)
        skipped: set[Sequence] = set()
        looks = MOST_SKIPPED
        while replica.free_slots and looks and max(room, short_room) > 0:
            sequence = self._queue.peek(draft.now, skipped)
            if sequence is None:
                return
            hits = replica.cached_pages(sequence)
            gate = self._gate(draft, sequence, hits)
            if gate is Gate.STOP:
                return
            if gate is Gate.WAIT:
                skipped.update(self._crowd(draft, sequence, len(hits)))
                continue
            left = len(sequence.tokens) - len(hits) * replica.capacity.page_size
            if gate is Gate.SKIP or (room <= 0 and left > min(chunk, short_room)):
                skipped.add(sequence)
                looks -= 1
                continue
            draft.plan.add.append(self._enter(replica, sequence, hits))
            draft.prompts.append(sequence)
            room -= min(chunk, left)
            short_room -= left if left <= chunk else 0

    def _gate(self, draft: Draft, sequence: Sequence, hits: list[int]) -> Gate:
        """Decide whether a waiting sequence comes in here and now."""
        replica = draft.replica
        if not replica.fits(sequence) or (replica.draining and not sequence.preemptions):
            return Gate.SKIP
        if self._waits_for_prefix(draft, sequence, len(hits)):
            return Gate.WAIT
        overdue = draft.now - sequence.queued_at >= self._limits.bypass_s
        if not has_room(replica, sequence, hits, self._limits.watermark):
            return Gate.STOP if overdue or sequence.preemptions else Gate.SKIP
        return Gate.ADMIT if overdue or self._fair_share(draft, sequence) else Gate.SKIP

    def _waits_for_prefix(self, draft: Draft, sequence: Sequence, hits: int) -> bool:
        """Say whether someone is just computing what the sequence needs next; for a bounded time."""
        if draft.replica.awaited(sequence, hits) is None and not _at_home_elsewhere(draft, sequence):
            return False
        return self._has_patience(sequence, draft.now)

    def _has_patience(self, sequence: Sequence, now: float) -> bool:
        if sequence.wait_until is None:
            sequence.wait_until = now + self._limits.prefix_wait_s
        return now < sequence.wait_until

    def _crowd(self, draft: Draft, sequence: Sequence, hits: int) -> list[Sequence]:
        """Return all that wait for the same page as this one or for the same request's first choice."""
        page = draft.replica.awaited(sequence, hits)
        return [
            one
            for one in self._queue.fellows(sequence)
            if (one.accepted is sequence.accepted or (page is not None and _needs(one, hits, page)))
            and self._has_patience(one, draft.now)
        ]

    def _fair_share(self, draft: Draft, sequence: Sequence) -> bool:
        """Say whether this replica should take the sequence, or leave it to a peer with less to do."""
        if sequence.accepted.request.n > 1 and sequence.accepted.home == draft.replica.replica_id:
            return True  # its prompt's pages are here
        able = [
            one.reserved.pages
            for one in draft.peers
            if one is not draft.replica
            and one.free_slots
            and not one.draining
            and one.fits(sequence)
            and has_room(one, sequence, [], self._limits.watermark)
        ]
        mine = draft.replica.reserved.pages
        if all(mine <= theirs for theirs in able):
            return True
        share = (mine + sum(able) + self._queue.total().pages) / (len(able) + 1)
        return mine + sequence.work.pages / 2 <= share

    def _enter(self, replica: Replica, sequence: Sequence, hits: list[int]) -> NewSequence:
        self._queue.take(sequence, len(sequence.tokens) - len(hits) * replica.capacity.page_size)
        accepted, counters = sequence.accepted, self._counters
        accepted.home = replica.replica_id
        self.predict(sequence, replica.capacity.page_size, replica.count(hits))
        new = replica.admit(sequence, hits, next(self._generations))
        counters.prefix_query_tokens += len(sequence.tokens)
        counters.prefix_hit_tokens += sequence.computed
        counters.recomputed_tokens += max(0, sequence.lost - sequence.computed)
        sequence.lost = 0
        if accepted.started_at is None and not sequence.choice:
            accepted.cached_tokens = min(sequence.computed, sequence.prompt_len)
        return new

    def _chunk(self, replica: Replica) -> int:
        """Return the cap of a prompt that is not alone: two always find room in one step."""
        return max(1, min(self._limits.chunk_tokens, replica.capacity.max_step_tokens // 2))

    def _prefill(self, draft: Draft) -> None:
        """Spend the rest of the budget on prompts: short ones first, but waiting counts for a prompt."""
        now, plan, flight = draft.now, draft.plan, draft.flight
        alone = len(draft.replica.running) == 1 and not self._queue
        cap = draft.budget if alone else self._chunk(draft.replica)
        aging = self._limits.aging_tokens_per_s
        draft.prompts.sort(key=lambda one: one.known - one.computed + aging * one.accepted.accepted_at)
        for sequence in draft.prompts:
            tokens = min(cap, draft.budget, sequence.known - sequence.computed)
            if not tokens:
                return
            draft.budget -= tokens
            flight.prefill_tokens += tokens
            plan.slot.append(sequence.slot)
            plan.token_count.append(tokens)
            sequence.computed += tokens
            samples = sequence.computed == sequence.known
            flight.rows.append((sequence, sequence.generation, sequence.computed, samples))
            sequence.known += samples
            if sequence.accepted.started_at is None:
                sequence.accepted.started_at = now


def has_room(replica: Replica, sequence: Sequence, hits: list[int], watermark: float) -> bool:
    """Whole-prompt gate: all known tokens must fit, and beside others a watermark stays free."""
    pool = replica.pool
    idle_hits = sum(not pool.holders[page] for page in hits)
    need = replica.pages_for(len(sequence.tokens)) - len(hits) + idle_hits
    spare = max(1, int(watermark * pool.count)) if replica.running else 0
    return need + spare <= pool.available


def _needs(sequence: Sequence, index: int, page: bytes) -> bool:
    """Say whether page `index` of a sequence is the one with this digest."""
    chain = sequence.chain
    return chain is not None and index < len(chain.digests) and chain.digests[index] == page


def _at_home_elsewhere(draft: Draft, sequence: Sequence) -> bool:
    """Say whether another replica holds the prompt's pages for a further choice of a request."""
    accepted = sequence.accepted
    if accepted.request.n == 1 or sequence.preemptions or accepted.home is None:
        return False
    return any(
        one.replica_id == accepted.home and not one.draining
        for one in draft.peers
        if one is not draft.replica
    )
