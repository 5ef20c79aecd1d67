import pytest
from msgspec import Raw

from datum_compute.answers.owners import Owner, Owners, has_owner_labels
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import CITY_CODE, DEPLOYMENT_NAME, PLACEMENT_NAME, WORKLOAD_NAME
from datum_compute.kube.meta import ObjectMeta, encode
from tests.cli.conftest import template

ALL = {WORKLOAD_NAME: "shop", PLACEMENT_NAME: "default", CITY_CODE: "DFW"}
DEPLOYMENT = WorkloadDeployment(
    ObjectMeta(name="shop-default-dfw"),
    Raw(
        encode(
            {
                "workloadRef": {"name": "shop", "uid": "u"},
                "placementName": "default",
                "cityCode": "DFW",
                "template": template(),
                "scaleSettings": {"minReplicas": 1},
            }
        )
    ),
)


def instance(name: str, labels: dict[str, str]) -> Instance:
    return Instance(ObjectMeta(name=name, labels=labels))


@pytest.mark.parametrize(
    ("name", "labels", "owner"),
    [
        ("anything", ALL, Owner("shop", "default", "DFW")),
        ("anything", {DEPLOYMENT_NAME: "shop-default-dfw"}, Owner("shop", "default", "DFW")),
        ("shop-default-dfw-12", {}, Owner("shop", "default", "DFW")),
        ("shop-default-dfw-12", {CITY_CODE: "AMS"}, Owner("shop", "default", "AMS")),
        ("other-default-dfw-0", {}, Owner("orphaned", "unknown", "unknown")),
    ],
)
def test_the_owner_is_found_by_labels_then_deployment_then_name(
    name: str, labels: dict[str, str], owner: Owner
) -> None:
    assert Owners([DEPLOYMENT]).of(instance(name, labels)) == owner


def test_deployments_are_needed_only_where_a_label_is_missing() -> None:
    assert has_owner_labels(instance("x", ALL))
    assert not has_owner_labels(instance("x", ALL | {CITY_CODE: ""}))
