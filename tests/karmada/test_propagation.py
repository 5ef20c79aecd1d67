"""The embedded hub propagates our kinds as Karmada 1.18.1 was observed to."""

import asyncio
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, MANAGED, PROPAGATION_POLICY
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.records import CountedUids, RandomUids, Uids
from datum_compute.federation.policy import city_policy
from datum_compute.federation.roles import CELL, HUB
from datum_compute.karmada.propagation import HUB_GENERATION, NamespacePropagation, Propagation, aggregate
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json, as_dict, controller_reference
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.scenarios.federation import template

NS = "ns-1"
CELLS = {"cell-ams": "AMS", "cell-dfw": "DFW"}
SEEDS = range(3)


class Hub:
    """A hub and cells with only the propagation running; the connection to each cell can fail."""

    def __init__(
        self,
        simulation: Simulation,
        cells: Mapping[str, str] = CELLS,
        log: Log | None = None,
        uids: Uids | None = None,
    ) -> None:
        self.cities = dict(cells)
        self.writes = Writes()
        self.engine = compute_engine(log, clock=simulation, uids=uids or CountedUids(), generator=simulation.random)
        self.fleet = Fleet()
        has_deleted = self.engine.has_deleted
        propagations = [kind(self.fleet, "hub", has_deleted) for kind in (NamespacePropagation, Propagation)]
        self.manager = Manager(self.fleet, propagations, simulation)
        self.wires: dict[str, Faults] = {}
        for name, role in {"hub": HUB, **dict.fromkeys(self.cities, CELL)}.items():
            self.wires[name] = Faults(InProcess(self.engine.serve(name, role)), simulation.random)
            plane = Plane(name, role, self.wires[name], writes=self.writes, generator=simulation.random)
            self.fleet.add(plane)
        self.client: Client = self.engine.client("hub")
        self._simulation = simulation
        self._runs: list[asyncio.Task[None]] = []

    def cell(self, name: str = "cell-dfw") -> Client:
        return self.engine.client(name)

    async def seed(self) -> None:
        for name, city in self.cities.items():
            await self.client.create(CLUSTER, CLUSTER.body(name, labels={TOPOLOGY_CITY: city}))
        await self.client.create(NAMESPACE, NAMESPACE.body(NS))

    async def start(self) -> None:
        self._runs = [asyncio.create_task(work.run()) for work in (self.engine, self.manager)]

    async def stop(self) -> None:
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        for controller in self.manager.controllers.values():
            assert controller.crashes == []

    async def settle(self) -> None:
        """Waits until all consequences have taken effect."""
        await asyncio.sleep(5)
        await self._simulation.settle()

    async def deploy(self, name: str = "web", city: str = "DFW", **metadata: Any) -> WorkloadDeployment:
        labels = {TOPOLOGY_CITY: city, **metadata.pop("labels", {})}
        body = WORKLOAD_DEPLOYMENT.body(name, NS, labels=labels, **metadata)
        return await self.client.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec(city)})

    async def route(self, city: str = "DFW") -> None:
        await self.client.create(PROPAGATION_POLICY, city_policy(NS, city))

    async def patch(self, client: Client, patch: Json, subresource: str = "") -> WorkloadDeployment:
        return await client.merge_patch(WORKLOAD_DEPLOYMENT, "web", NS, patch, subresource)

    async def original(self, name: str = "web") -> WorkloadDeployment:
        return await self.client.get(WORKLOAD_DEPLOYMENT, name, NS)

    async def copy(self, cell: str = "cell-dfw", name: str = "web") -> WorkloadDeployment | None:
        """The copy in the cell at rest."""
        await self.settle()
        try:
            return await self.cell(cell).get(WORKLOAD_DEPLOYMENT, name, NS)
        except NotFound:
            return None

    async def copied(self, cell: str = "cell-dfw", name: str = "web") -> WorkloadDeployment:
        copy = await self.copy(cell, name)
        assert copy is not None
        return copy

    async def namespace(self, cell: str = "cell-dfw", name: str = NS) -> Namespace | None:
        await self.settle()
        try:
            return await self.cell(cell).get(NAMESPACE, name)
        except NotFound:
            return None


