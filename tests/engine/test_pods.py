"""The pods provider on a real API server: Instances become Pods that nodes of kwok run, under the generated role.

Needs an engine with nodes: `python -m engine up --kwok pop-dfw`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import PODS_FINALIZER, WORKLOAD_NAME
from datum_compute.api.permissions import When, Who
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.providers.pods.provider import PodsProvider
from datum_compute.providers.pods.state import POD, Pod
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.writes import Writes
from engine.harness import Engine
from engine.identities import DEFAULT_SWITCHES

pytestmark = pytest.mark.engine

T = TypeVar("T")

SPEC: Json = {
    "runtime": {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {
            "containers": [
                {
                    "name": "web",
                    "image": "registry.example/hello:1",
                    "env": [{"name": "A", "value": "1"}],
                    "ports": [{"name": "http", "port": 8080}],
                    "volumeAttachments": [{"name": "conf", "mountPath": "/etc/app"}],
                }
            ]
        },
    },
    "volumes": [{"name": "conf", "configMap": {"name": "app", "optional": True}}],
    "networkInterfaces": [{"network": {"name": "default"}}],
    "controller": {"templateHash": "0123456789", "schedulingGates": []},
}


class Site:
    """One cell with nodes; the test plays compute, as the administrator."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def create(self, name: str, spec: Json = SPEC) -> None:
        body = INSTANCE.body(name, self.namespace, labels={WORKLOAD_NAME: "web"})
        await self.client.create(INSTANCE, body | {"spec": spec})

    async def instance(self, name: str) -> Instance | None:
        return await _found(self.client.get(INSTANCE, name, self.namespace))

    async def pod(self, name: str) -> Pod | None:
        return await _found(self.client.get(POD, name, self.namespace))

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - what happens, happens in other processes
                await asyncio.sleep(0.1)

    async def is_empty(self) -> bool:
        return not (await self.client.list(INSTANCE, self.namespace)).items

    async def is_available(self, name: str) -> bool:
        instance = await self.instance(name)
        status = instance.status if instance else None
        return status is not None and conditions.is_true(status.conditions, "Available")


async def _found(call: Awaitable[T]) -> T | None:
    try:
        return await call
    except NotFound:
        return None


@pytest.fixture
def cell(engine: Engine) -> Iterator[str]:
    """A cell that has nodes; its identity may run Pods for as long as the test takes."""
    with_nodes = [plane.name for plane in engine.planes() if plane.kwok]
    if not with_nodes:
        pytest.skip("no cell has nodes: bring the engine up with --kwok pop-dfw")
    engine.admit([*DEFAULT_SWITCHES, When.PODS])
    yield with_nodes[0]
    engine.admit()


@asynccontextmanager
async def running(engine: Engine, cell: str) -> AsyncIterator[Site]:
    """The provider alone, under the role of a cell."""
    fleet = Fleet()
    own = HttpTransport(load([engine.kubeconfig(cell, Who.CELL.value)]))
    fleet.add(Plane(cell, CELL, own, writes=Writes(), generator=random.Random(1)))
    manager = Manager(fleet, [PodsProvider()], SystemClock())
    task = asyncio.create_task(manager.run())
    administrator = HttpTransport(load([engine.kubeconfig(cell)]))
    client = Client(cell, administrator)
    namespace = f"pods-{random.SystemRandom().getrandbits(32):08x}"
    await client.create(NAMESPACE, NAMESPACE.body(namespace))
    site = Site(client, namespace)
    try:
        yield site
        assert [crash for controller in manager.controllers.values() for crash in controller.crashes] == []
    finally:
        # While somebody is there to let go of them: an Instance that stays would be a leftover for every later test.
        with suppress(NotFound):
            await client.delete(INSTANCE, "web-0", namespace)
        await site.until(site.is_empty)
        await client.delete(NAMESPACE, namespace)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for transport in (own, administrator):
            await transport.close()


