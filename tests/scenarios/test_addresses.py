"""Networking end to end: addresses reach the user, and a full subnet is reported."""

from ipaddress import ip_address, ip_network

from datum_compute.api.instance import INSTANCE, READY, Instance
from datum_compute.api.networking import NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET, SUBNET_CLAIM
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation


def _addresses(instances: list[Instance]) -> list[str]:
    return [
        interface.assignments.network_ip
        for instance in instances
        for interface in (instance.status.network_interfaces if instance.status else ())
    ]


async def test_every_instance_shows_a_unique_address_in_the_project(embedded: EmbeddedFederation) -> None:
    project = Federation(embedded).project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await project.until_ready("web", 4)
    addresses = _addresses((await project.client.list(INSTANCE)).items)
    assert len(addresses) == len(set(addresses)) == 4
    assert all(ip_address(address) in ip_network("10.128.0.0/9") for address in addresses)


async def test_a_roll_never_has_two_instances_at_one_address(embedded: EmbeddedFederation) -> None:
    project = Federation(embedded).project()
    await project.deploy("web", ["DFW"], replicas=3)
    await project.until_ready("web", 3)
    await project.set_image("web", "registry.example/hello:2")
    await project.until_ready("web", 3)
    addresses = _addresses((await project.client.list(INSTANCE)).items)
    assert len(addresses) == len(set(addresses)) == 3


async def test_no_network_object_is_left_in_a_cell_after_the_last_workload(
    embedded: EmbeddedFederation,
) -> None:
    project = Federation(embedded).project()
    await project.deploy("web", ["DFW"], replicas=1)
    await project.until_ready("web", 1)
    await project.delete("web")
    await project.until_gone("web")
    cell = embedded.cells["DFW"]

    async def nothing() -> bool:
        listings = [
            (await cell.list(NETWORK)).items,
            (await cell.list(NETWORK_BINDING)).items,
            (await cell.list(NETWORK_CONTEXT)).items,
            (await cell.list(SUBNET_CLAIM)).items,
            (await cell.list(SUBNET)).items,
        ]
        return not any(listings)

    await embedded.until(nothing, 60, "no network is left")


async def test_a_full_subnet_is_reported_to_the_user_and_heals_once_there_is_room(embedded: EmbeddedFederation) -> None:
    project = Federation(embedded).project()
    await project.deploy("web", ["DFW"], replicas=1)
    await project.until_ready("web", 1)
    await project.delete("web")
    await project.until_gone("web")
    cell, namespace = embedded.cells["DFW"], await project.hub_namespace()

    async def gone() -> bool:
        return not (await cell.list(NETWORK)).items

    await embedded.until(gone, 60, "the network that was made for it is gone")
    # As the site's operator: a network with room for five.
    spec = {"ipam": {"mode": "Auto", "ipv4Range": "192.0.2.0/29"}}
    await cell.create(NETWORK, NETWORK.body("default", namespace) | {"spec": spec})
    await project.deploy("web", ["DFW"], replicas=6)

    async def is_reported() -> bool:
        try:
            instance = await project.client.get(INSTANCE, "web-main-dfw-5", "default")
        except NotFound:
            return False
        ready = conditions.find(instance.status.conditions if instance.status else (), READY)
        return ready is not None and ready.reason == "NetworkFailedToCreate" and "is full" in ready.message

    await embedded.until(is_reported, 60, "the user is warned that the subnet is full")
    workload = await project.workload("web")
    assert workload is not None
    assert workload.status is not None
    assert workload.status.ready_replicas == 5
    await project.place("web", ["DFW"], 5)
    await project.until_ready("web", 5)
