"""Mistakes of others lead to a clear condition and one event; nothing crashes, and nothing else stops."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.federation.identity import hub_labels
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, as_dict
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import GROUP, LABELS, NAMESPACE_NAME, SPEC, TEMPLATE, Site


@pytest.fixture
def cell(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Site]:
    """All controllers of a cell; at the end an ordinary Instance must still become ready."""

    def build(fleet: Fleet) -> Sequence[Reconciler]:
        return cell_controllers(fleet, simulation, cell_name)

    site = Site(simulation, build)
    runner.run(site.start())
    yield site
    runner.run(_good_one_runs(site))
    runner.run(site.stop())


async def _good_one_runs(cell: Site) -> None:
    """An ordinary deployment still becomes ready."""
    namespace = "ns-good"
    for client in (cell.cell, cell.hub):
        await client.create(NAMESPACE, NAMESPACE.body(namespace, labels=hub_labels("demo", "default")))
    spec = {
        "workloadRef": {"name": "hello", "uid": "uid-of-hello"},
        "placementName": "main",
        "cityCode": "DFW",
        "template": TEMPLATE,
        "scaleSettings": {"minReplicas": 1},
    }
    for client in (cell.hub, cell.cell):
        await client.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("good", namespace) | {"spec": spec})
    await cell.settle()
    await cell.grant("good-0")

    async def open_() -> bool:
        good = await cell.cell.get(INSTANCE, "good-0", namespace)
        return good.spec.controller is not None and not good.spec.controller.scheduling_gates

    await cell.simulation.until(open_, 2, "the good one may run")


async def test_an_instance_without_a_controller_block_has_no_gates(cell: Site) -> None:
    await cell.hub_deployment()
    await cell.create(gates=None)
    await cell.grant()
    await cell.runs()
    assert (await cell.condition("Ready"))[0] == "True"
    assert await cell.copies() == ["web-0"]
    assert await cell.event_reasons() == []


async def test_unknown_gates_are_named(cell: Site) -> None:
    await cell.create(gates=["Moonrise", "Quota"])
    await cell.grant()
    await cell.advance(1)
    assert await cell.condition("Ready") == ("False", "SchedulingGatesPresent", "Scheduling gates present: Moonrise")
    await cell.advance(600)
    assert await cell.events() == [("SchedulingGatesPresent", "Nothing here removes the scheduling gates Moonrise")]
    assert await cell.gates() == ["Moonrise"]


async def test_missing_labels_are_named(cell: Site) -> None:
    await cell.hub_deployment()
    labels = {key: value for key, value in LABELS.items() if not key.endswith(("city-code", "placement-name"))}
    await cell.create(labels=labels)
    await cell.grant()
    await cell.runs()
    missing = ", ".join(f"{GROUP}/{name}" for name in ("placement-name", "city-code", "instance-index"))
    sentence = f"The instance cannot be shown in its project: it has no label {missing}"
    assert await cell.condition("Federated") == ("False", "LabelsMissing", sentence)
    assert (await cell.condition("Ready"))[0] == "True"  # it runs nevertheless
    await cell.advance(600)
    assert await cell.events() == [("LabelsMissing", sentence)]
    assert await cell.copies() == []

    complete = LABELS | {f"{GROUP}/instance-index": "0"}
    await cell.cell.merge_patch(INSTANCE, "web-0", NAMESPACE_NAME, {"metadata": {"labels": complete}})
    await cell.advance(1)
    assert await cell.copies() == ["web-0"]
    conditions = as_dict((await cell.instance()).status_json)["conditions"]
    assert "Federated" not in {condition["type"] for condition in conditions}


async def test_an_instance_without_an_ordinal_is_removed_from_its_deployment(cell: Site) -> None:
    await cell.deploy(1)
    owner = await cell.deployment()
    labels = LABELS | {f"{GROUP}/workload-deployment-uid": owner.metadata.uid}
    await cell.create("odd", labels=labels)
    await cell.advance(1)
    with pytest.raises(NotFound):
        await cell.instance("odd")
    ((reason, message),) = [event for event in await cell.events("odd") if event[0] == "StrayInstance"]
    assert reason == "StrayInstance"
    assert message == "Neither label nor name says which instance of web it is; it is removed"
    assert [instance.name for instance in await cell.instances()] == ["web-0"]


async def test_a_name_without_an_ordinal_and_without_a_deployment_is_left_alone(cell: Site) -> None:
    await cell.create("odd", labels={"mine": "yes"})
    await cell.grant("odd")
    await cell.runs("odd")
    assert (await cell.condition("Ready", "odd"))[0] == "True"
    assert (await cell.condition("Federated", "odd"))[1] == "LabelsMissing"


async def _claim(cell: Site, source: str, namespace: str = NAMESPACE_NAME) -> None:
    """A granted claim with the name that Instance web-0 uses, created by somebody else."""
    project = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
    spec: Json = {
        "consumerRef": project,
        "resourceRef": project,
        "requests": [{"resourceType": f"{GROUP}/instances", "amount": 1}],
    }
    labels = {f"{GROUP}/source-cluster": source, f"{GROUP}/instance-namespace": namespace}
    body = RESOURCE_CLAIM.body("instance-web-0", "default", labels=labels)
    await cell.project.create(RESOURCE_CLAIM, body | {"spec": spec})
    await cell.grant()


async def test_a_claim_for_another_namespace_is_never_used_nor_deleted(cell: Site) -> None:
    await _claim(cell, "cell-dfw", "ns-of-somebody-else")
    await cell.create()
    sentence = "Claim instance-web-0 belongs to another instance of that name"
    assert await cell.condition("QuotaGranted") == ("False", "QuotaMisconfigured", sentence)
    await cell.advance(700)
    assert await cell.events() == [("QuotaMisconfigured", sentence)]
    assert await cell.gates() == ["Quota"]
    await cell.delete()
    await cell.advance(1)
    with pytest.raises(NotFound):
        await cell.instance()
    assert await cell.claims() == ["instance-web-0"]


async def test_a_claim_that_another_cell_created_for_the_instance_counts_and_is_left_to_that_cell(cell: Site) -> None:
    """As after a cell was renamed or replaced: the grant survives."""
    await _claim(cell, "cell-ord")
    await cell.create()
    assert (await cell.condition("QuotaGranted"))[:2] == ("True", "QuotaAvailable")
    assert await cell.gates() == []
    await cell.delete()
    await cell.advance(1)
    with pytest.raises(NotFound):
        await cell.instance()
    assert await cell.claims() == ["instance-web-0"]


async def test_a_denied_claim_of_another_cell_is_not_recreated(cell: Site) -> None:
    await _claim(cell, "cell-ord")
    await cell.deny()
    before = (await cell.claim()).metadata.uid
    await cell.create()
    await cell.advance(3600)
    assert (await cell.condition("QuotaGranted"))[:2] == ("False", "QuotaExceeded")
    assert (await cell.claim()).metadata.uid == before


async def test_a_namespace_without_identity_labels_gets_no_claim_and_no_copy(cell: Site) -> None:
    for client in (cell.cell, cell.hub):
        await client.create(NAMESPACE, NAMESPACE.body("nobody"))
    body = INSTANCE.body("web-0", "nobody", labels=LABELS | {f"{GROUP}/instance-index": "0"})
    gated = SPEC | {"controller": {"templateHash": "0", "schedulingGates": [{"name": "Quota"}]}}
    await cell.cell.create(INSTANCE, body | {"spec": gated})
    await cell.advance(700)
    instance = await cell.cell.get(INSTANCE, "web-0", "nobody")
    by_type = {condition["type"]: condition for condition in as_dict(instance.status_json)["conditions"]}
    sentence = "Namespace nobody does not say which project it belongs to"
    assert (by_type["QuotaGranted"]["reason"], by_type["QuotaGranted"]["message"]) == (
        "QuotaProjectIDUnresolvable",
        sentence,
    )
    assert (by_type["Ready"]["reason"], by_type["Ready"]["message"]) == ("PendingQuota", sentence)
    assert await cell.events() == [("QuotaProjectIDUnresolvable", sentence)]
    assert (await cell.claims(), await cell.copies()) == ([], [])
    await cell.cell.delete(INSTANCE, "web-0", "nobody")
    await cell.advance(1)
    assert await cell.instances() == []
