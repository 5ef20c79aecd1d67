"""Sources that are restricted to some namespaces."""

from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.runtime.caches.informer import Change
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.sources import Source, itself
from datum_compute.runtime.testing.server import GADGET, WIDGET
from datum_compute.runtime.testing.simulation import Simulation
from tests.runtime.world import World

OPEN = {"metadata": {"labels": {"open": "yes"}}}


class Open:
    """Namespaces that are labelled as open."""

    async def includes(self, plane: Plane, namespace: str) -> bool:
        known = plane.informer(NAMESPACE).get("", namespace)
        return known is not None and _is_open(known)

    def admits(self, plane: Plane, change: Change[Namespace]) -> bool:
        before = change.before is not None and _is_open(change.before)
        return change.after is not None and _is_open(change.after) and not before


def _is_open(namespace: Namespace) -> bool:
    return "open" in namespace.metadata.labels


def world() -> World:
    return World(Source("east", WIDGET, itself, scope=Open()), Source("west", GADGET, itself))


async def test_requests_outside_of_the_scope_are_ignored(simulation: Simulation) -> None:
    scoped = world()
    server = scoped.add("a")
    server.make("w")
    async with scoped.running(simulation):
        scoped.controller.enqueue(Request("a", "elsewhere", "w"))
        await simulation.settle()
        assert scoped.recorder.requests == []
        assert scoped.controller.results["success"] == 2


async def test_objects_of_a_namespace_run_when_it_comes_into_scope(simulation: Simulation) -> None:
    scoped = world()
    server = scoped.add("a")
    server.make("default", NAMESPACE)
    server.make("w")
    async with scoped.running(simulation):
        assert scoped.recorder.requests == []
        server.change("default", OPEN, NAMESPACE)
        await simulation.settle()
        assert scoped.recorder.requests == ["a:default/w"]
        server.change("w")
        await simulation.settle()
        assert scoped.recorder.requests == ["a:default/w"] * 2


async def test_a_scope_applies_only_to_planes_of_its_role(simulation: Simulation) -> None:
    scoped = world()
    scoped.add("b", role="west").make("g", GADGET)
    async with scoped.running(simulation):
        assert scoped.recorder.requests == ["b:default/g"]