def spec(city: str = "DFW", replicas: int = 1) -> Json:
    return {
        "workloadRef": {"name": "web", "uid": "1"},
        "placementName": "main",
        "cityCode": city,
        "template": template(),
        "scaleSettings": {"minReplicas": replicas, "instanceManagementPolicy": "OrderedReady"},
    }


def status(count: int, available: str = "True", **more: Any) -> Json:
    names = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")
    return {**dict.fromkeys(names, count), "conditions": [condition("Available", available)], **more}


def condition(type_: str, status: str, reason: str = "Because") -> Json:
    moment = "2026-06-01T12:00:00Z"
    return {"type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": moment}


@pytest.fixture
def hub(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Hub]:
    hub = Hub(simulation)
    runner.run(hub.seed())
    runner.run(hub.start())
    yield hub
    runner.run(hub.stop())


@pytest.fixture
def web(runner: asyncio.Runner, hub: Hub) -> Hub:
    """A federation with a deployment that has been propagated to DFW."""
    runner.run(hub.route())
    runner.run(hub.deploy(labels={"a": "1"}, annotations={"b": "2"}))
    runner.run(hub.copied())
    return hub


# namespaces


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_hub_namespace_is_copied_to_every_cell_with_labels_and_annotations(hub: Hub, seed: int) -> None:
    await hub.client.create(NAMESPACE, NAMESPACE.body("ns-2", labels={"a": "1"}, annotations={"b": "2"}))
    for cell in CELLS:
        copy = await hub.namespace(cell, "ns-2")
        assert copy is not None
        assert copy.metadata.labels.items() >= {"a": "1", MANAGED: "true"}.items()
        assert copy.metadata.annotations["b"] == "2"


async def test_later_changes_of_a_namespace_follow_and_the_cells_own_marks_stay(hub: Hub) -> None:
    await hub.client.create(NAMESPACE, NAMESPACE.body("ns-2", labels={"a": "1", "b": "2"}))
    await hub.namespace(name="ns-2")
    own = {"metadata": {"labels": {"own": "yes"}, "annotations": {"own": "yes"}}}
    await hub.cell().merge_patch(NAMESPACE, "ns-2", "", own)
    changes = {"metadata": {"labels": {"a": None, "b": "3", "c": "4"}}}
    await hub.client.merge_patch(NAMESPACE, "ns-2", "", changes)
    copy = await hub.namespace(name="ns-2")
    assert copy is not None
    assert copy.metadata.labels.items() >= {"b": "3", "c": "4", "own": "yes"}.items()
    assert "a" not in copy.metadata.labels
    assert copy.metadata.annotations["own"] == "yes"


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_namespace_is_deleted_with_its_original_and_recreated_otherwise(web: Hub, seed: int) -> None:
    await web.cell().delete(NAMESPACE, NS)
    assert await web.namespace() is not None
    assert await web.copy() is not None
    await web.client.delete(NAMESPACE, NS)
    assert await web.copy() is None
    assert [await web.namespace(cell) for cell in CELLS] == [None, None]


@pytest.mark.parametrize(
    ("name", "copied"), [("default", False), ("kube-system", False), ("karmada-system", False), ("default-2", True)]
)
async def test_namespaces_of_the_system_are_not_copied(hub: Hub, name: str, copied: bool) -> None:
    await hub.client.create(NAMESPACE, NAMESPACE.body(name))
    assert (await hub.namespace(name=name) is not None) == copied


async def test_a_cells_own_namespace_is_left_alone(hub: Hub) -> None:
    await hub.cell().create(NAMESPACE, NAMESPACE.body("own"))
    assert await hub.namespace(name="own") is not None


