"""One histogram of hops per registry, whoever reports them."""

from prometheus_client import CollectorRegistry

from datum_compute.federation.latency import hop_seconds

NAME = "compute_federation_hop_seconds"


def test_management_and_cells_in_one_process_share_the_histogram() -> None:
    registry = CollectorRegistry()
    assert hop_seconds(registry) is hop_seconds(registry)
    hop_seconds(registry).labels("cell_to_hub").observe(0.2)
    hop_seconds(registry).labels("project_to_hub").observe(3)
    assert registry.get_sample_value(f"{NAME}_sum", {"hop": "cell_to_hub"}) == 0.2
    assert registry.get_sample_value(f"{NAME}_bucket", {"hop": "project_to_hub", "le": "2.5"}) == 0
    assert registry.get_sample_value(f"{NAME}_bucket", {"hop": "project_to_hub", "le": "5.0"}) == 1


def test_each_registry_has_its_own_histogram() -> None:
    assert hop_seconds(CollectorRegistry()) is not hop_seconds(CollectorRegistry())


def test_without_a_registry_nothing_is_published() -> None:
    assert hop_seconds(None) is not hop_seconds(None)
    hop_seconds(None).labels("cell_to_hub").observe(1)
