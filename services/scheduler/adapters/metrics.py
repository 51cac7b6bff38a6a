"""The scheduler's metrics: lanes are sampled, steps and cancels observed."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kit.metrics import CANCEL_BUCKETS, REGISTRY, STEP_BUCKETS

if TYPE_CHECKING:
    from services.scheduler.core.desk import Desk
    from services.scheduler.core.limits import Counters, LaneStatus

PREFIX = "tokenloom_scheduler"
MODEL = "model_version"
OCCUPANCY_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COUNTED = {
    "steps": "Steps planned.",
    "scheduled_tokens": "Tokens scheduled in all steps.",
    "prefill_tokens": "Prompt tokens scheduled.",
    "decode_tokens": "Output tokens scheduled.",
    "preemptions": "Sequences preempted.",
    "resumed_sequences": "Sequences of a lost worker that were queued again.",
    "recomputed_tokens": "Tokens computed again after a preemption or a lost worker.",
    "prefix_query_tokens": "Prompt tokens looked up in the prefix cache.",
    "prefix_hit_tokens": "Prompt tokens found in the prefix cache.",
    "deadline_misses": "Requests ended by their deadline.",
    "workers_lost": "Workers lost with sequences on them.",
    "row_errors": "Rows that a worker failed.",
    "stale_results": "Step results discarded: repeated, or of an earlier attachment.",
}


class SchedulerMetrics:
    """Everything the scheduler exports, by model version."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", text, labels, buckets=buckets, registry=registry)

        self.running = gauge("running_sequences", "Sequences in slots.", MODEL)
        self.waiting = gauge("waiting_sequences", "Sequences in the queue.", MODEL)
        self.workers = gauge("workers", "Workers attached.", MODEL)
        self.pages = gauge("kv_pages", "KV pages by state.", MODEL, "state")
        self.hit_ratio = gauge(
            "prefix_hit_ratio", "Prompt tokens found in the prefix cache, as a share.", MODEL
        )
        self.last_step_age = gauge("last_step_age_seconds", "Age of the last step or probe.", MODEL)
        self.outbox_events = gauge("outbox_events", "Usage events not yet published.")
        self.outbox_age = gauge("outbox_age_seconds", "Age of the oldest of them.")
        self.counted = {name: counter(name, text, MODEL) for name, text in COUNTED.items()}
        self.refusals = counter("refusals", "Requests refused, by reason.", MODEL, "reason")
        self.violations = counter("integrity_violations", "Violations found in page accounting.", MODEL)
        self.parts = histogram("step_seconds", "A step's time by part.", STEP_BUCKETS, MODEL, "part")
        self.occupancy = histogram("step_rows", "Rows of a step.", OCCUPANCY_BUCKETS, MODEL)
        self.cancel_to_free = histogram(
            "cancel_to_free_seconds",
            "From a cancel's arrival until its sequences hold nothing.",
            CANCEL_BUCKETS,
            MODEL,
        )
        self.handovers = counter(
            "handovers", "Requests whose ownership passed to a stream that attached or followed.", MODEL
        )
        self.takeovers = counter("takeovers", "Requests closed in a vanished owner's place.", MODEL)
        self.orphans = gauge("ownerless_requests", "Requests that wait for an owner.")
        self.followers = gauge("following_streams", "Streams that follow a request, over all requests.")
        self._seen: dict[str, dict[str, int]] = {}

    def sample(self, model_version: str, status: LaneStatus, counters: Counters, now: float) -> None:
        """Read one lane."""
        self.running.labels(model_version).set(status.running)
        self.waiting.labels(model_version).set(status.waiting)
        self.workers.labels(model_version).set(status.replicas)
        self.pages.labels(model_version, "free").set(status.free_pages)
        self.pages.labels(model_version, "cached").set(status.cached_pages)
        self.pages.labels(model_version, "owned").set(status.owned_pages)
        queried = counters.prefix_query_tokens
        self.hit_ratio.labels(model_version).set(counters.prefix_hit_tokens / queried if queried else 0.0)
        if status.last_step_at is not None:
            self.last_step_age.labels(model_version).set(now - status.last_step_at)
        self._count(model_version, counters)

    def sample_ownership(self, desk: Desk) -> None:
        """Read who owns and follows."""
        self.orphans.set(len(desk.ownership.orphans))
        self.followers.set(desk.ownership.followed)
        tally = desk.tally
        for name, counted, totals in (
            ("handovers", self.handovers, tally.handovers),
            ("takeovers", self.takeovers, tally.takeovers),
        ):
            for model_version, total in totals.items():
                self._raise(counted, model_version, name, total)

    def _count(self, model_version: str, counters: Counters) -> None:
        for item in fields(counters):
            if item.name in self.counted:
                self._raise(self.counted[item.name], model_version, item.name, getattr(counters, item.name))

    def _raise(self, counter: Counter, model_version: str, name: str, total: int) -> None:
        """Bring a counter up to a total kept elsewhere."""
        seen = self._seen.setdefault(model_version, {})
        counter.labels(model_version).inc(total - seen.get(name, 0))
        seen[name] = total

    def observe(self, model_version: str, parts: dict[str, float], rows: int) -> None:
        """Note one step's parts, in seconds."""
        for part, seconds in parts.items():
            self.parts.labels(model_version, part).observe(max(0.0, seconds))
        self.occupancy.labels(model_version).observe(rows)
