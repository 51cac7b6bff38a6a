"""What bounds a lane, and what it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.scheduler.core.replica import Replica


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Policy of one lane; the worker's own capacity comes from its Describe."""

    pipeline_depth: int = 1  # steps in flight per replica
    chunk_tokens: int = 256  # most prompt tokens of one sequence a step, when anyone else is present
    step_target_s: float = math.inf  # of a step that computes prompts beside decodes, which wait for it
    watermark: float = 0.05  # share of the pool left free when a sequence comes in beside others
    max_queue_s: float = 30.0  # predicted wait beyond which new work is refused
    max_queue_pools: float = 8.0  # pages that work may need beyond the pool, in whole pools
    prefix_wait_s: float = 10.0  # longest wait for a page that another sequence computes
    bypass_s: float = 5.0  # wait after which a sequence is neither passed nor left to a freer peer
    weights: tuple[float, float, float] = (8.0, 4.0, 1.0)  # of INTERACTIVE, STANDARD, BATCH
    aging_tokens_per_s: float = 100.0  # credit for each second waited
    aging_cap_tokens: float = 4096.0  # most credit a wait can earn
    max_choices: int = 128

    def __post_init__(self) -> None:
        """Refuse values that could not work."""
        if self.pipeline_depth not in {1, 2}:
            raise ValueError(f"pipeline_depth must be 1 or 2, not {self.pipeline_depth}")
        if self.chunk_tokens < 1 or self.max_choices < 1:
            raise ValueError("chunk_tokens and max_choices must be at least 1")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be a share below 1, not {self.watermark}")
        if self.step_target_s <= 0:
            raise ValueError(f"step_target_s must be positive, not {self.step_target_s}")
        if min(self.weights) <= 0:
            raise ValueError(f"weights must be positive, not {self.weights}")


@dataclass(slots=True)
class Counters:
    """What happened in a lane since it was made."""

    steps: int = 0
    scheduled_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    preemptions: int = 0
    resumed_sequences: int = 0
    recomputed_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    deadline_misses: int = 0
    workers_lost: int = 0
    row_errors: int = 0
    stale_results: int = 0
    refusals: dict[str, int] = field(default_factory=dict)

    def refuse(self, reason: str) -> None:
        """Count a refusal."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """One lane's accounting at one moment."""

    replicas: int
    draining: int
    requests: int
    waiting: int  # sequences in the queue
    running: int  # sequences in slots
    free_pages: int
    cached_pages: int
    owned_pages: int
    queue_s: float  # predicted seconds of waiting work, all classes
    last_step_at: float | None


def lane_status(
    replicas: Collection[Replica], requests: int, waiting: int, queue_s: float, last_step_at: float | None
) -> LaneStatus:
    """Add a lane's workers up."""
    return LaneStatus(
        replicas=len(replicas),
        draining=sum(one.draining for one in replicas),
        requests=requests,
        waiting=waiting,
        running=sum(len(one.running) for one in replicas),
        free_pages=sum(one.pool.free for one in replicas),
        cached_pages=sum(one.pool.cached for one in replicas),
        owned_pages=sum(one.pool.owned for one in replicas),
        queue_s=queue_s,
        last_step_at=last_step_at,
    )
