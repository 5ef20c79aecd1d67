"""Whether a caller may use the networks of a workload. Entry point: `reviewed`."""

import asyncio

from msgspec.structs import replace

from datum_compute.api.networking import NETWORK
from datum_compute.api.validation import Facts
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError
from datum_compute.kube.meta import Json
from datum_compute.kube.reviews import Caller, may

MOST = 64  # networks reviewed per workload


def networks_of(workload: Json) -> list[str]:
    """Each network name once, even if the workload is malformed."""
    value: object = workload
    for name in ("spec", "template", "spec", "networkInterfaces"):
        value = value.get(name) if isinstance(value, dict) else None
    names = [_network(interface) for interface in value] if isinstance(value, list) else []
    return list(dict.fromkeys(filter(None, names)))


def _network(interface: object) -> str:
    network = interface.get("network") if isinstance(interface, dict) else None
    name = network.get("name") if isinstance(network, dict) else None
    return name if isinstance(name, str) else ""


async def reviewed(facts: Facts, client: Client, caller: Caller, namespace: str, networks: list[str]) -> Facts:
    """The facts with one access review per network, made in the project, where its own rules apply."""

    async def review(network: str) -> bool | str:
        attributes = {
            "verb": "use",
            "group": NETWORK.group,
            "version": NETWORK.version,
            "resource": NETWORK.plural,
            "name": network,
            "namespace": namespace,
        }
        try:
            return await may(client, caller, {"resourceAttributes": attributes})
        except ApiError as error:
            return f"the access review of the network failed: {error}"

    answers = dict(zip(networks, await asyncio.gather(*map(review, networks[:MOST])), strict=False))
    failed = {network: answer for network, answer in answers.items() if isinstance(answer, str)}
    failed |= dict.fromkeys(networks[MOST:], f"a workload with more than {MOST} networks is not reviewed")
    denied = tuple(network for network, answer in answers.items() if answer is False)
    return replace(facts, denied_networks=denied, failed_reviews=failed)
