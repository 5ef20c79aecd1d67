"""The real engine for scenarios: Kubernetes and Karmada as `make engine-up` runs them, our side as compute-managers.

The planes and the managers outlive a test, so each one starts by checking that the one before left nothing behind.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import BINDING_NAMESPACE, PROPAGATION_POLICY, WORK
from datum_compute.api.networking import LOCATION_BINDING, NETWORK_BINDING, SUBNET_CLAIM
from datum_compute.api.permissions import Who
from datum_compute.api.quota import RESOURCE_CLAIM, RESOURCE_GRANT
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.scope import came_from_hub
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, NotFound
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.local.federation import prepare_project
from datum_compute.platform.grants import DEFAULT_LIMITS
from engine.harness import Engine
from tests.scenarios.federation import Federation
from tests.scenarios.managers import CELLS, PROJECTS, Managers

HUB_PLANE = "hub"

# Planes of the engine by the names under which scenarios know them.
PLANES = {HUB_PLANE: "downstream", **PROJECTS, **{cell: cell for cell in CELLS.values()}}

_SNAPSHOT = "scenario"
_LOOK_SECONDS = 0.05
_PATIENCE = 3  # scenarios say how long something takes when nothing else is going on; machines are busy
_RECOVERY_SECONDS = 90
_WAITING_AFTER_OUTAGES = ("karmada-controller-manager", "karmada-scheduler")


class RealFederation:
    """Processes of ours over HTTPS on the planes of the engine, under the generated roles; propagation is Karmada's."""

    def __init__(self, engine: Engine, managers: Managers) -> None:
        self.managers = managers
        self._engine = engine
        self._away: set[str] = set()
        self._had_outage = False
        # The test itself looks everywhere as the administrator, and acts as a user.
        self._transports: list[HttpTransport] = []
        self.hub = self._client(HUB_PLANE)
        self.cells = {city: self._client(cell) for city, cell in CELLS.items()}
        self._projects = {name: self._client(name) for name in PROJECTS}
        self._users = {name: self._client(name, Who.USER.value) for name in PROJECTS}

    def _client(self, name: str, who: str = "") -> Client:
        transport = HttpTransport(load([self._engine.kubeconfig(PLANES[name], who)]))
        self._transports.append(transport)
        return Client(name, transport)

    def project_client(self, project: str) -> Client:
        return self._projects[project]

    def user_client(self, project: str) -> Client:
        return self._users[project]

    async def start(self) -> None:
        await asyncio.to_thread(self.managers.start)
        for project, client in self._projects.items():
            await prepare_project(client)
            await self.until(partial(self._offers, client), 60, f"{project} has cities")
        await self.allow(DEFAULT_LIMITS)
        await self.clear()

    async def allow(self, limits: Mapping[str, int]) -> None:
        """What every project may have; the next scenario starts with the default again."""
        for client in self._projects.values():
            for grant in (await client.list(RESOURCE_GRANT)).items:
                allowances = [
                    {"resourceType": allowance.resource_type, "buckets": [{"amount": limits[allowance.resource_type]}]}
                    for allowance in grant.spec.allowances
                ]
                patch = {"spec": {"allowances": allowances}}
                await client.merge_patch(RESOURCE_GRANT, grant.name, grant.namespace, patch)

    async def _offers(self, client: Client) -> bool:
        return len((await client.list(LOCATION_BINDING)).items) == len(CELLS)

    async def restart(self) -> None:
        """All our processes die where they stand and are started again."""
        await asyncio.to_thread(self.managers.kill)
        await asyncio.to_thread(self.managers.start)

    async def take_away(self, plane: str) -> None:
        """Ends the plane's API server as a crash would."""
        self._away.add(plane)
        self._had_outage = True
        await asyncio.to_thread(self._engine.kill, _server(plane))

    async def bring_back(self, plane: str) -> None:
        await asyncio.to_thread(self._engine.start, _server(plane))
        self._away.discard(plane)

    async def snapshot(self, plane: str) -> None:
        await asyncio.to_thread(self._engine.snapshot, PLANES[plane], _SNAPSHOT)

    async def restore(self, plane: str) -> None:
        """Takes a plane back to its snapshot; our processes are not informed."""
        await asyncio.to_thread(self._engine.restore, PLANES[plane], _SNAPSHOT)

    async def down(self, *names: str) -> None:
        """Ends processes of ours."""
        for name in names:
            await asyncio.to_thread(self.managers.end, name)

    async def up(self, *names: str) -> None:
        """Starts those of them that are down, and returns when they are ready."""
        await asyncio.to_thread(self.managers.start, names)

    async def suspend(self, project: str) -> None:
        """Takes its kubeconfig from management; cells go on, since what they run is theirs."""
        await asyncio.to_thread(self.managers.suspend, project)

    async def resume(self, project: str) -> None:
        await asyncio.to_thread(self.managers.resume, project)

    async def clear(self) -> None:
        """Deletes every workload and waits until nothing of it is left on any plane; leftovers are a failure."""
        for client in self._projects.values():
            for workload in (await client.list(WORKLOAD)).items:
                with suppress(NotFound):
                    await client.delete(WORKLOAD, workload.name, workload.namespace)
        try:
            await self.until(self._is_clear, 60, "nothing is left on any plane")
        except AssertionError as failure:
            failure.add_note("\n".join(await self._leftovers()))
            await self._remove_by_force()  # one scenario fails, not all that come after it
            raise

    async def _remove_by_force(self) -> None:
        """All that a scenario can leave behind, from where it is asked for to where it runs, whoever still wants it."""
        everywhere = [*self._projects.values(), self.hub, *self.cells.values()]
        left: list[tuple[Client, Sequence[Kind[Any]]]] = [
            *((client, (WORKLOAD, WORKLOAD_DEPLOYMENT)) for client in self._projects.values()),
            (self.hub, (PROPAGATION_POLICY, WORKLOAD_DEPLOYMENT)),
            *((client, (WORKLOAD_DEPLOYMENT, INSTANCE)) for client in everywhere),
            *((client, (RESOURCE_CLAIM,)) for client in self._projects.values()),
            *((client, (SUBNET_CLAIM, NETWORK_BINDING)) for client in self.cells.values()),
        ]
        homes = {home.name for home in (await self.hub.list(NAMESPACE)).items if came_from_hub(home)}
        for work in (await self.hub.list(WORK)).items:
            if work.metadata.annotations.get(BINDING_NAMESPACE) in homes:
                await self.hub.delete(WORK, work.name, work.namespace)
        for client, kinds in left:
            for kind in kinds:
                for object_ in (await client.list(kind)).items:
                    with suppress(NotFound):
                        await client.delete(kind, object_.name, object_.namespace, propagation="Background")
                        await client.merge_patch(
                            kind, object_.name, object_.namespace, {"metadata": {"finalizers": None}}
                        )

    async def _is_clear(self) -> bool:
        return not await self._leftovers()

    async def _leftovers(self) -> list[str]:
        """Everything of any workload that is on some plane."""
        everywhere: list[tuple[Client, Sequence[Kind[Any]]]] = [
            *(
                (client, (WORKLOAD, WORKLOAD_DEPLOYMENT, INSTANCE, RESOURCE_CLAIM))
                for client in self._projects.values()
            ),
            (self.hub, (WORKLOAD_DEPLOYMENT, INSTANCE, PROPAGATION_POLICY)),
            *(
                (client, (WORKLOAD_DEPLOYMENT, INSTANCE, NETWORK_BINDING, SUBNET_CLAIM))
                for client in self.cells.values()
            ),
        ]
        return [
            f"{kind.name} {object_.namespace}/{object_.name} in {client.plane}"
            for client, kinds in everywhere
            for kind in kinds
            for object_ in (await client.list(kind)).items
        ]

    async def stop(self) -> None:
        """Leaves the planes as it found them, also after a scenario that failed."""
        try:
            for plane in sorted(self._away):
                await self.bring_back(plane)
            if self._had_outage:
                await self._recover()
            await asyncio.to_thread(self.managers.start)
            await self.clear()
            await asyncio.to_thread(self.managers.check)
        finally:
            for transport in self._transports:
                await transport.close()

    async def _recover(self) -> None:
        """Until a workload goes its whole way again: the next test must not find Karmada still waiting to try again.

        By itself it takes a minute, which tests of Karmada measure; started anew, it looks at once.
        """
        for name in _WAITING_AFTER_OUTAGES:
            await asyncio.to_thread(self._engine.kill, name)
            await asyncio.to_thread(self._engine.start, name)
        project = Federation(self).project()
        await project.deploy("canary", list(CELLS))
        await project.until_ready("canary", len(CELLS), _RECOVERY_SECONDS)

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float, what: str) -> None:
        last_error = ""
        try:
            async with asyncio.timeout(within * _PATIENCE):
                while True:
                    self.managers.alive()
                    try:
                        if await condition():
                            break
                        last_error = ""
                    except ApiError as error:
                        if not error.retryable:
                            raise
                        last_error = f" ({error})"  # a plane that is away, or on its way back
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            failure = f"{what} did not come true within {within * _PATIENCE} s{last_error}\n{self.managers.report()}"
            raise AssertionError(failure) from None


def _server(plane: str) -> str:
    """The process that serves it."""
    return f"{PLANES[plane]}-apiserver"