async def test_a_cluster_that_joins_later_gets_all_namespaces(hub: Hub) -> None:
    await hub.client.delete(CLUSTER, "cell-dfw")
    await hub.client.create(NAMESPACE, NAMESPACE.body("ns-2"))
    await hub.route()
    await hub.deploy()
    assert await hub.namespace(name="ns-2") is None
    assert await hub.copy() is None
    await hub.client.create(CLUSTER, CLUSTER.body("cell-dfw", labels={TOPOLOGY_CITY: "DFW"}))
    assert await hub.namespace(name="ns-2") is not None
    assert await hub.copy() is not None


async def test_a_cluster_that_starts_to_serve_a_city_gets_its_deployments_and_keeps_the_others(web: Hub) -> None:
    await web.route("AMS")
    await web.deploy("ams", "AMS")
    assert await web.copy(name="ams") is None
    await web.client.merge_patch(CLUSTER, "cell-dfw", "", {"metadata": {"labels": {TOPOLOGY_CITY: "AMS"}}})
    assert await web.copy(name="ams") is not None
    assert await web.copy(name="web") is not None


# down


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy_first", [True, False])
async def test_a_policy_applies_whether_created_before_or_after_the_object(
    hub: Hub, policy_first: bool, seed: int
) -> None:
    if policy_first:
        await hub.route()
    await hub.deploy()
    if not policy_first:
        assert await hub.copy() is None
        await hub.route()
    assert await hub.copy() is not None
    assert await hub.copy("cell-ams") is None


async def test_a_copy_has_the_spec_labels_and_annotations_of_the_hub_and_its_generation(web: Hub) -> None:
    copy = await web.copied()
    assert as_dict(copy.spec_json) == spec()
    assert copy.metadata.labels == {TOPOLOGY_CITY: "DFW", "a": "1", MANAGED: "true"}
    assert copy.metadata.annotations["b"] == "2"
    assert copy.metadata.annotations[HUB_GENERATION] == "1"
    assert HUB_GENERATION == "resourcetemplate.karmada.io/generation"
    original = await web.original()
    assert original.metadata.finalizers == ()
    assert original.metadata.uid != copy.metadata.uid


async def test_the_city_decides_and_its_case_matters(hub: Hub) -> None:
    for name, city in (("here", "DFW"), ("elsewhere", "AMS"), ("lower", "dfw")):
        await hub.deploy(name, city)
    await hub.route("DFW")
    await hub.settle()
    copies = {cell: [item.name for item in (await hub.cell(cell).list(WORKLOAD_DEPLOYMENT)).items] for cell in CELLS}
    assert copies == {"cell-dfw": ["here"], "cell-ams": []}


async def test_a_policy_routes_only_its_own_namespace(hub: Hub) -> None:
    await hub.client.create(NAMESPACE, NAMESPACE.body("ns-2"))
    await hub.client.create(PROPAGATION_POLICY, city_policy("ns-2", "DFW"))
    await hub.deploy()
    assert await hub.copy() is None


async def test_a_hub_update_reaches_the_cell_and_keeps_the_cells_own_fields(web: Hub) -> None:
    own = {"labels": {"own": "1"}, "annotations": {"own": "2"}, "finalizers": ["example.test/own"]}
    await web.patch(web.cell(), {"metadata": own})
    change = {"metadata": {"labels": {"a": "9"}, "annotations": {"c": "3"}}, "spec": spec(replicas=3)}
    await web.patch(web.client, change)
    copy = await web.copied()
    assert as_dict(copy.spec_json) == spec(replicas=3)
    assert copy.metadata.labels == {TOPOLOGY_CITY: "DFW", "a": "9", "own": "1", MANAGED: "true"}
    assert copy.metadata.annotations.items() >= {"b": "2", "c": "3", "own": "2"}.items()
    assert copy.metadata.finalizers == ("example.test/own",)
    assert copy.metadata.annotations[HUB_GENERATION] == "2"


