"""A hub outage of a minute during a hundred changes: nothing is lost, and nothing is left behind."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import UPSTREAM_GENERATION
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import same_json
from tests.scenarios.federation import Federation, Outages, Project

AWAY_SECONDS = 60.0
OURS_SECONDS = 10.0  # for all on our side of Karmada, from the hub's return on
KARMADAS_SECONDS = 180.0  # for its own side; it was seen to take a minute
CITIES = ("DFW", "ORD")
BEFORE, MADE, CHANGED, REMOVED = 34, 34, 33, 33
EARLY = 30  # of the hundred, made while the hub is still there


class Operation(Struct, frozen=True):
    verb: str
    name: str


def _operations() -> list[Operation]:
    """A hundred, mixed: of what was there before, one is changed while another is removed and a new one is made."""
    made = [Operation("make", f"new-{number}") for number in range(MADE)]
    changed = [Operation("change", f"old-{number}") for number in range(CHANGED)]
    removed = [Operation("remove", f"old-{BEFORE - 1 - number}") for number in range(REMOVED)]
    rounds = zip(made, [*changed, None], [*removed, None], strict=True)
    mixed = [operation for together in rounds for operation in together if operation is not None]
    # What was removed already cannot be changed; a new one is changed instead.
    gone: set[str] = set()
    result: list[Operation] = []
    for operation in mixed:
        if operation.verb == "change" and operation.name in gone:
            operation = Operation("change", operation.name.replace("old", "new"))
        if operation.verb == "remove":
            gone.add(operation.name)
        result.append(operation)
    return result


OPERATIONS = _operations()


def _city(name: str) -> str:
    return CITIES[int(name.rpartition("-")[2]) % len(CITIES)]


def _place(name: str) -> str:
    return f"{name}-main-{_city(name).lower()}"


async def _deployments(project: Project) -> dict[str, WorkloadDeployment]:
    return {deployment.name: deployment for deployment in (await project.client.list(WORKLOAD_DEPLOYMENT)).items}


async def _copies(federation: Federation, project: Project) -> dict[str, WorkloadDeployment]:
    home = await project.hub_namespace()
    return {deployment.name: deployment for deployment in (await federation.hub.list(WORKLOAD_DEPLOYMENT, home)).items}


async def _apply(federation: Federation, project: Project, operations: Sequence[Operation]) -> None:
    """One after the other, each when the one before has been seen to in the project: a rate any engine can bear."""
    for operation in operations:
        name, place = operation.name, _place(operation.name)
        match operation.verb:
            case "make":
                await project.deploy(name, [_city(name)])

                async def is_applied(place: str = place) -> bool:
                    return place in await _deployments(project)
            case "change":
                await project.set_image(name, "registry.example/hello:2")

                async def is_applied(place: str = place) -> bool:
                    return b"hello:2" in bytes((await _deployments(project))[place].spec_json)
            case _:
                await project.delete(name)

                async def is_applied(place: str = place) -> bool:
                    found = (await _deployments(project)).get(place)
                    return found is None or found.metadata.deleting

        await federation.until(is_applied, f"{operation.verb} {name} is seen to in the project")


def test_the_hundred_generated_changes_are_valid() -> None:
    assert len(OPERATIONS) == 100
    assert [sum(operation.verb == verb for operation in OPERATIONS) for verb in ("make", "change", "remove")] == [
        34,
        33,
        33,
    ]
    there = {f"old-{number}" for number in range(BEFORE)}
    for operation in OPERATIONS:
        if operation.verb == "make":
            there.add(operation.name)
            continue
        assert operation.name in there
        if operation.verb == "remove":
            there.remove(operation.name)
    assert len(there) == BEFORE + MADE - REMOVED


@pytest.mark.timeout(1200)
@pytest.mark.minutes
async def test_a_hub_outage_of_a_minute_loses_nothing_and_leaves_nothing_behind(
    federation: Federation, outages: Outages
) -> None:
    project = federation.project()
    await _apply(federation, project, [Operation("make", f"old-{number}") for number in range(BEFORE)])
    expected = {f"old-{number}" for number in range(BEFORE)}

    async def same_on_the_hub() -> bool:
        """Copies are those of the project's deployments, each of its newest spec and marked with its generation."""
        originals, copies = await _deployments(project), await _copies(federation, project)
        workloads = {workload.name for workload in (await project.client.list(WORKLOAD)).items}
        home = await project.hub_namespace()
        policies = {item.name for item in (await federation.hub.list(PROPAGATION_POLICY, home)).items}
        return (
            workloads == expected
            and set(originals) == set(copies) == set(map(_place, expected))
            and policies == {f"city-{_city(name).lower()}" for name in expected}
            and all(same_json(copies[name].spec_json, one.spec_json) for name, one in originals.items())
            and all(
                copies[name].metadata.annotations[UPSTREAM_GENERATION] == str(one.metadata.generation)
                for name, one in originals.items()
            )
        )

    await federation.until(same_on_the_hub, "the first workloads are on the hub")

    await _apply(federation, project, OPERATIONS[:EARLY])
    loop = asyncio.get_running_loop()
    began = loop.time()
    await outages.take_away(federation.hub.plane)
    await _apply(federation, project, OPERATIONS[EARLY:])

    async def a_minute_later() -> bool:
        return loop.time() - began >= AWAY_SECONDS

    await federation.until(a_minute_later, "a minute is over", AWAY_SECONDS * 2)
    for operation in OPERATIONS:
        if operation.verb == "make":
            expected.add(operation.name)
        elif operation.verb == "remove":
            expected.remove(operation.name)
    assert len((await project.client.list(WORKLOAD)).items) > len(expected)  # deletes wait for the hub

    await outages.bring_back(federation.hub.plane)
    returned = loop.time()
    await federation.until(same_on_the_hub, "our side has converged", OURS_SECONDS)
    ours = loop.time() - returned
    assert ours <= OURS_SECONDS

    async def same_in_the_cells() -> bool:
        originals, home = await _deployments(project), await project.hub_namespace()
        found = {}
        for city in CITIES:
            for deployment in (await federation.cell(city).client.list(WORKLOAD_DEPLOYMENT, home)).items:
                found[deployment.name] = deployment
        return found.keys() == originals.keys() and all(
            same_json(found[name].spec_json, one.spec_json) for name, one in originals.items()
        )

    await federation.until(same_in_the_cells, "the cells have converged", KARMADAS_SECONDS)
    print(f"after the hub's return: our side {ours:.1f} s, Karmada's {loop.time() - returned:.1f} s")

    for name in sorted(expected):
        await project.delete(name)

    async def nothing_left() -> bool:
        home = await project.hub_namespace()
        cells = [federation.cell(city).client for city in CITIES]
        for client, namespace in (
            (project.client, "default"),
            *((client, home) for client in (federation.hub, *cells)),
        ):
            if (await client.list(WORKLOAD_DEPLOYMENT, namespace)).items or (
                await client.list(INSTANCE, namespace)
            ).items:
                return False
        return not (await federation.hub.list(PROPAGATION_POLICY, home)).items

    await federation.until(nothing_left, "nothing is left of any of them", KARMADAS_SECONDS)
