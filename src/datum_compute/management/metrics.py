"""What the management controllers measure. Entry point: `ManagementMetrics`."""

import asyncio

from prometheus_client import CollectorRegistry

from datum_compute.federation.hops import hop_seconds
from datum_compute.runtime.requests import Pass

PROJECT_TO_HUB = "project_to_hub"
HUB_TO_PROJECT = "hub_to_project"
HUB_TO_PROJECTION = "hub_to_projection"


class ManagementMetrics:
    """Without a registry nobody reads the figures, and nothing else changes."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        seconds = hop_seconds(registry)
        self._hops = {hop: seconds.labels(hop) for hop in (PROJECT_TO_HUB, HUB_TO_PROJECT, HUB_TO_PROJECTION)}

    def arrived(self, hop: str, pass_: Pass) -> None:
        """Called right after the write that completes the hop."""
        self._hops[hop].observe(asyncio.get_running_loop().time() - pass_.since)
