"""Which of several cells serves a city, and how a cell recognises it."""

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.karmada import CLUSTER, Cluster
from datum_compute.federation.sites import is_served_elsewhere, serving_cluster
from datum_compute.kube.meta import decode, encode

SERVING = "compute.datumapis.com/serving-cluster"
HERE = "work.karmada.io/namespace"


def cluster(name: str, city: str, created: str) -> Cluster:
    labels = {"topology.datum.net/city-code": city} if city else {}
    return decode(encode(CLUSTER.body(name, labels=labels, creationTimestamp=created)), Cluster)


@pytest.mark.parametrize(
    ("clusters", "serving"),
    [
        ([], ""),
        ([("a", "AMS", "2026-01-01T00:00:00Z")], ""),
        ([("a", "DFW", "2026-01-01T00:00:00Z")], "a"),
        ([("a", "DFW", "2026-01-02T00:00:00Z"), ("b", "DFW", "2026-01-01T00:00:00Z")], "b"),
        ([("b", "DFW", "2026-01-01T00:00:00Z"), ("a", "DFW", "2026-01-01T00:00:00Z")], "a"),
        ([("a", "DFW", ""), ("b", "DFW", "2026-01-01T00:00:00Z")], "b"),
        ([("a", "dfw", "2026-01-01T00:00:00Z"), ("b", "DFW", "2026-01-02T00:00:00Z")], "b"),
        ([("a", "", "2026-01-01T00:00:00Z")], ""),
    ],
)
def test_the_oldest_cluster_of_a_city_serves_it(clusters: list[tuple[str, str, str]], serving: str) -> None:
    assert serving_cluster([cluster(*fields) for fields in clusters], "DFW") == serving


def test_no_cluster_serves_a_city_without_a_name() -> None:
    assert serving_cluster([cluster("a", "", "2026-01-01T00:00:00Z")], "") == ""


@pytest.mark.parametrize(
    ("annotations", "elsewhere"),
    [
        ({}, False),
        ({SERVING: "a"}, False),
        ({HERE: "karmada-es-a"}, False),
        ({SERVING: "a", HERE: "karmada-es-a"}, False),
        ({SERVING: "a", HERE: "karmada-es-b"}, True),
        ({SERVING: "", HERE: "karmada-es-b"}, False),
    ],
)
def test_the_annotations_of_a_copy_show_whether_another_cell_serves_it(
    annotations: dict[str, str], elsewhere: bool
) -> None:
    copy = decode(encode(WORKLOAD_DEPLOYMENT.body("web", "ns-1", annotations=annotations)), WorkloadDeployment)
    assert is_served_elsewhere(copy) is elsewhere