async def test_labels_and_annotations_removed_on_the_hub_are_removed_in_the_cell(web: Hub) -> None:
    await web.patch(web.client, {"metadata": {"labels": {"a": None}, "annotations": {"b": None}}})
    copy = await web.copied()
    assert copy.metadata.labels == {TOPOLOGY_CITY: "DFW", MANAGED: "true"}
    assert "b" not in copy.metadata.annotations


async def test_a_spec_field_removed_on_the_hub_is_removed_in_the_cell(web: Hub) -> None:
    settings = {"scaleSettings": {"minReplicas": 1, "maxReplicas": 5}}
    await web.patch(web.client, {"spec": settings})
    assert as_dict((await web.copied()).spec_json)["scaleSettings"]["maxReplicas"] == 5
    await web.patch(web.client, {"spec": {"scaleSettings": {"maxReplicas": None}}})
    assert as_dict((await web.copied()).spec_json) == spec()


@pytest.mark.parametrize(
    "edit",
    [
        {"spec": {"scaleSettings": {"minReplicas": 7}}},
        {"spec": {"template": {"metadata": {"labels": {"app": None, "other": "x"}}}}},
        {"metadata": {"labels": {"a": "other"}}},
        {"metadata": {"labels": {"a": None}}},
    ],
)
async def test_edits_in_the_cell_are_reverted(web: Hub, edit: Json) -> None:
    before = await web.copied()
    await web.patch(web.cell(), edit)
    after = await web.copied()
    assert as_dict(after.spec_json) == spec()
    assert after.metadata.labels == before.metadata.labels


@pytest.mark.parametrize("finalizers", [None, ["example.test/own"]])
async def test_a_copy_that_is_deleted_in_the_cell_is_recreated(web: Hub, finalizers: list[str] | None) -> None:
    first = await web.patch(web.cell(), {"metadata": {"finalizers": finalizers}})
    await web.cell().delete(WORKLOAD_DEPLOYMENT, "web", NS)
    if finalizers:
        assert (await web.copied()).metadata.deleting
        await web.patch(web.cell(), {"metadata": {"finalizers": None}})
    again = await web.copied()
    assert again.metadata.uid != first.metadata.uid
    assert as_dict(again.spec_json) == spec()


async def test_a_copy_stays_when_its_policy_is_deleted(web: Hub) -> None:
    before = await web.copied()
    await web.client.delete(PROPAGATION_POLICY, city_policy(NS, "DFW")["metadata"]["name"], NS)
    assert (await web.copied()).metadata.uid == before.metadata.uid
    await web.patch(web.client, {"spec": spec(replicas=2)})
    assert as_dict((await web.copied()).spec_json) == spec(replicas=2)
    await web.client.delete(WORKLOAD_DEPLOYMENT, "web", NS)
    assert await web.copy() is None


@pytest.mark.parametrize("seed", range(5))
async def test_an_object_moves_when_another_policy_takes_it_over(web: Hub, seed: int) -> None:
    await web.copied()
    await web.client.delete(PROPAGATION_POLICY, city_policy(NS, "DFW")["metadata"]["name"], NS)
    await web.patch(web.client, {"metadata": {"labels": {TOPOLOGY_CITY: "AMS"}}})
    await web.route("AMS")
    assert await web.copy("cell-dfw") is None
    assert (await web.copied("cell-ams")).metadata.labels[TOPOLOGY_CITY] == "AMS"


async def test_a_copy_is_deleted_with_its_original_once_its_finalizers_are_gone(web: Hub) -> None:
    await web.patch(web.cell(), {"metadata": {"finalizers": ["example.test/own"]}})
    assert await web.client.delete(WORKLOAD_DEPLOYMENT, "web", NS) is None
    assert (await web.copied()).metadata.deleting
    await web.patch(web.cell(), {"metadata": {"finalizers": None}})
    assert await web.copy() is None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("finalizers", [None, ["example.test/held"]])
