"""The registry's metrics, read from its state when they are scraped."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from services.registry.adapters.catalog import Catalog
    from services.registry.adapters.deployments import Deployments
    from services.registry.core.assignments import Assignments


class RegistryCollector(Collector):
    """Model versions, workers by state, deployment events."""

    def __init__(self, catalog: Catalog, assignments: Assignments, deployments: Deployments) -> None:
        self._catalog = catalog
        self._assignments = assignments
        self._deployments = deployments

    def collect(self) -> Iterator[Metric]:
        """Read the state; called from the metrics thread, hence the copies."""
        yield GaugeMetricFamily(
            "tokenloom_registry_model_versions", "Verified model versions.", value=self._catalog.count
        )
        yield CounterMetricFamily(
            "tokenloom_registry_refused_versions",
            "Artifacts refused as damaged.",
            value=self._catalog.refused,
        )
        workers = GaugeMetricFamily(
            "tokenloom_registry_workers", "Workers with a lease.", labels=["model_version", "state"]
        )
        leases = list(self._assignments.leases)
        for (version, state), count in Counter(
            (lease.model_version, lease.state) for lease in leases
        ).items():
            workers.add_metric([version, state.value], count)
        yield workers
        yield CounterMetricFamily(
            "tokenloom_registry_expired_leases", "Leases that ran out.", value=self._assignments.expired
        )
        yield CounterMetricFamily(
            "tokenloom_registry_events", "Deployment events stored.", value=self._deployments.published
        )
        yield GaugeMetricFamily(
            "tokenloom_registry_events_waiting",
            "Deployment events not yet stored.",
            value=self._deployments.pending,
        )
