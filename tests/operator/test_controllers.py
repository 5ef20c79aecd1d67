"""Which kinds the controllers of a process read."""

import pytest

from datum_compute.api.networking import NETWORK
from datum_compute.operator.controllers import cell_controllers, management_controllers
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.fleet import Fleet


@pytest.mark.parametrize("on", [False, True])
async def test_no_networking_kind_is_read_unless_networking_is_on(on: bool) -> None:
    fleet, clock = Fleet(), SystemClock()
    controllers = [
        *management_controllers(fleet, "hub", networking=on),
        *cell_controllers(fleet, clock, lambda plane: plane.name, networking=on),
    ]
    kinds = {source.kind for controller in controllers for source in controller.sources()}
    of_networks = {kind.name for kind in kinds if kind.group == NETWORK.group} - {"LocationBinding", "Location"}
    assert bool(of_networks) is on, of_networks
