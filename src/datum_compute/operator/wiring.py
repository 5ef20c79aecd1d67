"""The controllers of each side. Entry points: `management_controllers`, `cell_controllers`."""

from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.instance import InstanceController
from datum_compute.cell.quota import Disabled
from datum_compute.management.federator import Federator
from datum_compute.management.workload import WorkloadController
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet


def management_controllers(fleet: Fleet, clock: Clock) -> list[Reconciler]:
    return [WorkloadController(fleet, clock), Federator(fleet, clock)]


def cell_controllers(fleet: Fleet, clock: Clock) -> list[Reconciler]:
    return [DeploymentController(fleet, clock), InstanceController(fleet, clock, Disabled())]
