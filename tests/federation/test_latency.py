"""controllers.md 11.6: one histogram of hops, whoever reports them."""

from prometheus_client import CollectorRegistry

from datum_compute.federation.latency import hop_seconds

NAME = "compute_federation_hop_seconds"


def test_management_and_cells_of_one_process_share_it() -> None:
    registry = CollectorRegistry()
    assert hop_seconds(registry) is hop_seconds(registry)
    hop_seconds(registry).labels("cell_to_hub").observe(0.2)
    hop_seconds(registry).labels("project_to_hub").observe(3)
    assert registry.get_sample_value(f"{NAME}_sum", {"hop": "cell_to_hub"}) == 0.2
    assert registry.get_sample_value(f"{NAME}_bucket", {"hop": "project_to_hub", "le": "2.5"}) == 0
    assert registry.get_sample_value(f"{NAME}_bucket", {"hop": "project_to_hub", "le": "5.0"}) == 1


def test_two_registries_have_one_each() -> None:
    assert hop_seconds(CollectorRegistry()) is not hop_seconds(CollectorRegistry())


def test_without_a_registry_it_is_counted_and_published_nowhere() -> None:
    assert hop_seconds(None) is not hop_seconds(None)
    hop_seconds(None).labels("cell_to_hub").observe(1)
