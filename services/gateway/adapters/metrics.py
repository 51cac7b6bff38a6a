"""The gateway's metrics, by model version and a bounded number of tenants; also under the names that vLLM's
dashboards and routers read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from kit.metrics import CANCEL_BUCKETS, ITL_BUCKETS, REQUEST_BUCKETS, TTFT_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from kit.errors import ServiceError
    from kit.outbox import Outbox
    from services.gateway.app.generations import Generations
    from services.gateway.core.outcome import Closed

_LABELS = ("model_version", "tenant")
OTHER_TENANTS = "other"


class Instruments:
    """Every metric that is counted as things happen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"tokenloom_gateway_{name}", help_text, _LABELS, buckets=buckets, registry=registry
            )

        def counter(name: str, help_text: str, *more: str) -> Counter:
            return Counter(f"tokenloom_gateway_{name}", help_text, (*_LABELS, *more), registry=registry)

        self.ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS)
        self.itl = histogram("inter_token_latency_seconds", "Gap between tokens.", ITL_BUCKETS)
        self.total = histogram("request_duration_seconds", "Arrival to end.", REQUEST_BUCKETS)
        self.queue = histogram("queue_seconds", "Acceptance to first prefill step.", REQUEST_BUCKETS)
        self.cancel_to_free = histogram(
            "cancel_to_free_seconds",
            "A client's going, or a cancel's arrival, until the scheduler says that its pages are free.",
            CANCEL_BUCKETS,
        )
        self.input = counter("input_tokens", "Prompt tokens billed.")
        self.cached = counter("cached_tokens", "Prompt tokens from the prefix cache.")
        self.output = counter("output_tokens", "Output tokens.")
        self.requests = counter("requests", "Accepted requests by end.", "finish_reason")
        self.refusals = Counter(
            "tokenloom_gateway_refusals", "Requests not taken.", ("reason",), registry=registry
        )


class TenantMeter:
    """`Meter` of one model version and tenant, its labels looked up once."""

    def __init__(self, instruments: Instruments, labels: tuple[str, str]) -> None:
        self._instruments, self._labels = instruments, labels
        self.first_token = instruments.ttft.labels(*labels).observe
        self.next_token = instruments.itl.labels(*labels).observe
        self.freed = instruments.cancel_to_free.labels(*labels).observe

    def ended(self, closed: Closed) -> None:
        """A request was closed."""
        to, labels = self._instruments, self._labels
        to.total.labels(*labels).observe(closed.total_ms / 1000)
        to.queue.labels(*labels).observe(closed.queue_ms / 1000)
        to.input.labels(*labels).inc(closed.input_tokens)
        to.cached.labels(*labels).inc(closed.cached_tokens)
        to.output.labels(*labels).inc(closed.output_tokens)
        to.requests.labels(*labels, closed.finish_reason.label).inc()


class TenantMeters:
    """`Meters` with the first `tenant_limit` tenants by name and the rest as one."""

    def __init__(self, registry: CollectorRegistry, tenant_limit: int) -> None:
        self._instruments = Instruments(registry)
        self._tenant_limit = tenant_limit
        self._tenants: set[str] = set()
        self._meters: dict[tuple[str, str], TenantMeter] = {}
        registry.register(VllmNames(self._instruments))

    def of(self, model_version: str, tenant_id: str) -> TenantMeter:
        """The meter of a model version and tenant."""
        if tenant_id not in self._tenants:
            if len(self._tenants) < self._tenant_limit:
                self._tenants.add(tenant_id)
            else:
                tenant_id = OTHER_TENANTS
        labels = (model_version, tenant_id)
        if labels not in self._meters:
            self._meters[labels] = TenantMeter(self._instruments, labels)
        return self._meters[labels]

    def refused(self, error: ServiceError) -> None:
        """A request was not taken."""
        self._instruments.refusals.labels(error.reason).inc()


class VllmNames(Collector):
    """The same numbers under vLLM's names, made when somebody reads them."""

    def __init__(self, instruments: Instruments) -> None:
        self._named = {
            "vllm:time_to_first_token_seconds": instruments.ttft,
            "vllm:time_per_output_token_seconds": instruments.itl,
            "vllm:inter_token_latency_seconds": instruments.itl,
            "vllm:e2e_request_latency_seconds": instruments.total,
            "vllm:request_queue_time_seconds": instruments.queue,
            "vllm:prompt_tokens": instruments.input,
            "vllm:generation_tokens": instruments.output,
            "vllm:request_success": instruments.requests,
        }

    def collect(self) -> Iterable[Metric]:
        """Every metric with its name and labels changed."""
        for name, source in self._named.items():
            for metric in source.collect():
                kind = HistogramMetricFamily if metric.type == "histogram" else CounterMetricFamily
                renamed = kind(name, metric.documentation)
                for sample in metric.samples:
                    labels = {_VLLM_LABELS.get(key, key): value for key, value in sample.labels.items()}
                    suffix = sample.name.removeprefix(metric.name)
                    renamed.add_sample(name + suffix, labels, sample.value)
                yield renamed


_VLLM_LABELS = {"model_version": "model_name", "finish_reason": "finished_reason"}


class LiveState(Collector):
    """What is open now: streams by model version, and the outbox."""

    def __init__(self, generations: Generations, outbox: Outbox) -> None:
        self._generations, self._outbox = generations, outbox

    def collect(self) -> Iterable[Metric]:
        """Count what lives."""
        streams = GaugeMetricFamily(
            "tokenloom_gateway_streams_open", "Open requests.", labels=["model_version"]
        )
        running = GaugeMetricFamily(
            "vllm:num_requests_running", "Requests with tokens.", labels=["model_name"]
        )
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests without.", labels=["model_name"])
        counts: dict[str, list[int]] = {r.model_version: [0, 0] for r in self._generations.models()}
        for generation in self._generations.live:
            counts.setdefault(generation.model_version, [0, 0])[generation.started] += 1
        for model_version, (idle, busy) in counts.items():
            streams.add_metric([model_version], idle + busy)
            running.add_metric([model_version], busy)
            waiting.add_metric([model_version], idle)
        yield from (streams, running, waiting)
        outbox = self._outbox
        for name, text, value in (
            ("events", "Usage events not yet published.", outbox.pending),
            ("bytes", "Their size.", outbox.pending_bytes),
            ("age_seconds", "Age of the oldest of them.", outbox.oldest_age_s),
        ):
            yield GaugeMetricFamily(f"tokenloom_gateway_outbox_{name}", text, value)
