"""A cell without the network operator. Entry point: `Cell`, in which the test plays compute's own controllers."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from datum_compute.api.addresses import addresses_of
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import NETWORK_ADDRESSES
from datum_compute.api.networking import (
    NETWORK,
    NETWORK_BINDING,
    SUBNET,
    SUBNET_CLAIM,
    NetworkBinding,
    NetworkContext,
    Subnet,
    SubnetClaim,
)
from datum_compute.federation.roles import CELL
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.platform.addresses import ADDRESSES_ASSIGNED, AddressController
from datum_compute.platform.networks import NetworkController
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness

LOCATION = {"name": "dfw", "namespace": ""}
RUNTIME = {"resources": {"instanceType": "datumcloud/d1-standard-2"}}


class Cell(ControllerHarness):
    def __init__(self, simulation: Simulation, *reconcilers: Callable[[], Reconciler]) -> None:
        self._reconcilers = reconcilers or (NetworkController, AddressController)
        super().__init__(simulation, {"cell": CELL}, self._build)
        self.client = self.engine.client("cell")

    def _build(self, fleet: Fleet) -> list[Reconciler]:
        return [reconciler() for reconciler in self._reconcilers]

    async def start(self) -> None:
        for name in ("ns", "ns-other"):
            await self.client.create(NAMESPACE, NAMESPACE.body(name))
        await self.run()

    async def restart(self) -> None:
        """Replaces the process by one that knows only what it reads from the plane."""
        manager = self._tasks[1]
        manager.cancel()
        await asyncio.gather(manager, return_exceptions=True)
        fleet = Fleet()
        transport = self.faults["cell"]
        fleet.add(Plane("cell", CELL, transport, writes=self.writes, generator=self.simulation.random))
        self.manager = Manager(fleet, self._build(fleet), self.simulation)
        self._tasks[1] = asyncio.create_task(self.manager.run())
        await self.settle()

    # What compute's controllers would do

    async def network(self, name: str = "default", **spec: object) -> None:
        await self.client.create(NETWORK, NETWORK.body(name, "ns") | {"spec": {"ipam": {"mode": "Auto"}} | spec})
        await self.settle()

    async def bind(self, deployment: str = "web", network: str = "default", namespace: str = "ns", **ref: str) -> None:
        spec = {"network": {"name": network} | ref, "location": LOCATION}
        body = NETWORK_BINDING.body(f"{deployment}-net-0", namespace)
        await self.client.create(NETWORK_BINDING, body | {"spec": spec})
        await self.settle()

    async def claim(self, network: str = "default", namespace: str = "ns", **fields: object) -> None:
        spec = {
            "subnetClass": "private",
            "networkContext": {"name": f"{network}-dfw"},
            "location": LOCATION,
            "ipFamily": "IPv4",
        }
        body = SUBNET_CLAIM.body(f"{network}-dfw-0", namespace)
        await self.client.create(SUBNET_CLAIM, body | {"spec": spec | fields})
        await self.settle()

    async def prepare(self, network: str = "default", namespace: str = "ns", **claim: object) -> None:
        await self.bind(network=network, namespace=namespace, deployment=network)
        await self.claim(network, namespace, **claim)

    async def create(
        self, name: str, *networks: str, namespace: str = "ns", annotations: dict[str, str] | None = None
    ) -> None:
        interfaces = [{"network": {"name": network}} for network in networks or ("default",)]
        spec = {"runtime": RUNTIME, "networkInterfaces": interfaces, "location": LOCATION}
        body = INSTANCE.body(name, namespace, annotations=annotations)
        await self.client.create(INSTANCE, body | {"spec": spec})
        await self.settle()

    async def delete(self, kind: Kind[Any], name: str, namespace: str = "ns") -> None:
        await self.client.delete(kind, name, namespace)
        await self.settle()

    async def finish(self) -> None:
        """Waits longer than any retry takes."""
        await self.simulation.advance(60)
        await self.settle()

    # Reading

    async def binding(self, name: str = "web-net-0", namespace: str = "ns") -> NetworkBinding:
        return await self.client.get(NETWORK_BINDING, name, namespace)

    async def subnet(self, name: str = "default-dfw-0", namespace: str = "ns") -> Subnet:
        return await self.client.get(SUBNET, name, namespace)

    async def instance(self, name: str, namespace: str = "ns") -> Instance:
        return await self.client.get(INSTANCE, name, namespace)

    async def addresses(self, name: str, namespace: str = "ns") -> list[str]:
        entries = addresses_of(await self.instance(name, namespace)) or ()
        return [address for entry in entries for address in entry]

    async def all_addresses(self) -> list[str]:
        return [
            address
            for instance in (await self.client.list(INSTANCE, "ns")).items
            for entry in addresses_of(instance) or ()
            for address in entry
        ]

    def check_history(self) -> None:
        """Asserts that at no time two Instances had the same address."""
        held: dict[str, str | None] = {}
        for row in self.engine.log.rows():
            if row.resource == INSTANCE.resource:
                metadata = json.loads(row.value)["metadata"]
                held[row.name] = metadata.get("annotations", {}).get(NETWORK_ADDRESSES)
                if row.type == "DELETED":
                    del held[row.name]
            addresses = [text for text in held.values() if text]
            assert len(addresses) == len(set(addresses)), f"{held} at revision {row.revision}"

    async def assigned(self, name: str) -> tuple[str, str, str] | None:
        condition = conditions.find(conditions.of(await self.instance(name)), ADDRESSES_ASSIGNED)
        return (condition.status, condition.reason, condition.message) if condition else None


def ready(object_: NetworkBinding | NetworkContext | SubnetClaim | Subnet) -> tuple[str, str]:
    """Status and reason of the Ready condition."""
    condition = conditions.find(conditions.of(object_), "Ready")
    assert condition is not None
    return condition.status, condition.reason