async def test_an_object_deleted_and_recreated_at_once_gets_a_new_copy(
    web: Hub, finalizers: list[str] | None, seed: int
) -> None:
    before = await web.copied()
    await web.patch(web.cell(), {"metadata": {"finalizers": finalizers}})
    await web.patch(web.cell(), {"status": status(7)}, "status")
    await web.settle()
    await web.client.delete(WORKLOAD_DEPLOYMENT, "web", NS)
    await web.deploy()
    await web.settle()
    if finalizers:
        assert (await web.copied()).metadata.deleting
        assert as_dict((await web.original()).status_json) == {}, "what the old one did says nothing of the new one"
        await web.patch(web.cell(), {"metadata": {"finalizers": None}})
    after = await web.copied()
    assert after.metadata.uid != before.metadata.uid
    assert as_dict((await web.original()).status_json) == {}


async def test_an_object_of_the_cells_own_is_left_alone(hub: Hub) -> None:
    await hub.route()
    await hub.settle()
    own = WORKLOAD_DEPLOYMENT.body("own", NS, labels={TOPOLOGY_CITY: "DFW"}) | {"spec": spec()}
    await hub.cell().create(WORKLOAD_DEPLOYMENT, own)
    assert await hub.copy(name="own") is not None


async def test_a_deployment_without_a_spec_is_copied_as_well(hub: Hub) -> None:
    await hub.route()
    await hub.client.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", NS, labels={TOPOLOGY_CITY: "DFW"}))
    assert as_dict((await hub.copied()).spec_json) == {}


async def test_a_hub_instance_is_deleted_with_the_hub_deployment_that_owns_it(web: Hub) -> None:
    original = await web.original()
    owner = controller_reference(original)
    await web.client.create(INSTANCE, INSTANCE.body("web-0", NS, ownerReferences=[owner]))
    await web.client.delete(WORKLOAD_DEPLOYMENT, "web", NS)
    await web.settle()
    assert (await web.client.list(INSTANCE)).items == []


# up


async def test_the_status_of_the_cell_reaches_the_hub_unchanged(web: Hub) -> None:
    reported = status(2, "False", observedGeneration=4) | {"location": {"name": "dfw", "namespace": ""}}
    await web.patch(web.cell(), {"status": reported}, "status")
    await web.settle()
    original = await web.original()
    assert as_dict(original.status_json) == reported
    assert original.metadata.generation == 1
    await web.patch(web.cell(), {"status": status(0)}, "status")
    await web.settle()
    assert as_dict((await web.original()).status_json) == reported | status(0)


async def test_a_foreign_status_on_the_hub_is_corrected(web: Hub) -> None:
    await web.patch(web.cell(), {"status": status(2)}, "status")
    await web.settle()
    await web.patch(web.client, {"status": status(9)}, "status")
    await web.settle()
    assert as_dict((await web.original()).status_json) == status(2)


async def test_without_a_status_in_the_cell_the_hub_has_none(web: Hub) -> None:
    assert (await web.original()).status is None


