"""What serves in place of systems that are absent, by name. Entry points: `in_projects`, `in_cell`, `provider`.

Imported when they are asked for: most installs have the real thing.
"""

from collections.abc import Collection

import msgspec

from datum_compute.operator.config import Grants, Pods
from datum_compute.operator.settings import ENTITLEMENT, LOCATIONS, NETWORK, QUOTA
from datum_compute.runtime import Fleet, Reconciler


def in_projects(builtins: Collection[str], fleet: Fleet, grants: Grants | None = None) -> list[Reconciler]:
    found: list[Reconciler] = []
    if QUOTA in builtins:
        from datum_compute.platform.quota import QuotaBroker

        found.append(QuotaBroker())
    if ENTITLEMENT in builtins:
        from datum_compute.platform.entitlement import EntitlementController

        found.append(EntitlementController(limits=(grants or Grants()).limits))
    if LOCATIONS in builtins:
        from datum_compute.platform.locations import LocationBindings

        found.append(LocationBindings(fleet))
    return found


def in_cell(builtins: Collection[str], *, networking: bool) -> list[Reconciler]:
    """Only networks ask where a cell is; without them nobody may even look at its Location."""
    found: list[Reconciler] = []
    if NETWORK in builtins:
        from datum_compute.platform.addresses import AddressController
        from datum_compute.platform.networks import NetworkController

        found += [NetworkController(), AddressController()]
    else:
        from datum_compute.platform.former_networks import FormerNetworks

        found.append(FormerNetworks())
    if LOCATIONS in builtins and networking:
        from datum_compute.platform.locations import CellLocations

        found.append(CellLocations())
    return found


def provider(name: str, *, addressed: bool, pods: Pods | None = None) -> list[Reconciler]:
    """`addressed` says that Instances are handed their addresses, which a provider then waits for."""
    from datum_compute.providers.former import FormerProviders

    return [*_current(name, addressed, pods), FormerProviders(name)]


def _current(name: str, addressed: bool, pods: Pods | None) -> list[Reconciler]:
    match name:
        case "simulated":
            from datum_compute.providers.simulated import Behaviour, SimulatedProvider

            return [SimulatedProvider(Behaviour(wait_for_addresses=addressed))]
        case "pods":
            from datum_compute.providers.pod_settings import PodSettings
            from datum_compute.providers.pods import PodsProvider

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
