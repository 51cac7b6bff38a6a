"""A worker's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kit.metrics import REGISTRY, STEP_BUCKETS

if TYPE_CHECKING:
    from services.worker.core.ports import Engine
    from tokenloom.api.worker.v1 import worker_pb2


class WorkerMetrics:
    """Steps by their parts, the time that loading took, and the size of the KV pool."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.steps = Counter("tokenloom_worker_steps", "Steps executed.", registry=registry)
        self.rows = Counter("tokenloom_worker_rows", "Rows computed in all steps.", registry=registry)
        self.row_errors = Counter(
            "tokenloom_worker_row_errors", "Rows that failed, by reason.", ["reason"], registry=registry
        )
        self.parts = Histogram(
            "tokenloom_worker_step_seconds",
            "A step's time in the worker, by part.",
            ["part"],
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self.load_seconds = Gauge(
            "tokenloom_worker_load_seconds", "Seconds that loading the model took.", registry=registry
        )

        self.kv_token_bytes = Gauge(
            "tokenloom_worker_kv_bytes_per_token",
            "Bytes of KV that one token takes over all layers.",
            registry=registry,
        )
        self.kv_pool_bytes = Gauge(
            "tokenloom_worker_kv_pool_bytes", "Bytes of the KV pool's pages.", registry=registry
        )

    def loaded(self, engine: Engine, seconds: float) -> None:
        """Tell what was loaded."""
        self.load_seconds.set(seconds)
        self.kv_token_bytes.set(engine.kv_bytes_per_token)
        self.kv_pool_bytes.set(engine.kv_bytes_per_token * engine.page_size * engine.page_count)

    def observe(self, result: worker_pb2.StepResult, rows: int) -> None:
        """Count one executed step."""
        self.steps.inc()
        self.rows.inc(rows)
        self.parts.labels("queue").observe(result.queue_us / 1e6)
        self.parts.labels("forward").observe(result.forward_us / 1e6)
        self.parts.labels("sample").observe(result.sample_us / 1e6)
        for error in result.row_error:
            self.row_errors.labels(error.reason).inc()
