"""Metrics of the management controllers. Entry point: `ManagementMetrics`."""

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from datum_compute.federation import metrics as table
from datum_compute.federation.metrics import HUB_TO_PROJECT, HUB_TO_PROJECTION, PROJECT_TO_HUB
from datum_compute.federation.removal import Held
from datum_compute.runtime import Pass


class ManagementMetrics:
    """Without a registry, everything is counted and nothing is published."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        seconds = table.HOP_SECONDS.histogram(registry)
        self._hops = {hop: seconds.labels(hop) for hop in (PROJECT_TO_HUB, HUB_TO_PROJECT, HUB_TO_PROJECTION)}
        removed = table.LEFTOVERS_REMOVED.counter(registry)
        self._removed_deployments = removed.labels(table.REMOVED_FROM_HUB)
        self._removed_namespaces = removed.labels(table.REMOVED_NAMESPACE)
        self._deployments_held = table.HUB_DEPLOYMENTS_HELD.gauge(registry)
        self._namespaces_held = table.HUB_NAMESPACES_HELD.gauge(registry)
        self.held({}, {})

    def held(self, deployments: Mapping[Held, int], namespaces: Mapping[Held, int]) -> None:
        for gauge, counts in ((self._deployments_held, deployments), (self._namespaces_held, namespaces)):
            for reason in Held:
                gauge.labels(reason.value).set(counts.get(reason, 0))

    def removed_deployment(self) -> None:
        self._removed_deployments.inc()

    def removed_namespace(self) -> None:
        self._removed_namespaces.inc()

    def arrived(self, hop: str, pass_: Pass) -> None:
        """Observes a hop; to be called right after the write that completes it."""
        self._hops[hop].observe(asyncio.get_running_loop().time() - pass_.since)
