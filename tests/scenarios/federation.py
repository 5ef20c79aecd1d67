"""The federation as a scenario sees it: projects, hub and cells, whatever engine serves them.

A scenario acts through `Project`, looks through `Cell` and the clients, and waits only with `until`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import AVAILABLE, INSTANCE, READY, Instance
from datum_compute.api.labels import RESTARTED_AT, WORKLOAD_NAME
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.kube import conditions
from datum_compute.kube.client import Client
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json

IMAGE = "registry.example/hello:1"


class UnderTest(Protocol):
    """What an engine has to offer to run the scenarios."""

    @property
    def hub(self) -> Client: ...

    @property
    def cells(self) -> Mapping[str, Client]: ...  # by city

    def project_client(self, project: str) -> Client: ...

    def user_client(self, project: str) -> Client: ...  # with the rights of a project's user, and no others

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None: ...


@runtime_checkable
class Outages(Protocol):
    """What can go wrong with a federation. Planes are named as their clients name them: `hub.plane`."""

    async def take_away(self, plane: str) -> None: ...  # nobody reaches it, the scenario itself perhaps not either

    async def bring_back(self, plane: str) -> None: ...

    async def restart(self) -> None: ...  # every process of ours dies where it stands and is started again


@runtime_checkable
class Suspension(Protocol):
    """A project that is no longer served, and is again. What is stored in it stays, and cells go on running it."""

    async def suspend(self, project: str) -> None: ...

    async def resume(self, project: str) -> None: ...


class Federation:
    def __init__(self, engine: UnderTest) -> None:
        self.engine = engine
        self.hub = engine.hub

    def project(self, name: str = "demo") -> "Project":
        return Project(self.engine.project_client(name), self.engine.user_client(name), self)

    def cell(self, city: str) -> "Cell":
        return Cell(self.engine.cells[city])

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, within: float = 60) -> None:
        await self.engine.until(condition, within, what)


def template(image: str = IMAGE, labels: Mapping[str, str] | None = None) -> Json:
    return {
        "metadata": {"labels": dict(labels or {"app": "hello"})},
        "spec": {
            "runtime": {
                "resources": {"instanceType": "datumcloud/d1-standard-2"},
                "sandbox": {"containers": [{"name": "web", "image": image, "ports": [{"name": "http", "port": 8080}]}]},
            },
            "networkInterfaces": [{"network": {"name": "default"}}],
        },
    }


def placement(name: str, cities: Sequence[str], replicas: int) -> Json:
    return {"name": name, "cityCodes": list(cities), "scaleSettings": {"minReplicas": replicas}}


class Project:
    """Acts as a user of the project does; `client` is for looking, and for what no user may do."""

    def __init__(self, client: Client, user: Client, federation: Federation) -> None:
        self.client = client
        self._user = user
        self._federation = federation

    async def deploy(self, name: str, cities: Sequence[str], replicas: int = 1, image: str = IMAGE) -> None:
        body = WORKLOAD.body(name, "default")
        spec = {"template": template(image), "placements": [placement("main", cities, replicas)]}
        await self._user.create(WORKLOAD, body | {"spec": spec})

    async def place(self, name: str, cities: Sequence[str], replicas: int) -> None:
        await self._patch(name, {"spec": {"placements": [placement("main", cities, replicas)]}})

    async def set_image(self, name: str, image: str) -> None:
        await self._patch(name, {"spec": {"template": template(image)}})

    async def restart(self, name: str, at: str) -> None:
        annotations = {RESTARTED_AT: at}
        await self._patch(name, {"spec": {"template": {"metadata": {"annotations": annotations}}}})

    async def delete(self, name: str) -> None:
        await self._user.delete(WORKLOAD, name, "default")

    async def _patch(self, name: str, patch: Json) -> None:
        await self._user.merge_patch(WORKLOAD, name, "default", patch)

    async def workload(self, name: str) -> Workload | None:
        try:
            return await self._user.get(WORKLOAD, name, "default")
        except NotFound:
            return None

    async def deployment(self, name: str) -> WorkloadDeployment:
        return await self.client.get(WORKLOAD_DEPLOYMENT, name, "default")

    async def hub_namespace(self) -> str:
        return f"ns-{(await self.client.get(NAMESPACE, 'default')).metadata.uid}"

    async def is_ready(self, name: str, replicas: int) -> bool:
        """Whether the workload reports all replicas ready, on the newest template, for its newest generation."""
        workload = await self.workload(name)
        status = workload.status if workload else None
        return (
            workload is not None
            and status is not None
            and status.observed_generation == workload.metadata.generation
            and status.desired_replicas == status.ready_replicas == status.updated_replicas == replicas
            and status.replicas == replicas
            and conditions.is_true(status.conditions, AVAILABLE)
        )

    async def until_ready(self, name: str, replicas: int, within: float = 60) -> None:
        await self._federation.until(partial(self.is_ready, name, replicas), f"{name} with {replicas} ready", within)

    async def until_gone(self, name: str, within: float = 60) -> None:
        async def gone() -> bool:
            return await self.workload(name) is None

        await self._federation.until(gone, f"{name} is gone", within)


class Cell:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def instances(self, workload: str, namespace: str = "") -> list[Instance]:
        listing = await self.client.list(INSTANCE, namespace, f"{WORKLOAD_NAME}={workload}")
        return sorted(listing.items, key=lambda instance: instance.name)

    async def follow(self) -> "Following":
        listing = await self.client.list(INSTANCE)
        return Following(self.client, listing.items, listing.resource_version)


class Following:
    """Every state a cell's Instances went through, as a watch tells it."""

    def __init__(self, client: Client, first: Sequence[Instance], resource_version: str) -> None:
        self.states: list[dict[str, Instance]] = [{instance.name: instance for instance in first}]
        self._client = client
        self._resource_version = resource_version
        self._task = asyncio.create_task(self._follow(), name="follow")

    async def _follow(self) -> None:
        async with self._client.watch(INSTANCE, self._resource_version, timeout_seconds=3600) as events:
            async for event in events:
                if event.object is None:
                    continue
                state = dict(self.states[-1])
                if event.type == "DELETED":
                    state.pop(event.object.name, None)
                else:
                    state[event.object.name] = event.object
                self.states.append(state)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def is_ready(instance: Instance) -> bool:
    status = instance.status
    return not instance.metadata.deleting and status is not None and conditions.is_true(status.conditions, READY)
