"""Metrics of the management controllers. Entry point: `ManagementMetrics`."""

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from datum_compute.federation.latency import hop_seconds
from datum_compute.federation.removal import Held
from datum_compute.runtime import Pass

PROJECT_TO_HUB = "project_to_hub"
HUB_TO_PROJECT = "hub_to_project"
HUB_TO_PROJECTION = "hub_to_projection"


class ManagementMetrics:
    """Without a registry, everything is counted and nothing is published."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        seconds = hop_seconds(registry)
        self._hops = {hop: seconds.labels(hop) for hop in (PROJECT_TO_HUB, HUB_TO_PROJECT, HUB_TO_PROJECTION)}

        self._held = {
            "deployments": _held_gauge("compute_hub_deployments_held", "Hub deployments", registry),
            "namespaces": _held_gauge("compute_hub_namespaces_held", "Hub namespaces", registry),
        }
        self.held({}, {})

    def held(self, deployments: Mapping[Held, int], namespaces: Mapping[Held, int]) -> None:
        for kind, counts in (("deployments", deployments), ("namespaces", namespaces)):
            for reason in Held:
                self._held[kind].labels(reason.value).set(counts.get(reason, 0))

    def arrived(self, hop: str, pass_: Pass) -> None:
        """Observes a hop; to be called right after the write that completes it."""
        self._hops[hop].observe(asyncio.get_running_loop().time() - pass_.since)


def _held_gauge(name: str, objects: str, registry: CollectorRegistry | None) -> Gauge:
    return Gauge(name, f"{objects} kept although their project does not have them.", ["reason"], registry=registry)
