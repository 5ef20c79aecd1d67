"""Nothing that runs is removed because something else is missing, and what is missing is repaired."""

import asyncio
from collections.abc import Mapping
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING, LocationBinding
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind
from tests.scenarios.federation import Federation, Outages, Project, Suspension, is_ready

OF_PROJECT: tuple[Kind[Any], ...] = (WORKLOAD, WORKLOAD_DEPLOYMENT, INSTANCE)
OF_HUB: tuple[Kind[Any], ...] = (WORKLOAD_DEPLOYMENT, INSTANCE, PROPAGATION_POLICY)
RESTS = 2.0  # seconds without a write, after which a small federation is taken to rest


async def _running(federation: Federation, project: Project, workload: str = "web") -> dict[str, str]:
    """Uids of what runs, by city and name."""
    home = await project.hub_namespace()
    return {
        f"{city}/{instance.name}": instance.metadata.uid
        for city in ("DFW", "ORD")
        for instance in await federation.cell(city).instances(workload, home)
    }


async def _versions(federation: Federation, project: Project) -> dict[str, str]:
    """Every object of compute in the project and in its hub namespace, and its resourceVersion."""
    home, found = await project.hub_namespace(), {}
    for client, kinds, namespace in ((project.client, OF_PROJECT, "default"), (federation.hub, OF_HUB, home)):
        for kind in kinds:
            for object_ in (await client.list(kind, namespace)).items:
                found[f"{client.plane}/{kind.plural}/{object_.name}"] = object_.metadata.resource_version
    found["namespace"] = (await federation.hub.get(NAMESPACE, home)).metadata.resource_version
    return found


async def _at_rest(federation: Federation, project: Project) -> Mapping[str, str]:
    """The versions of all objects, once they have not changed for a while."""
    latest: dict[str, str] = {}
    since = 0.0

    async def unchanged() -> bool:
        nonlocal latest, since
        now, versions = asyncio.get_running_loop().time(), await _versions(federation, project)
        if versions != latest:
            latest, since = versions, now
        return now - since >= RESTS

    await federation.until(unchanged, "nothing changes any more", 120)
    return latest


async def _with_a_workload(federation: Federation) -> Project:
    project = federation.project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await project.until_ready("web", 4)
    return project


# Unchanged input means zero writes


async def test_at_rest_a_pass_of_every_controller_writes_nothing_on_either_engine(
    federation: Federation,
) -> None:
    """A mark of somebody else on each object brings every controller back to it, and changes nothing of ours."""
    project = await _with_a_workload(federation)
    await _at_rest(federation, project)
    home = await project.hub_namespace()
    marked = {"metadata": {"annotations": {"example.com/seen": "1"}}}
    for client, kinds, namespace in ((project.client, OF_PROJECT, "default"), (federation.hub, OF_HUB, home)):
        for kind in kinds:
            for object_ in (await client.list(kind, namespace)).items:
                await client.merge_patch(kind, object_.name, namespace, marked)
    before = await _versions(federation, project)
    assert await _at_rest(federation, project) == before


async def test_after_a_restart_every_object_has_a_pass_and_nothing_is_written(
    federation: Federation, outages: Outages
) -> None:
    project = await _with_a_workload(federation)
    before = await _at_rest(federation, project)
    await outages.restart()
    other = federation.project("other")
    await other.deploy("probe", ["DFW", "ORD"])  # when this is through, so is what there was before
    await other.until_ready("probe", 2)
    assert await _at_rest(federation, project) == before


# What goes away


async def _binding(project: Project, city: str) -> LocationBinding:
    found = (await project.client.list(LOCATION_BINDING)).items
    (one,) = [binding for binding in found if binding.spec.topology.get(TOPOLOGY_CITY) == city]
    return one


async def test_a_city_that_loses_its_location_keeps_running_accepts_changes_and_is_reported(
    federation: Federation,
) -> None:
    project = await _with_a_workload(federation)
    before = await _running(federation, project)
    binding = await _binding(project, "DFW")
    withdrawn = {"spec": {"topology": {TOPOLOGY_CITY: None}}}
    offered = {"spec": {"topology": {TOPOLOGY_CITY: "DFW"}}}
    await project.client.merge_patch(LOCATION_BINDING, binding.name, "", withdrawn)
    try:
        await project.place("web", ["DFW", "ORD"], 3)
        await project.until_ready("web", 6)
        assert before.items() <= (await _running(federation, project)).items()
        serving = await _conditions(project, "web")
        assert serving["Available"] == ("True", "AvailablePlacementFound")
        assert serving["Placed"] == ("False", "NoMatchingLocation")

        await project.deploy("late", ["DFW"])

        async def is_reported() -> bool:
            unserved = ("False", "NoMatchingLocation")
            return await _conditions(project, "late") == {"Available": unserved, "Placed": unserved}

        await federation.until(is_reported, "a new workload reports that the city is not offered")
    finally:
        await project.client.merge_patch(LOCATION_BINDING, binding.name, "", offered)
    await project.until_ready("late", 1)
    assert before.items() <= (await _running(federation, project)).items()


