"""Door and queue: what can never run, what would wait too long, and when to come back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.sequence import Hits, Work, predict_work, whole_prompt

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.scheduler.core.limits import LaneLimits
    from services.scheduler.core.messages import Request
    from services.scheduler.core.queue import WaitingQueue
    from services.scheduler.core.rates import Rates
    from services.scheduler.core.replica import Replica

NO_WORKER_RETRY_S = 2.0
LEAST_RETRY_S = 0.05
IDLE_DOUBT = 0.5  # an idle lane trusts its prediction by half,
DOUBT_HALF_LIFE_S = 30.0  # and by half again for every so many seconds without a step


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas that take new work, added up."""

    replicas: int
    page_size: int
    pages: int
    slots: int
    largest_pool: int
    context_length: int
    vocab_size: int
    step_tokens: int
    running: int
    prefill_tokens: int  # of resident prompts, not yet computed
    reserved: Work

    @classmethod
    def of(cls, replicas: Collection[Replica]) -> Fleet:
        """Add up replicas; there must be one."""
        reserved = Work()
        for one in replicas:
            reserved.add(one.reserved)
        capacities = [one.capacity for one in replicas]
        return cls(
            replicas=len(replicas),
            page_size=capacities[0].page_size,
            pages=sum(one.page_count for one in capacities),
            slots=sum(one.slots for one in replicas),
            largest_pool=max(one.page_count for one in capacities),
            context_length=max(one.context_length for one in capacities),
            vocab_size=min(one.vocab_size for one in capacities),
            step_tokens=max(one.max_step_tokens for one in capacities),
            running=sum(len(one.running) for one in replicas),
            prefill_tokens=sum(seq.known - seq.computed - 1 for one in replicas for seq in one.running),
            reserved=reserved,
        )


@dataclass(frozen=True, slots=True)
class Wait:
    """Predicted seconds until a newcomer computes: others' prompts, then room to hold it."""

    prompts_s: float
    room_s: float
    residence_s: float  # mean time a page is held

    @property
    def total_s(self) -> float:
        """Return the whole wait."""
        return self.prompts_s + self.room_s


