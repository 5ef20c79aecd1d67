"""What serves in place of systems that are absent, by name. Entry points: `in_projects`, `in_cell`, `provider`.

Imported when they are asked for: most installs have the real thing.
"""

from collections.abc import Collection

from datum_compute.operator.settings import ENTITLEMENT, LOCATIONS, NETWORK, QUOTA
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet


def in_projects(builtins: Collection[str], fleet: Fleet, clock: Clock) -> list[Reconciler]:
    found: list[Reconciler] = []
    if QUOTA in builtins:
        from datum_compute.platform.quota import QuotaBroker

        found.append(QuotaBroker(fleet, clock))
    if ENTITLEMENT in builtins:
        from datum_compute.platform.entitlement import EntitlementController
        from datum_compute.platform.grants import DEFAULT_LIMITS

        found.append(EntitlementController(fleet, clock, limits=DEFAULT_LIMITS))
    if LOCATIONS in builtins:
        from datum_compute.platform.locations import LocationBindings

        found.append(LocationBindings(fleet, clock))
    return found


def in_cell(builtins: Collection[str], fleet: Fleet, clock: Clock, *, networking: bool) -> list[Reconciler]:
    """Only networks ask where a cell is; without them nobody may even look at its Location."""
    found: list[Reconciler] = []
    if NETWORK in builtins:
        from datum_compute.platform.networks import NetworkController

        found.append(NetworkController(fleet, clock))
    if LOCATIONS in builtins and networking:
        from datum_compute.platform.locations import CellLocations

        found.append(CellLocations(fleet))
    return found


def provider(name: str, fleet: Fleet, clock: Clock, *, addressed: bool) -> list[Reconciler]:
    """`addressed` says that Instances are handed their addresses, which a provider then waits for."""
    match name:
        case "simulated":
            from datum_compute.providers.simulated import Behaviour, SimulatedProvider

            return [SimulatedProvider(fleet, clock, Behaviour(wait_for_addresses=addressed))]
        case "pods":
            from datum_compute.providers.pods import PodsProvider

            return [PodsProvider(fleet, clock)]
    return []