@pytest.mark.parametrize("seed", SEEDS)
async def test_two_clusters_of_one_city_each_run_it_and_their_statuses_are_summed(
    simulation: Simulation, seed: int
) -> None:
    hub = Hub(simulation, {"cell-1": "DFW", "cell-2": "DFW", "cell-3": "AMS"})
    await hub.seed()
    await hub.start()
    await hub.route()
    await hub.deploy()
    assert await hub.copy("cell-3") is None
    for cell, number in (("cell-1", 1), ("cell-2", 2)):
        assert await hub.copy(cell) is not None
        await hub.patch(hub.cell(cell), {"status": status(number)}, "status")
    await hub.settle()
    total = (await hub.original()).status
    assert total is not None
    assert (total.replicas, total.ready_replicas, total.desired_replicas) == (3, 3, 3)
    await hub.stop()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cell_that_is_away_across_a_restart_counts_until_its_cluster_is_deleted(
    simulation: Simulation, seed: int
) -> None:
    cells = {"cell-1": "DFW", "cell-2": "DFW"}
    first = Hub(simulation, cells)
    await first.seed()
    await first.start()
    await first.route()
    await first.deploy()
    for cell, number in (("cell-1", 1), ("cell-2", 2)):
        copy = await first.copied(cell)
        assert not any("aggregated" in key for key in copy.metadata.annotations)
        await first.patch(first.cell(cell), {"status": status(number)}, "status")
    await first.settle()
    await first.stop()

    again = Hub(simulation, cells, log=first.engine.log)
    again.wires["cell-2"].take_away()
    await again.start()
    await again.settle()
    assert as_dict((await again.original()).status_json)["readyReplicas"] == 3
    await again.patch(again.cell("cell-1"), {"status": status(5)}, "status")
    await again.settle()
    assert as_dict((await again.original()).status_json)["readyReplicas"] == 7
    again.wires["cell-2"].bring_back()
    await asyncio.sleep(60)
    await again.patch(again.cell("cell-2"), {"status": status(3)}, "status")
    await again.settle()
    assert as_dict((await again.original()).status_json)["readyReplicas"] == 8
    await again.stop()

    last = Hub(simulation, cells, log=first.engine.log)
    last.wires["cell-2"].take_away()
    await last.client.delete(CLUSTER, "cell-2")
    await last.start()
    await last.settle()
    assert as_dict((await last.original()).status_json)["readyReplicas"] == 5
    await last.stop()


async def test_unreadable_remembered_statuses_are_rewritten(web: Hub) -> None:
    await web.patch(web.cell(), {"status": status(1)}, "status")
    broken = {"metadata": {"annotations": {"work.karmada.io/aggregated-status": "{"}}}
    await web.patch(web.client, broken)
    await web.settle()
    assert "work.karmada.io/aggregated-status" not in (await web.original()).metadata.annotations
    assert as_dict((await web.original()).status_json) == status(1)


ONE = status(1, "False", observedGeneration=5, location={"name": "first"}, future={"kept": [1, None]})
TWO = status(2, "True", observedGeneration=3, location={"name": "second"})
BARE = {"replicas": 4}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], {}),
        ([ONE], ONE),
        ([{"future": True}], {"future": True}),
        ([ONE, TWO], ONE | status(3) | {"observedGeneration": 3}),
        ([TWO, ONE], TWO | status(3) | {"observedGeneration": 3}),
        (
            [ONE, BARE],
            ONE | {"replicas": 5, "conditions": [condition("Available", "False")], "observedGeneration": 0},
        ),
        (
            [{"conditions": [condition("ReplicasReady", "False"), condition("Available", "False", "First")]},
             {"conditions": [condition("ReplicasReady", "True"), condition("Available", "False", "Second")]}],
            status(0) | {"observedGeneration": 0}
            | {"conditions": [condition("Available", "False", "First"), condition("ReplicasReady", "False")]},
        ),
        (
            [{"conditions": [condition("ReplicasReady", "False")]},
             {"conditions": [condition("Available", "Unknown", "Second")]}],
            status(0) | {"observedGeneration": 0}
            | {"conditions": [condition("Available", "Unknown", "Second"), condition("ReplicasReady", "False")]},
        ),
    ],
)  # fmt: skip
def test_statuses_of_several_cells_are_summed(statuses: list[Json], expected: Json) -> None:
    before = deepcopy(statuses)
    assert aggregate(statuses) == expected
    assert statuses == before


