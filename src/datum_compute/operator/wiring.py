"""The controllers of each side. Entry points: `management_controllers`, `cell_controllers`."""

from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.instance import NAME, InstanceController
from datum_compute.cell.quota import CellName, Claims
from datum_compute.cell.writeback import WriteBack
from datum_compute.management.federator import Federator
from datum_compute.management.projector import Projector
from datum_compute.management.workload import WorkloadController
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet


def management_controllers(fleet: Fleet, clock: Clock, hub: str) -> list[Reconciler]:
    return [WorkloadController(fleet, clock), Federator(fleet, clock), Projector(fleet, hub)]


def cell_controllers(fleet: Fleet, clock: Clock, cell_name: CellName) -> list[Reconciler]:
    """`cell_name` is what a cell calls itself on claims and hub copies; it must be its own among all cells."""
    quota = Claims(fleet, clock, cell_name, NAME)
    write_back = WriteBack(fleet, cell_name, NAME)
    return [DeploymentController(fleet, clock), InstanceController(fleet, clock, quota, write_back)]
