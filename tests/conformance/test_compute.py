"""The kinds of this package in other tools: short names and columns."""

import re

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import CITY_CODE
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import Json
from tests.conformance.kinds import Place
from tests.conformance.server import Server
from tests.kubectl import Kubectl
from tests.scenarios.federation import placement, template

pytestmark = pytest.mark.usefixtures("compute")

IMAGE = "registry.example/hello:1"
_COUNTS: Json = dict.fromkeys(("replicas", "currentReplicas", "updatedReplicas"), 2)
STATUS: Json = _COUNTS | {"desiredReplicas": 3, "readyReplicas": 1}


def deployed(server: Server, place: Place) -> None:
    """One object of each kind, as the controllers would write them."""
    spec = {"template": template(IMAGE), "placements": [placement("main", ["DFW", "AMS"], 3)]}
    workload = server.create(WORKLOAD.path(place.name), WORKLOAD.body("web", place.name) | {"spec": spec})
    reference = {"name": "web", "uid": workload["metadata"]["uid"]}
    spec = {
        "workloadRef": reference,
        "placementName": "main",
        "cityCode": "DFW",
        "template": template(IMAGE),
        "scaleSettings": {"minReplicas": 3},
    }
    body = WORKLOAD_DEPLOYMENT.body("web-main-dfw", place.name) | {"spec": spec}
    server.create(WORKLOAD_DEPLOYMENT.path(place.name), body)
    body = INSTANCE.body("web-main-dfw-0", place.name, labels={CITY_CODE: "DFW"}) | {"spec": template(IMAGE)["spec"]}
    server.create(INSTANCE.path(place.name), body)
    for path, status in (
        (WORKLOAD.path(place.name, "web", "status"), STATUS | {"deployments": 2}),
        (WORKLOAD_DEPLOYMENT.path(place.name, "web-main-dfw", "status"), STATUS),
    ):
        server.merge(path, {"status": status})


def cells(block: str) -> dict[str, str]:
    """The only row of a table, by column."""
    head, row = block.splitlines()
    starts = [word.start() for word in re.finditer(r"\S+( \S+)*", head)]
    ends = [*starts[1:], None]
    return {head[start:end].strip(): row[start:end].strip() for start, end in zip(starts, ends, strict=True)}


def test_short_names_and_columns(server: Server, place: Place, kubectl: Kubectl) -> None:
    deployed(server, place)
    output = kubectl("get", "wl,wd,inst", f"--namespace={place.name}")
    workload, deployment, instance = map(cells, output.strip().split("\n\n"))
    assert workload["NAME"] == "workload.compute.datumapis.com/web"
    counts: Json = {"REPLICAS": "2", "READY": "1", "DESIRED": "3", "UP-TO-DATE": "2"}
    assert counts.items() | {("DEPLOYMENTS", "2"), ("IMAGE", IMAGE)} <= workload.items()
    assert counts.items() | {("CITY", "DFW"), ("IMAGE", IMAGE)} <= deployment.items()
    assert {("CITY", "DFW"), ("IMAGE", IMAGE)} <= instance.items()
    assert all(re.fullmatch(r"\d+s", row["AGE"]) for row in (workload, deployment, instance))


@pytest.mark.parametrize(
    ("short", "plural"), [("wl", "workloads"), ("wd", "workloaddeployments"), ("inst", "instances")]
)
def test_discovery_has_the_short_names(server: Server, short: str, plural: str) -> None:
    resources = server.get("/apis/compute.datumapis.com/v1alpha")["resources"]
    assert [resource["name"] for resource in resources if resource.get("shortNames") == [short]] == [plural]
