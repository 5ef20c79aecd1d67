"""A workload reaches its city, and its status the project."""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import AVAILABLE, QUOTA_GRANTED
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import (
    FEDERATION_NAMESPACE,
    FEDERATOR_FINALIZER,
    TOPOLOGY_CITY,
    UPSTREAM_GENERATION,
)
from datum_compute.api.reasons import NO_MATCHING_LOCATION, QUOTA_AVAILABLE
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE
from tests.scenarios.federation import Federation, Following, is_ready


async def test_a_workload_runs_in_its_city_and_the_project_sees_it(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)

    instances = await federation.cell("DFW").instances("web")
    assert [instance.name for instance in instances] == ["web-main-dfw-0", "web-main-dfw-1"]
    assert all(map(is_ready, instances))
    assert await federation.cell("ORD").instances("web") == []

    deployment = await project.deployment("web-main-dfw")
    assert deployment.status is not None
    assert deployment.status.observed_generation == deployment.metadata.generation
    assert deployment.status.ready_replicas == 2
    assert conditions.is_true(deployment.status.conditions, AVAILABLE)


async def test_hub_deployments_carry_city_and_generation(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)

    hub_namespace = await project.hub_namespace()
    deployment = await project.deployment("web-main-dfw")
    assert deployment.metadata.annotations[FEDERATION_NAMESPACE] == hub_namespace
    assert FEDERATOR_FINALIZER in deployment.metadata.finalizers
    copy = await federation.hub.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", hub_namespace)
    assert copy.metadata.labels[TOPOLOGY_CITY] == "DFW"
    assert copy.metadata.annotations[UPSTREAM_GENERATION] == str(deployment.metadata.generation)
    policy = await federation.hub.get(PROPAGATION_POLICY, "city-dfw", hub_namespace)
    assert len(policy.spec.resource_selectors) == 1
    namespace = await federation.cell("DFW").client.get(NAMESPACE, hub_namespace)
    assert namespace.metadata.labels["meta.datumapis.com/upstream-cluster-name"] == "cluster-demo"


async def test_a_quota_grant_opens_the_gate(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)

    (instance,) = await federation.cell("DFW").instances("web")
    assert instance.spec.controller is not None
    assert instance.spec.controller.scheduling_gates == ()
    assert instance.status is not None
    granted = conditions.find(instance.status.conditions, QUOTA_GRANTED)
    assert granted is not None
    assert (granted.status, granted.reason) == ("True", QUOTA_AVAILABLE)


async def test_each_of_two_cities_runs_its_own_replicas(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await project.until_ready("web", 4)
    for city in ("DFW", "ORD"):
        names = [instance.name for instance in await federation.cell(city).instances("web")]
        assert names == [f"web-main-{city.lower()}-{ordinal}" for ordinal in range(2)]
    workload = await project.workload("web")
    assert workload is not None
    assert workload.status is not None
    assert workload.status.deployments == 2


async def test_two_projects_with_equal_names_do_not_interfere(federation: Federation) -> None:
    demo, other = federation.project("demo"), federation.project("other")
    await demo.deploy("web", ["DFW"], replicas=1, image="registry.example/demo:1")
    await other.deploy("web", ["DFW"], replicas=2, image="registry.example/other:1")
    await demo.until_ready("web", 1)
    await other.until_ready("web", 2)

    cell = federation.cell("DFW")
    for project, replicas in ((demo, 1), (other, 2)):
        assert len(await cell.instances("web", await project.hub_namespace())) == replicas
    await demo.delete("web")
    await demo.until_gone("web")

    async def only_the_other_is_left() -> bool:
        return not await cell.instances("web", await demo.hub_namespace())

    await federation.until(only_the_other_is_left, "the instances of demo are gone")
    assert len(await cell.instances("web", await other.hub_namespace())) == 2
    await other.until_ready("web", 2)


async def test_scaling_up_adds_and_scaling_down_removes_the_highest_ordinals(federation: Federation) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=1)
    await project.until_ready("web", 1)
    await project.place("web", ["DFW"], 3)
    await project.until_ready("web", 3)
    first_uid = (await cell.instances("web"))[0].metadata.uid
    await project.place("web", ["DFW"], 1)
    await project.until_ready("web", 1)
    (instance,) = await cell.instances("web")
    assert (instance.name, instance.metadata.uid) == ("web-main-dfw-0", first_uid)


async def test_a_new_template_is_rolled_out_one_at_a_time_from_the_highest_ordinal(federation: Federation) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    before = {instance.name: instance.metadata.uid for instance in await cell.instances("web")}
    following = await cell.follow()
    await project.set_image("web", "registry.example/hello:2")
    await project.until_ready("web", 3)
    await following.stop()

    assert min(sum(map(is_ready, state.values())) for state in following.states) == 2
    assert _replaced(following, before) == ["web-main-dfw-2", "web-main-dfw-1", "web-main-dfw-0"]
    for instance in await cell.instances("web"):
        sandbox = instance.spec.runtime.sandbox
        assert sandbox is not None
        assert sandbox.containers[0].image == "registry.example/hello:2"


async def test_a_restart_is_rolled_out_like_a_new_template(federation: Federation) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)
    before = {instance.name: instance.metadata.uid for instance in await cell.instances("web")}
    following = await cell.follow()
    await project.restart("web", "2026-06-10T12:30:00Z")
    await project.until_ready("web", 2)
    await following.stop()
    assert _replaced(following, before) == ["web-main-dfw-1", "web-main-dfw-0"]


async def test_a_city_removed_from_the_spec_is_deleted_and_an_added_one_created(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"])
    await project.until_ready("web", 1)
    await project.place("web", ["ORD"], 1)

    async def moved() -> bool:
        return not await federation.cell("DFW").instances("web") and bool(await federation.cell("ORD").instances("web"))

    await federation.until(moved, "web moved to ORD")
    await project.until_ready("web", 1)


async def test_a_city_that_is_not_offered_is_named_in_the_condition(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["XYZ"])

    async def is_reported() -> bool:
        workload = await project.workload("web")
        status = workload.status if workload else None
        available = conditions.find(status.conditions, AVAILABLE) if status else None
        return available is not None and available.reason == NO_MATCHING_LOCATION and "XYZ" in available.message

    await federation.until(is_reported, "the condition names XYZ")
    assert (await project.client.list(WORKLOAD_DEPLOYMENT)).items == []


async def test_a_workload_deleted_before_it_ran_leaves_nothing_either(federation: Federation) -> None:
    project, cell = federation.project(), federation.cell("DFW")
    await project.deploy("web", ["DFW"], replicas=2)

    async def first_exists() -> bool:
        return bool(await cell.instances("web"))

    await federation.until(first_exists, "the first instance exists")
    await project.delete("web")
    await project.until_gone("web")

    async def gone() -> bool:
        return not await cell.instances("web")

    await federation.until(gone, "its instances are gone")


def _replaced(following: Following, before: dict[str, str]) -> list[str]:
    """The names in the order in which their first incarnation disappeared."""
    order: list[str] = []
    for state in following.states:
        for name, uid in before.items():
            if name not in order and (name not in state or state[name].metadata.uid != uid):
                order.append(name)
    return order