class Admission:
    """Judges requests before they are accepted."""

    def __init__(self, limits: LaneLimits, queue: WaitingQueue, rates: Rates) -> None:
        self._limits = limits
        self._queue = queue
        self._rates = rates

    def door(self, request: Request, replicas: Collection[Replica], now: float) -> Fleet:
        """Return the replicas that may take the request, or raise AdmissionError when none ever could."""
        if request.deadline is not None and request.deadline <= now:
            raise AdmissionError("DEADLINE_EXCEEDED", "the deadline has already passed", "deadline")
        if not replicas:
            raise AdmissionError("NO_CAPACITY", "no worker serves this model", "", NO_WORKER_RETRY_S)
        takers = [one for one in replicas if not one.draining]
        if not takers:
            raise AdmissionError("DRAINING", "every worker of this model drains", "", NO_WORKER_RETRY_S)
        fleet = Fleet.of(takers)
        self._fits(request, fleet)
        return fleet

    def queue(self, request: Request, fleet: Fleet, hits: Hits, now: float) -> None:
        """Raise AdmissionError when a request, of which the cache has `hits`, would wait too long.

        One that a lost scheduler had begun is taken in any case: running streams are protected most.
        """
        if request.output:
            return
        own = self._own(request, fleet, hits)
        ahead = self._queue.ahead(request.priority)
        wait = self._wait(ahead, own, fleet)
        if ahead.sequences:
            self._bound(wait, ahead.pages + own.pages, fleet)
        self._deadline(request, hits.cached, wait, fleet, now)

    def queue_s(self, replicas: Collection[Replica]) -> float:
        """Return the predicted seconds of all waiting work."""
        if not replicas or not self._queue:
            return 0.0
        return self._wait(self._queue.total(), Work(), Fleet.of(replicas)).total_s

    def _fits(self, request: Request, fleet: Fleet) -> None:
        """Refuse what could not run even alone."""
        prompt, most = len(request.prompt), fleet.context_length - 1
        if not prompt:
            raise AdmissionError("INVALID_REQUEST", "must hold at least one token", "prompt")
        if prompt > most:
            message = f"has {prompt} tokens; a context of {most + 1} allows up to {most}"
            raise AdmissionError("CONTEXT_TOO_LONG", message, "prompt")
        if min(request.prompt) < 0 or max(request.prompt) >= fleet.vocab_size:
            message = f"token ids must lie in 0 to {fleet.vocab_size - 1}"
            raise AdmissionError("INVALID_REQUEST", message, "prompt")
        if request.max_output_tokens < 1:
            raise AdmissionError("INVALID_REQUEST", "must be at least 1", "max_output_tokens")
        if not 1 <= request.n <= self._limits.max_choices:
            raise AdmissionError("INVALID_REQUEST", f"must lie in 1 to {self._limits.max_choices}", "n")
        self._output(request, fleet)
        holds = fleet.largest_pool * fleet.page_size  # positions; the last token needs none
        if prompt > holds:
            message = f"has {prompt} tokens; the KV pages hold up to {holds}"
            raise AdmissionError("CONTEXT_TOO_LONG", message, "prompt")
        if min(prompt + request.max_output_tokens, fleet.context_length) - 1 > holds:
            message = f"with {prompt} prompt tokens the KV pages allow up to {holds + 1 - prompt}"
            raise AdmissionError("CONTEXT_TOO_LONG", message, "max_output_tokens")

    def _output(self, request: Request, fleet: Fleet) -> None:
        """Refuse output to go on from that this model could not have made."""
        if request.output and len(request.output) != request.n:
            raise AdmissionError("INVALID_REQUEST", "must have one entry a choice", "output")
        for one in request.output:
            if len(one.token_ids) > request.max_output_tokens:
                raise AdmissionError("INVALID_REQUEST", "is longer than max_output_tokens", "output")
            if one.token_ids and not 0 <= min(one.token_ids) <= max(one.token_ids) < fleet.vocab_size:
                message = f"token ids must lie in 0 to {fleet.vocab_size - 1}"
                raise AdmissionError("INVALID_REQUEST", message, "output")

    def _bound(self, wait: Wait, pages: float, fleet: Fleet) -> None:
        """Refuse what would make the queue longer than its bounds; an empty queue takes anything."""
        limits = self._limits
        late = wait.total_s - limits.max_queue_s
        if late > 0:
            reason = "QUEUE_FULL" if wait.prompts_s >= wait.room_s else "KV_EXHAUSTED"
            message = (
                f"work ahead takes about {wait.total_s:.1f} s, at most {limits.max_queue_s:g} s may wait"
            )
            raise AdmissionError(reason, message, "", max(late, LEAST_RETRY_S))
        pools = (fleet.reserved.pages + pages) / fleet.pages
        excess = pools - 1 - limits.max_queue_pools
        if excess > 0:
            message = "waiting requests already need more KV pages than the queue allows"
            raise AdmissionError("KV_EXHAUSTED", message, "", max(excess * wait.residence_s, LEAST_RETRY_S))

    def _deadline(self, request: Request, cached: int, wait: Wait, fleet: Fleet, now: float) -> None:
        """Refuse when the predicted first token comes after the deadline."""
        if request.deadline is None:
            return
        prompt, left_s = len(request.prompt), request.deadline - now
        late_s = wait.total_s + self._solo_s(prompt - cached, fleet, now) - left_s
        if late_s > 0:
            message = f"the first token is predicted {late_s:.2f} s after the deadline"
            possible = self._rates.prefill_seconds(prompt, fleet.step_tokens) < left_s
            retry_s = max(late_s, LEAST_RETRY_S) if possible else None
            raise AdmissionError("DEADLINE_INFEASIBLE", message, "deadline", retry_s)

    def _own(self, request: Request, fleet: Fleet, hits: Hits) -> Work:
        """Predict what the request asks for; its choices share the prompt's full pages."""
        size, chunk = fleet.page_size, self._limits.chunk_tokens
        prompt = len(request.prompt)
        output = max(1.0, request.max_output_tokens * self._rates.output_share)
        work = predict_work(prompt, output, size, chunk, hits)
        further = predict_work(prompt, output, size, chunk, whole_prompt(prompt, size))
        work.add(further, request.n - 1)
        return work

    def _wait(self, ahead: Work, own: Work, fleet: Fleet) -> Wait:
        """Predict the wait behind other work, as a fluid: pages and slots free up at a steady rate."""
        prompts = (ahead.prefill_tokens + fleet.prefill_tokens) / fleet.replicas
        prompts_s = self._rates.prefill_seconds(prompts, self._step_tokens(fleet))
        others = Work()
        others.add(ahead)
        others.add(fleet.reserved)
        step_s = self._rates.decode.predict(min(fleet.slots, others.sequences) / fleet.replicas)
        page_s = step_s * others.page_steps / max(1.0, others.pages)
        slot_s = step_s * others.steps / max(1.0, others.sequences)
        pages_over = max(0.0, (others.pages + own.pages) / fleet.pages - 1)
        slots_over = max(0.0, (others.sequences + own.sequences) / fleet.slots - 1)
        return Wait(prompts_s, max(pages_over * page_s, slots_over * slot_s), page_s)

    def _solo_s(self, tokens: int, fleet: Fleet, now: float) -> float:
        """Predict the seconds a prompt takes once it runs; an idle lane doubts its memory."""
        rates = self._rates
        if fleet.running or self._queue:
            chunk = min(self._limits.chunk_tokens, self._step_tokens(fleet))
            steps = math.ceil(tokens / chunk)
            return rates.prefill_seconds(tokens, chunk) + steps * rates.beside(fleet.running / fleet.replicas)
        idle_s = now - rates.last_step_at if rates.last_step_at is not None else math.inf
        trust: float = IDLE_DOUBT * 2.0 ** (-idle_s / DOUBT_HALF_LIFE_S)
        return trust * rates.prefill_seconds(tokens, fleet.step_tokens)

    def _step_tokens(self, fleet: Fleet) -> int:
        """Return how many prompt tokens a step computes beside what runs."""
        rows = fleet.running // fleet.replicas
        target_s = self._limits.step_target_s
        return self._rates.prompt_budget(rows, fleet.step_tokens, target_s) if rows else fleet.step_tokens