# trouble


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cell_that_is_not_engaged_does_not_hold_up_another(simulation: Simulation, seed: int) -> None:
    hub = Hub(simulation)
    hub.wires["cell-ams"].take_away()
    await hub.seed()
    await hub.start()
    for city in ("AMS", "DFW"):
        await hub.route(city)
        await hub.deploy(city.lower(), city)
    assert await hub.copy("cell-dfw", "dfw") is not None
    hub.wires["cell-ams"].bring_back()
    assert await hub.copy("cell-ams", "ams") is not None
    await hub.stop()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cell_that_is_away_does_not_hold_up_another_and_catches_up(web: Hub, seed: int) -> None:
    await web.deploy("gone")
    await web.copied(name="gone")
    web.wires["cell-dfw"].take_away()
    await web.route("AMS")
    await web.client.create(NAMESPACE, NAMESPACE.body("ns-2"))
    await web.deploy("ams", "AMS")
    await web.deploy("new")
    await web.patch(web.client, {"spec": spec(replicas=5)})
    await web.client.delete(WORKLOAD_DEPLOYMENT, "gone", NS)
    assert await web.copy("cell-ams", "ams") is not None
    assert await web.namespace("cell-ams", "ns-2") is not None
    assert await web.namespace(name="ns-2") is None
    web.wires["cell-dfw"].bring_back()
    await asyncio.sleep(30)
    assert await web.namespace(name="ns-2") is not None
    assert await web.copy(name="new") is not None
    assert await web.copy(name="gone") is None
    assert as_dict((await web.copied()).spec_json) == spec(replicas=5)


@pytest.mark.parametrize("seed", SEEDS)
async def test_while_a_cell_is_away_the_hub_keeps_object_and_status_and_a_delete_returns_at_once(
    web: Hub, seed: int
) -> None:
    await web.patch(web.cell(), {"status": status(1)}, "status")
    await web.settle()
    web.wires["cell-dfw"].take_away()
    await asyncio.sleep(75)
    assert as_dict((await web.original()).status_json) == status(1)
    assert await web.client.delete(WORKLOAD_DEPLOYMENT, "web", NS) is None
    assert (await web.client.list(WORKLOAD_DEPLOYMENT)).items == []
    web.wires["cell-dfw"].bring_back()
    await asyncio.sleep(30)
    assert await web.copy() is None


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_hub_that_is_away_for_a_minute_gets_the_status_and_sends_what_is_new(web: Hub, seed: int) -> None:
    await web.deploy("gone")
    await web.copied(name="gone")
    web.wires["hub"].take_away()
    await web.patch(web.cell(), {"status": status(2)}, "status")
    await asyncio.sleep(60)
    assert (await web.original()).status is None
    web.wires["hub"].bring_back()
    await web.deploy("new")
    await web.patch(web.client, {"spec": spec(replicas=5)})
    await web.client.delete(WORKLOAD_DEPLOYMENT, "gone", NS)
    await asyncio.sleep(30)
    assert as_dict((await web.original()).status_json) == status(2)
    assert as_dict((await web.copied()).spec_json) == spec(replicas=5)
    assert await web.copy(name="new") is not None
    assert await web.copy(name="gone") is None


@pytest.mark.parametrize("seed", range(6))
async def test_hub_changes_made_while_nothing_ran_are_propagated(simulation: Simulation, seed: int) -> None:
    first = Hub(simulation)
    await first.seed()
    await first.start()
    await first.route()
    await first.client.create(NAMESPACE, NAMESPACE.body("ns-2"))
    for name in ("web", "gone"):
        await first.deploy(name)
        await first.copied(name=name)
    await first.stop()
    await first.client.delete(WORKLOAD_DEPLOYMENT, "gone", NS)
    await first.client.merge_patch(NAMESPACE, "ns-2", "", {"metadata": {"labels": {"a": "1"}}})
    await first.client.create(NAMESPACE, NAMESPACE.body("ns-3"))
    await first.patch(first.client, {"spec": spec(replicas=5)})

    again = Hub(simulation, log=first.engine.log)
    await again.start()
    assert await again.copy(name="gone") is None
    assert as_dict((await again.copied()).spec_json) == spec(replicas=5)
    assert await again.namespace(name="ns-3") is not None
    changed = await again.namespace(name="ns-2")
    assert changed is not None
    assert changed.metadata.labels["a"] == "1"
    await again.stop()


