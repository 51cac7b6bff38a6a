"""A lane: one model version's queue and workers. Pure: time comes in, plans and effects go out."""

from __future__ import annotations

from services.scheduler.core.admission import Admission
from services.scheduler.core.deadlines import Deadlines
from services.scheduler.core.errors import AdmissionError
from services.scheduler.core.integrity import lane_violations
from services.scheduler.core.limits import Counters, LaneLimits, LaneStatus, lane_status
from services.scheduler.core.messages import (
    Capacity,
    ChoiceEnded,
    Effect,
    FinishReason,
    Request,
    StepPlan,
    StepResult,
    TokenCommitted,
)
from services.scheduler.core.planner import Planner
from services.scheduler.core.queue import WaitingQueue
from services.scheduler.core.rates import Rates
from services.scheduler.core.replica import Flight, Replica
from services.scheduler.core.sequence import Accepted, Hits, Sequence, accept


class Lane:
    """Schedules requests onto replicas. One thread; `now` is the caller's monotonic clock in seconds.

    After any call, the caller performs `effects()` and offers a plan to every replica whose pipeline
    has room; it then brings each plan's result to `commit`, in order.
    """

    def __init__(self, model_version: str, limits: LaneLimits) -> None:
        self.model_version = model_version
        self.limits = limits
        self.counters = Counters()
        self._rates = Rates()
        self._queue = WaitingQueue(limits)
        self._admission = Admission(limits, self._queue, self._rates)
        self._planner = Planner(limits, self._queue, self._rates, self.counters)
        self._deadlines = Deadlines()
        self._replicas: dict[str, Replica] = {}
        self._live: dict[int, Accepted] = {}
        self._effects: list[Effect] = []
        self._arrivals = 0
        self._page_size = 1

    # Workers

    def add_replica(self, replica_id: str, capacity: Capacity, epoch: int, now: float) -> None:
        """Attach a worker; one that was attached before counts as lost."""
        self.remove_replica(replica_id, now)
        self._replicas[replica_id] = Replica(replica_id, self.model_version, capacity, epoch)
        self._page_size = capacity.page_size
        self._fail_misfits(now)

    def remove_replica(self, replica_id: str, now: float) -> None:
        """Take a worker as lost; unknown ids pass.

        What had no token waits again, once; what resumes, with its tokens too. A choice that may not
        wait ends its whole request: callers judge and retry a request as one.
        """
        replica = self._replicas.pop(replica_id, None)
        if replica is None:
            return
        self.counters.workers_lost += bool(replica.running)
        for sequence in list(replica.running):
            if sequence.finish_reason is not None:
                continue  # with a choice of its request before it
            if sequence.outlives_worker():
                self._return(sequence, replica, now)
            else:
                self._fail(sequence.accepted, "WORKER_LOST", now)
        self._fail_misfits(now)

    def drain_replica(self, replica_id: str) -> None:
        """Let a worker finish what it runs and give it nothing new."""
        self._replicas[replica_id].draining = True

    # Requests

    def submit(self, request: Request, now: float) -> None:
        """Queue a request, or raise AdmissionError."""
        try:
            accepted, hits = self._consider(request, now)
        except AdmissionError as refusal:
            self.counters.refuse(refusal.reason)
            raise
        self._live[request.request_id] = accepted
        if request.deadline is not None:
            self._deadlines.add(request.request_id, request.deadline)
        if not accepted.open_choices:
            self._end(accepted, now)
        for sequence in accepted.choices:
            if sequence.finish_reason is None:
                self._enqueue(sequence, hits, now)

    def cancel(
        self,
        request_id: int,
        now: float,
        *,
        choice: int | None = None,
        kept_tokens: int | None = None,
        reason: FinishReason = FinishReason.CANCELLED,
        error_reason: str = "",
    ) -> None:
        """End a request, or one choice, before the next plan; late and unknown ones do nothing."""
        accepted = self._live.get(request_id)
        if accepted is None:
            return
        for sequence in accepted.choices:
            if choice is None or sequence.choice == choice:
                self._finish(sequence, reason, now, error_reason, kept_tokens)

    def started(self, request_id: int) -> bool:
        """Whether a live request has had its first prefill step planned."""
        accepted = self._live.get(request_id)
        return accepted is not None and accepted.started_at is not None

    # Steps

    def plan(self, replica_id: str, now: float) -> StepPlan | None:
        """Return the replica's next step; None when there is nothing to do or its pipeline is full."""
        self.expire(now)
        replica = self._replicas.get(replica_id)
        if replica is None or len(replica.flights) >= self.limits.pipeline_depth:
            return None
        return self._planner.build(replica, self._replicas.values(), now)

    def commit(self, replica_id: str, result: StepResult, now: float) -> None:
        """Take a step's result. Stale ones are ignored; a skipped step raises StepOutOfOrder."""
        replica = self._replicas.get(replica_id)
        stale = replica is None or result.epoch != replica.epoch
        flight = None if replica is None or stale else replica.land(result.step)
        if replica is None or flight is None:
            self.counters.stale_results += 1
            return
        started_at = max(flight.planned_at, replica.last_commit_at)
        self._rates.observe_step(flight.prefill_tokens, flight.decode_rows, now - started_at, now)
        replica.last_commit_at = now
        self._commit_rows(replica, flight, result, now)

    def running(self, replica_id: str) -> int:
        """Return how many sequences are resident on a replica."""
        replica = self._replicas.get(replica_id)
        return len(replica.running) if replica is not None else 0

    def idle_since(self, replica_id: str) -> float | None:
        """Return when an idle replica last answered a step; None for one that is not idle or drains."""
        replica = self._replicas.get(replica_id)
        if replica is None or replica.draining or replica.running or replica.flights or self._queue:
            return None
        return replica.last_commit_at

    # Time

    def expire(self, now: float) -> None:
        """End every request whose deadline has come, waiting or running."""
        for request_id in self._deadlines.due(now):
            self.counters.deadline_misses += 1
            self.cancel(request_id, now, reason=FinishReason.DEADLINE)

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do next."""
        return self._deadlines.next()

    # What is going on

    def effects(self) -> list[Effect]:
        """Drain what happened since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def status(self) -> LaneStatus:
        """Add the lane up."""
        replicas = self._replicas.values()
        queue_s, last_step_at = self._admission.queue_s(replicas), self._rates.last_step_at
        return lane_status(replicas, len(self._live), len(self._queue), queue_s, last_step_at)

    def check_integrity(self) -> list[str]:
        """Return every violation of the accounts; empty when all is well."""
        return lane_violations(self._replicas.values(), self._queue, self._live.values())

    # Inside

    def _consider(self, request: Request, now: float) -> tuple[Accepted, Hits]:
        """Return what a request becomes and what the cache has of it, or raise AdmissionError."""
        if request.request_id in self._live:
            raise AdmissionError("INVALID_REQUEST", "this id is already in use", "request_id")
        fleet = self._admission.door(request, self._replicas.values(), now)
        self._arrivals += 1
        context_length = max(one.capacity.context_length for one in self._replicas.values())
        accepted = accept(request, self._arrivals, now, context_length)
        first, *others = accepted.choices
        hits = max(one.count(one.cached_pages(first)) for one in self._replicas.values())
        self._admission.queue(request, fleet, hits, now)
        for sequence in others if not request.output else ():
            sequence.chain = first.chain.copy() if first.chain is not None else None
        return accepted, hits

    def _enqueue(self, sequence: Sequence, hits: Hits, now: float) -> None:
        """Queue a choice; one that a lost scheduler had begun goes first, and may be complete already."""
        self._planner.predict(sequence, self._page_size, None if sequence.choice else hits)
        if not sequence.accepted.request.output:
            self._queue.push(sequence, now)
            return
        self._queue.push_front(sequence, now)
        if reason := sequence.due_end():
            self._finish(sequence, reason, now)

    def _return(self, sequence: Sequence, replica: Replica, now: float) -> None:
        """Queue a sequence of a lost worker again."""
        self.counters.resumed_sequences += 1
        if sequence.accepted.home == replica.replica_id:
            sequence.accepted.home = None
        sequence.lost = sequence.computed
        replica.release(sequence)
        self._planner.predict(sequence, self._page_size)
        self._queue.push_front(sequence, now)

    def _fail(self, accepted: Accepted, error_reason: str, now: float) -> None:
        """End what cannot go on: INCOMPLETE when the caller has any of its tokens, else ERROR."""
        reason = FinishReason.ERROR
        if accepted.has_tokens:
            reason, error_reason = FinishReason.INCOMPLETE, ""
        self.cancel(accepted.request.request_id, now, reason=reason, error_reason=error_reason)

    def _fail_misfits(self, now: float) -> None:
        """End what waits and could run on none of the present workers, instead of blocking for ever."""
        replicas = self._replicas.values()
        for sequence in list(self._queue) if replicas else ():
            if not any(one.fits(sequence) for one in replicas):
                self._fail(sequence.accepted, "CONTEXT_TOO_LONG", now)

    def _commit_rows(self, replica: Replica, flight: Flight, result: StepResult, now: float) -> None:
        """Make tokens final. A row whose sequence has gone on since it was planned is discarded unread."""
        effects, errors = self._effects, result.row_error
        drawn = dict(zip(result.slot, result.token_id, strict=False))
        logprobs = {result.slot[row]: value for row, value in result.logprobs.items()}
        for sequence, generation, end, samples in flight.rows:
            if sequence.generation != generation:
                continue
            slot = sequence.slot
            token = drawn.get(slot, -1) if samples else 0
            if slot in errors or not 0 <= token < replica.capacity.vocab_size:
                self.counters.row_errors += 1
                self._finish(sequence, FinishReason.ERROR, now, errors.get(slot, "BAD_TOKEN"))
                continue
            if end >= sequence.next_full:
                replica.commit_pages(sequence, end)
            if not samples:
                continue
            tokens = sequence.tokens
            detail = logprobs.get(slot) if logprobs else None
            index = len(tokens) - sequence.prompt_len
            tokens.append(token)
            effects.append(TokenCommitted(sequence.request_id, sequence.choice, index, token, detail))
            if token in sequence.stop_token_ids:
                self._finish(sequence, FinishReason.STOP, now)
            elif len(tokens) >= sequence.limit:
                self._finish(sequence, FinishReason.LENGTH, now)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        error_reason: str = "",
        kept: int | None = None,
    ) -> None:
        """End a choice: the one exit for every reason, waiting or running."""
        if sequence.finish_reason is not None:
            return
        sequence.finish_reason = reason
        if sequence.replica is not None:
            sequence.replica.release(sequence)
        else:
            self._queue.remove(sequence)
        self._queue.settle(sequence)
        produced = sequence.output_len
        counted = produced if kept is None else min(max(kept, 0), produced)
        probes = sequence.accepted.request.probes is not None
        if reason in {FinishReason.STOP, FinishReason.LENGTH} and not probes:
            self._rates.observe_output(produced, sequence.limit - sequence.prompt_len)
        self._effects.append(ChoiceEnded(sequence.request_id, sequence.choice, reason, counted, error_reason))
        accepted = sequence.accepted
        accepted.open_choices -= 1
        if not accepted.open_choices:
            self._end(accepted, now)

    def _end(self, accepted: Accepted, now: float) -> None:
        """Say the one terminal message of a request and forget it, without a cycle for the collector."""
        request_id = accepted.request.request_id
        del self._live[request_id]
        self._deadlines.discard(request_id)
        self._effects.append(accepted.ended(now))
        accepted.choices = []
