"""What a plane contained when its backup was made, what users did afterwards, and how to check what was lost. Entry
points: `known_to_the_backup`, `ten_operations`, `running`, `lost`, `is_as_the_project_asks`, `release`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import combinations

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import RESOURCE_BINDING
from datum_compute.api.template_hash import template_hash
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from tests.scenarios.federation import Federation, Project, UnderTest, is_ready

KNOWN = {"web": 1, "api": 2, "big": 3, "old": 1, "again": 1, "wide": 2}  # replicas that the backup asks for
ASKED = {"fresh": 2, "web": 6, "api": 2, "wide": 1, "again": 2, "big": 1}  # after the operations

UNKNOWN = {"fresh-main-dfw", "fresh-main-ord", "web-main-ord"}  # to the backup
OLDER = {"web-main-dfw", "api-main-dfw", "again-main-ord", "big-main-dfw"}  # in the backup than what has run since


def every_combination(processes: Iterable[str]) -> list[tuple[str, ...]]:
    everyone = tuple(processes)
    return [chosen for number in range(len(everyone) + 1) for chosen in combinations(everyone, number)]


def named(down: tuple[str, ...]) -> str:
    """The id of a test in which these processes are down."""
    return f"without-{'-'.join(down)}" if down else "all-up"


async def known_to_the_backup(project: Project) -> None:
    await project.deploy("web", ["DFW"])
    await project.deploy("api", ["DFW"], replicas=2)
    await project.deploy("big", ["DFW"], replicas=3)
    await project.deploy("old", ["ORD"])
    await project.deploy("again", ["ORD"])
    await project.deploy("wide", ["DFW", "ORD"])
    await _until_ready(project, KNOWN)


async def ten_operations(federation: Federation, project: Project) -> None:
    """In rounds, each to its end; the last one changes again what was changed before."""
    await project.deploy("fresh", ["DFW", "ORD"])
    await project.until_ready("fresh", 2)

    await project.place("web", ["DFW"], 3)
    await project.set_image("api", "registry.example/hello:2")
    await project.delete("old")
    await project.place("wide", ["DFW"], 1)
    await project.delete("again")
    await project.place("big", ["DFW"], 1)
    await project.deploy("brief", ["ORD"])
    await _until_ready(project, {"web": 3, "api": 2, "wide": 1, "big": 1, "brief": 1})
    await _until_left(federation, "old", "again")

    await project.place("web", ["DFW", "ORD"], 3)
    await project.deploy("again", ["ORD"], replicas=2, image="registry.example/hello:3")
    await project.delete("brief")
    await project.restart("api", "2026-06-01T12:00:00Z")
    await _until_ready(project, ASKED)
    await _until_left(federation, "brief")


async def _until_ready(project: Project, replicas: Mapping[str, int]) -> None:
    for name, number in replicas.items():
        await project.until_ready(name, number)


async def _until_left(federation: Federation, *workloads: str) -> None:
    """Gone everywhere: Karmada may stall on a deployment whose site still has an earlier one of its name."""
    engine = federation.engine

    async def have_left() -> bool:
        planes = (engine.hub, *engine.cells.values())
        left = [deployment.name for plane in planes for deployment in (await plane.list(WORKLOAD_DEPLOYMENT)).items]
        with suppress(NotFound):  # the embedded hub has no bindings
            left += [binding.name for binding in (await engine.hub.list(RESOURCE_BINDING)).items]
        return not any(name.startswith(f"{workload}-main-") for name in left for workload in workloads)

    await federation.until(have_left, f"{', '.join(workloads)} are gone from every plane")


async def running(engine: UnderTest) -> dict[str, str]:
    """The uid of each Instance that runs, by city and name."""
    return {
        f"{city}/{instance.name}": instance.metadata.uid
        for city, client in engine.cells.items()
        for instance in (await client.list(INSTANCE)).items
        if is_ready(instance)
    }


async def lost(engine: UnderTest, before: Mapping[str, str]) -> set[str]:
    """Which of the Instances that ran before were deleted since; one that came back would have another uid."""
    left = {
        instance.metadata.uid
        for client in engine.cells.values()
        for instance in (await client.list(INSTANCE)).items
        if not instance.metadata.deleting
    }
    return {name for name, uid in before.items() if uid not in left}


async def is_as_the_project_asks(engine: UnderTest, project: Project) -> bool:
    """Whether hub and cells have exactly what the only project with workloads requests, and the project shows it."""
    home = await project.hub_namespace()
    deployments = (await project.client.list(WORKLOAD_DEPLOYMENT)).items
    wanted = {
        (deployment.spec.city_code, home, f"{deployment.name}-{ordinal}", template_hash(deployment.template_json))
        for deployment in deployments
        for ordinal in range(deployment.spec.scale_settings.min_replicas)
    }
    copies = {(copy.namespace, copy.name) for copy in (await engine.hub.list(WORKLOAD_DEPLOYMENT)).items}
    found: set[tuple[str, str, str, str]] = set()
    for city, client in engine.cells.items():
        placed = {
            (deployment.namespace, deployment.name) for deployment in (await client.list(WORKLOAD_DEPLOYMENT)).items
        }
        if placed != {(home, deployment.name) for deployment in deployments if deployment.spec.city_code == city}:
            return False
        for instance in (await client.list(INSTANCE)).items:
            if not is_ready(instance) or instance.spec.controller is None:
                return False
            found.add((city, instance.namespace, instance.name, instance.spec.controller.template_hash))
    projections = {(instance.name, is_ready(instance)) for instance in (await project.client.list(INSTANCE)).items}
    return (
        found == wanted
        and copies == {(home, deployment.name) for deployment in deployments}
        and projections == {(name, True) for _, _, name, _ in wanted}
    )


async def release(client: Client, namespace: str, names: Iterable[str]) -> None:
    """Releases what is held, as an operator does."""
    patch = {"metadata": {"annotations": {"compute.datumapis.com/release": "true"}}}
    placed = {deployment.name for deployment in (await client.list(WORKLOAD_DEPLOYMENT, namespace)).items}
    for name in placed.intersection(names):
        await client.merge_patch(WORKLOAD_DEPLOYMENT, name, namespace, patch)