async def _restored(simulation: Simulation, hub: Hub, revision: int) -> Hub:
    """The same cells with the hub restored to an earlier revision; uids that it assigns from now on are new."""
    await hub.stop()
    log = Log()
    log.append([row for row in hub.engine.log.rows() if row.plane != "hub" or row.revision <= revision])
    return Hub(simulation, log=log, uids=RandomUids())


@pytest.mark.parametrize("seed", SEEDS)
async def test_copies_that_a_restored_hub_does_not_know_stay_and_are_adopted_later(
    simulation: Simulation, seed: int
) -> None:
    """Real Karmada deletes by its Works and bindings, which a restored hub does not have either."""
    hub = Hub(simulation)
    await hub.seed()
    await hub.start()
    await hub.route()
    await hub.settle()
    revision = hub.engine.store.revision
    await hub.deploy()
    await hub.client.create(NAMESPACE, NAMESPACE.body("ns-2"))
    copy = await hub.copied()
    namespace = await hub.namespace(name="ns-2")
    assert namespace is not None

    again = await _restored(simulation, hub, revision)
    await again.start()
    await asyncio.sleep(3600)
    assert (await again.client.list(WORKLOAD_DEPLOYMENT)).items == []
    assert (await again.copied()).metadata.uid == copy.metadata.uid
    namespace_copy = await again.namespace(name="ns-2")
    assert namespace_copy is not None
    assert (namespace_copy.metadata.uid, namespace_copy.metadata.deleting) == (namespace.metadata.uid, False)

    original = await again.deploy()
    await again.client.create(NAMESPACE, NAMESPACE.body("ns-2"))
    taken_over = await again.copied()
    assert taken_over.metadata.uid == copy.metadata.uid
    assert taken_over.metadata.annotations["resourcetemplate.karmada.io/uid"] == original.metadata.uid
    await again.client.delete(WORKLOAD_DEPLOYMENT, "web", NS)
    await again.client.delete(NAMESPACE, "ns-2")
    assert await again.copy() is None
    assert await again.namespace(name="ns-2") is None
    await again.stop()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_restored_hub_recreates_copies_deleted_since(simulation: Simulation, seed: int) -> None:
    hub = Hub(simulation)
    await hub.seed()
    await hub.start()
    await hub.route()
    await hub.deploy()
    await hub.copied()
    revision = hub.engine.store.revision
    await hub.client.delete(WORKLOAD_DEPLOYMENT, "web", NS)
    assert await hub.copy() is None

    again = await _restored(simulation, hub, revision)
    await again.start()
    assert await again.copy() is not None
    await again.stop()


async def test_at_rest_nothing_is_written(web: Hub) -> None:
    await web.patch(web.cell(), {"status": status(1)}, "status")
    await web.settle()
    revision, written = web.engine.store.revision, web.writes.total()
    await asyncio.sleep(3600)
    assert (web.engine.store.revision, web.writes.total()) == (revision, written)


async def test_each_step_takes_one_write(hub: Hub) -> None:
    await hub.route()
    await hub.settle()

    async def written(step: Any) -> int:
        before = hub.writes.total()
        await step
        await hub.settle()
        return hub.writes.total() - before

    assert await written(hub.deploy()) == 1
    assert await written(hub.patch(hub.client, {"spec": spec(replicas=2), "metadata": {"labels": {"x": "1"}}})) == 1
    assert await written(hub.patch(hub.cell(), {"status": status(1)}, "status")) == 1
    assert await written(hub.patch(hub.client, {"metadata": {"finalizers": ["example.test/hub"]}})) == 0
    assert await written(hub.patch(hub.client, {"metadata": {"finalizers": None}})) == 0
    assert await written(hub.client.delete(WORKLOAD_DEPLOYMENT, "web", NS)) == 1
