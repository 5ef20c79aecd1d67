"""The engine that `make engine-up` brought up, and a hub namespace of its own for each test.

These tests never bring an engine up themselves; without ENGINE=1 they are skipped.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.federation.policy import city_policy
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from engine.api import Api, until
from engine.harness import Engine
from engine.settings import CELLS, HUB_PLANE
from tests.engine.running import running_engine

T = TypeVar("T")

CELL_FINALIZER = "compute.datumapis.com/workload-controller"


class Place:
    """One namespace, on the hub and in the cells."""

    def __init__(self, planes: Mapping[str, Api]) -> None:
        self.name = f"ns-{secrets.token_hex(4)}"
        self.hub = planes[HUB_PLANE]
        self.cells = {name: planes[name] for name in CELLS}

    @property
    def dfw(self) -> Api:
        return self.cells["pop-dfw"]

    @property
    def ord(self) -> Api:
        return self.cells["pop-ord"]

    def create(self, **metadata: Any) -> None:
        self.hub.create(NAMESPACE.body(self.name, **metadata))

    def deploy(self, name: str = "web", city: str = "DFW", **metadata: Any) -> Json:
        """A hub WorkloadDeployment as the federator makes it."""
        labels = {TOPOLOGY_CITY: city, **metadata.pop("labels", {})}
        body = WORKLOAD_DEPLOYMENT.body(name, self.name, labels=labels, **metadata)
        return self.hub.create(body | {"spec": spec(city)})

    def route(self, city: str = "DFW") -> Json:
        """The policy of a city, as the federator makes it."""
        return self.hub.create(city_policy(self.name, city))

    def route_to_all(self) -> Json:
        """A policy that sends everything labelled DFW to the cells of both cities, as if they were in one."""
        policy = city_policy(self.name, "DFW")
        cities = {"matchExpressions": [{"key": TOPOLOGY_CITY, "operator": "In", "values": ["DFW", "ORD"]}]}
        policy["spec"]["placement"]["clusterAffinity"]["labelSelector"] = cities
        return self.hub.create(policy)

    def find(self, plane: Api, name: str = "web", kind: Kind[Any] = WORKLOAD_DEPLOYMENT) -> Json | None:
        return plane.find(kind.api_version, kind.name, name, self.name if kind.namespaced else "")

    def get(self, plane: Api, name: str = "web", kind: Kind[Any] = WORKLOAD_DEPLOYMENT) -> Json:
        found = self.find(plane, name, kind)
        assert found is not None, f"{plane.plane} has no {kind.name} {name}"
        return found

    def until(
        self,
        plane: Api,
        check: Callable[[Json], object],
        name: str = "web",
        kind: Kind[Any] = WORKLOAD_DEPLOYMENT,
        seconds: float = 30,
    ) -> Json:
        """The object as soon as it is there and passes."""

        def passing() -> Json | None:
            found = self.find(plane, name, kind)
            return found if found is not None and check(found) else None

        return until(f"{kind.name} {name} in {plane.plane}", passing, seconds)

    def arrived(self, plane: Api, name: str = "web", seconds: float = 30) -> Json:
        return self.until(plane, lambda found: True, name, seconds=seconds)

    def gone(self, plane: Api, name: str = "web", kind: Kind[Any] = WORKLOAD_DEPLOYMENT, seconds: float = 30) -> None:
        until(f"{name} gone from {plane.plane}", lambda: self.find(plane, name, kind) is None, seconds)

    def report(self, plane: Api, status: Json, name: str = "web") -> None:
        """Writes a status as the cell's controller does: again when Karmada wrote in between."""
        until(
            f"status of {name} in {plane.plane}",
            lambda: plane.replace(self.get(plane, name) | {"status": status}, "status"),
        )

    def bindings(self) -> list[Json]:
        return self.hub.items("work.karmada.io/v1alpha2", "ResourceBinding", self.name)

    def remove(self) -> None:
        """Everything on the hub, and what became of it. Namespaces are not waited for: they take 5 s on each plane."""
        for kind in (WORKLOAD_DEPLOYMENT, PROPAGATION_POLICY):
            for found in self._all(self.hub, kind):
                self.hub.delete(found)
        for cell in self.cells.values():
            until(f"nothing left of {self.name} in {cell.plane}", lambda cell=cell: self._emptied(cell), 20)  # type: ignore[misc]
        self.hub.delete(NAMESPACE.body(self.name))

    def _emptied(self, cell: Api) -> bool:
        left = self._all(cell, WORKLOAD_DEPLOYMENT)
        for found in left:
            if found["metadata"].get("finalizers"):
                cell.merge(found, {"metadata": {"finalizers": None}})
        return not left

    def _all(self, plane: Api, kind: Kind[Any]) -> list[Json]:
        found = plane.items(kind.api_version, kind.name, self.name)
        return [item | {"apiVersion": kind.api_version, "kind": kind.name} for item in found]


@pytest.fixture(scope="session")
def engine() -> Engine:
    return running_engine()


@pytest.fixture(scope="session")
def planes(engine: Engine) -> Iterator[dict[str, Api]]:
    apis = {plane.name: engine.api(plane.name) for plane in engine.planes()}
    yield apis
    for api in apis.values():
        api.close()


@pytest.fixture
def bare_place(planes: dict[str, Api]) -> Iterator[Place]:
    """A name for a namespace that the test creates itself."""
    place = Place(planes)
    yield place
    place.remove()


@pytest.fixture
def place(bare_place: Place) -> Place:
    bare_place.create()
    return bare_place


def spec(city: str) -> Json:
    runtime = {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {"containers": [{"name": "web", "image": "example.org/web:1"}]},
    }
    return {
        "workloadRef": {"name": "web", "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"},
        "placementName": "main",
        "cityCode": city,
        "template": {"spec": {"runtime": runtime, "networkInterfaces": [{"network": {"name": "default"}}]}},
        "scaleSettings": {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady"},
    }


def carries(wanted: Mapping[str, object], actual: Mapping[str, object]) -> bool:
    return wanted.items() <= actual.items()
