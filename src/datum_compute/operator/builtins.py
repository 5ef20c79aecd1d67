"""Built-ins and providers by name. Entry points: `in_projects`, `in_cell`, `provider`.

They are imported only when enabled: most installations have the real services.
"""

from collections.abc import Collection

import msgspec

from datum_compute.operator.config import Grants, Pods
from datum_compute.operator.settings import ENTITLEMENT, LOCATIONS, NETWORK, QUOTA
from datum_compute.runtime import Fleet, Reconciler


def in_projects(builtins: Collection[str], fleet: Fleet, grants: Grants | None = None) -> list[Reconciler]:
    controllers: list[Reconciler] = []
    if QUOTA in builtins:
        from datum_compute.platform.quota import QuotaBroker

        controllers.append(QuotaBroker())
    if ENTITLEMENT in builtins:
        from datum_compute.platform.entitlement import EntitlementController

        controllers.append(EntitlementController(limits=(grants or Grants()).limits))
    if LOCATIONS in builtins:
        from datum_compute.platform.locations import LocationBindings

        controllers.append(LocationBindings(fleet))
    return controllers


def in_cell(builtins: Collection[str], *, networking: bool) -> list[Reconciler]:
    """Only networks need the Location of a cell; without networking nobody may even read it."""
    controllers: list[Reconciler] = []
    if NETWORK in builtins:
        from datum_compute.platform.addresses import AddressController
        from datum_compute.platform.networks import NetworkController

        controllers += [NetworkController(), AddressController()]
    else:
        from datum_compute.platform.former_networks import FormerNetworks

        controllers.append(FormerNetworks())
    if LOCATIONS in builtins and networking:
        from datum_compute.platform.locations import CellLocations

        controllers.append(CellLocations())
    return controllers


def provider(name: str, *, addressed: bool, pods: Pods | None = None) -> list[Reconciler]:
    """`addressed` means that Instances are assigned addresses, for which a provider then waits."""
    from datum_compute.providers.former import FormerProviders

    return [*_current(name, addressed, pods), FormerProviders(name)]


def _current(name: str, addressed: bool, pods: Pods | None) -> list[Reconciler]:
    match name:
        case "simulated":
            from datum_compute.providers.simulated import Behaviour, SimulatedProvider

            return [SimulatedProvider(Behaviour(wait_for_addresses=addressed))]
        case "pods":
            from datum_compute.providers.pods.provider import PodsProvider
            from datum_compute.providers.pods.settings import PodSettings

            chosen = pods or Pods()
            policy = chosen.network_policy
            settings = PodSettings(
                runtime_class=chosen.runtime_class_name,
                node_selector=chosen.node_selector,
                tolerations=tuple(msgspec.to_builtins(chosen.tolerations)),
                ingress=tuple(msgspec.to_builtins(policy.ingress)) if policy.ingress is not None else None,
                egress=tuple(msgspec.to_builtins(policy.egress)) if policy.egress is not None else None,
            )
            return [PodsProvider(settings)]
    return []