async def test_a_projection_that_was_edited_and_repaired_can_be_waited_for(federation: Federation) -> None:
    """As `kubectl wait` does it, which holds what a condition answers against the generation beside it."""
    project = await _with_a_workload(federation)
    name = "web-main-dfw-0"
    before = await project.client.get(INSTANCE, name, "default")
    patch = {"spec": {"runtime": {"sandbox": {"containers": [{"name": "web", "image": "registry.example/edited:1"}]}}}}
    edited = await project.client.merge_patch(INSTANCE, name, "default", patch)
    assert edited.metadata.generation > before.metadata.generation

    async def waited_for() -> bool:
        found = await project.client.get(INSTANCE, name, "default")
        answered = {condition.observed_generation for condition in found.status.conditions} if found.status else set()
        return is_ready(found) and found.spec == before.spec and answered == {found.metadata.generation}

    await federation.until(waited_for, "the projection is as it was, and says that it is answered")
    found = await project.client.get(INSTANCE, name, "default")
    assert found.metadata.generation > edited.metadata.generation


async def _conditions(project: Project, name: str) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition of a workload."""
    found = await project.workload(name)
    status = found.status if found else None
    return {condition.type: (condition.status, condition.reason) for condition in status.conditions} if status else {}


async def test_a_suspended_project_keeps_running_and_catches_up_when_it_returns(
    federation: Federation, suspension: Suspension
) -> None:
    project, other = await _with_a_workload(federation), federation.project("other")
    before = await _running(federation, project)
    await suspension.suspend("demo")
    await project.set_image("web", "registry.example/hello:2")
    await project.deploy("late", ["DFW"])
    await other.deploy("web", ["DFW"])
    await other.until_ready("web", 1)  # others do not notice
    assert await _running(federation, project) == before
    assert await _running(federation, project, "late") == {}

    await suspension.resume("demo")
    await project.until_ready("web", 4)
    await project.until_ready("late", 1)
    assert not set(before.values()) & set((await _running(federation, project)).values())


async def test_projections_of_a_suspended_project_are_correct_when_it_returns(
    federation: Federation, suspension: Suspension
) -> None:
    """A hub Instance that goes while nobody looks leaves no ghost."""
    project = await _with_a_workload(federation)
    home = await project.hub_namespace()
    labels = {
        **(await federation.hub.get(INSTANCE, "web-main-dfw-0", home)).metadata.labels,
        "compute.datumapis.com/source-cluster": "",
    }
    body = INSTANCE.body("ghost", home, labels={key: value for key, value in labels.items() if value})
    spec = (await federation.hub.get(INSTANCE, "web-main-dfw-0", home)).spec_json
    await federation.hub.create(INSTANCE, body | {"spec": spec})

    async def shows_ghost() -> bool:
        return "ghost" in [instance.name for instance in (await project.client.list(INSTANCE)).items]

    await federation.until(shows_ghost, "it is shown")
    await suspension.suspend("demo")
    await federation.hub.delete(INSTANCE, "ghost", home)
    await suspension.resume("demo")

    async def laid() -> bool:
        return not await shows_ghost()

    await federation.until(laid, "it is no longer shown")


async def test_a_policy_deleted_by_hand_comes_back_and_nothing_is_disturbed(federation: Federation) -> None:
    project = await _with_a_workload(federation)
    before, home = await _running(federation, project), await project.hub_namespace()
    uid = (await federation.hub.get(PROPAGATION_POLICY, "city-dfw", home)).metadata.uid
    await federation.hub.delete(PROPAGATION_POLICY, "city-dfw", home)

    async def back() -> bool:
        try:
            return (await federation.hub.get(PROPAGATION_POLICY, "city-dfw", home)).metadata.uid != uid
        except NotFound:
            return False

    await federation.until(back, "the policy is back")
    await project.place("web", ["DFW", "ORD"], 3)  # it routes as before
    await project.until_ready("web", 6)
    assert before.items() <= (await _running(federation, project)).items()


async def test_a_hub_deployment_deleted_by_hand_comes_back_without_side_effects(federation: Federation) -> None:
    """Karmada takes the copy in the cell along at once; what stands beside it is not touched, and all of it returns."""
    project = await _with_a_workload(federation)
    await project.deploy("more", ["DFW"])
    await project.until_ready("more", 1)
    home = await project.hub_namespace()
    elsewhere = {place: uid for place, uid in (await _running(federation, project)).items() if place.startswith("ORD")}
    beside = await _running(federation, project, "more")
    await federation.hub.delete(WORKLOAD_DEPLOYMENT, "web-main-dfw", home)

    async def runs_again() -> bool:
        instances = await federation.cell("DFW").instances("web", home)
        return len(instances) == 2 and all(map(is_ready, instances))

    async def replaced() -> bool:
        try:
            return bool((await federation.hub.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", home)).metadata.uid)
        except NotFound:
            return False

    await federation.until(replaced, "the hub deployment is back")
    await federation.until(runs_again, "both instances run")
    await project.until_ready("web", 4)
    assert elsewhere.items() <= (await _running(federation, project)).items()
    assert await _running(federation, project, "more") == beside