async def test_an_instance_runs_in_a_pod_and_reports_its_address(engine: Engine, cell: str) -> None:
    async with running(engine, cell) as site:
        await site.create("web-0")
        await site.until(lambda: site.is_available("web-0"))
        instance, pod = await site.instance("web-0"), await site.pod("web-0")
        assert instance is not None
        assert instance.status is not None
        assert pod is not None
        assert pod.status is not None
        assert instance.status.controller is not None
        assert instance.status.controller.observed_template_hash == "0123456789"
        assert [interface.assignments.network_ip for interface in instance.status.network_interfaces] == [
            pod.status.pod_ip
        ]
        assert pod.status.pod_ip != ""
        await site.client.delete(INSTANCE, "web-0", site.namespace)

        async def gone() -> bool:
            return await site.instance("web-0") is None and await site.pod("web-0") is None

        await site.until(gone)


async def test_an_instance_is_released_after_its_pod_is_gone(engine: Engine, cell: str) -> None:
    async with running(engine, cell) as site:
        await site.create("web-0")
        await site.until(lambda: site.is_available("web-0"))
        held = {"metadata": {"finalizers": ["example.com/stopping"]}}
        await site.client.merge_patch(POD, "web-0", site.namespace, held)
        await site.client.delete(INSTANCE, "web-0", site.namespace)

        async def stopping() -> bool:
            instance = await site.instance("web-0")
            status = instance.status if instance else None
            found = conditions.find(status.conditions, "Available") if status else None
            return found is not None and found.reason == "Stopping"

        await site.until(stopping)
        instance = await site.instance("web-0")
        assert instance is not None
        assert PODS_FINALIZER in instance.metadata.finalizers
        await site.client.merge_patch(POD, "web-0", site.namespace, {"metadata": {"finalizers": None}})

        async def gone() -> bool:
            return await site.instance("web-0") is None

        await site.until(gone)


async def test_a_deleted_pod_is_recreated(engine: Engine, cell: str) -> None:
    async with running(engine, cell) as site:
        await site.create("web-0")
        await site.until(lambda: site.is_available("web-0"))
        first = await site.pod("web-0")
        assert first is not None
        await site.client.delete(POD, "web-0", site.namespace)

        async def another() -> bool:
            pod = await site.pod("web-0")
            return pod is not None and pod.metadata.uid != first.metadata.uid and await site.is_available("web-0")

        await site.until(another)
        await site.client.delete(INSTANCE, "web-0", site.namespace)

        async def gone() -> bool:
            return await site.instance("web-0") is None

        await site.until(gone)


async def test_a_pod_that_the_server_refuses_is_a_configuration_error_in_our_words(engine: Engine, cell: str) -> None:
    """Two volumes in one place pass our schema and no real server."""
    container = SPEC["runtime"]["sandbox"]["containers"][0]
    attached = [{"name": "conf", "mountPath": "/etc/app"}, {"name": "more", "mountPath": "/etc/app"}]
    sandbox = {"containers": [container | {"volumeAttachments": attached}]}
    volumes = [*SPEC["volumes"], SPEC["volumes"][0] | {"name": "more"}]
    async with running(engine, cell) as site:
        await site.create("web-0", SPEC | {"runtime": SPEC["runtime"] | {"sandbox": sandbox}, "volumes": volumes})

        async def refused() -> bool:
            instance = await site.instance("web-0")
            status = instance.status if instance else None
            found = conditions.find(status.conditions, "Available") if status else None
            return found is not None and found.reason == "ConfigurationError"

        await site.until(refused)
        instance = await site.instance("web-0")
        assert instance is not None
        assert instance.status is not None
        found = conditions.find(instance.status.conditions, "Available")
        assert found is not None
        assert "pod" not in found.message.lower()
        await site.client.delete(INSTANCE, "web-0", site.namespace)

        async def gone() -> bool:
            return await site.instance("web-0") is None

        await site.until(gone)
