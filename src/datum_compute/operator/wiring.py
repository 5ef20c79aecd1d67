"""The controllers of each side. Entry points: `management_controllers`, `cell_controllers`."""

from prometheus_client import CollectorRegistry

from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.instance import NAME, InstanceController
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota import CellName, Claims, Disabled, IsGone, Quota, nobody_knows
from datum_compute.cell.writeback import WriteBack
from datum_compute.management.federator import Federator
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.management.projector import Projector
from datum_compute.management.workload import WorkloadController
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet


def management_controllers(
    fleet: Fleet, clock: Clock, hub: str, *, networking: bool = False, registry: CollectorRegistry | None = None
) -> list[Reconciler]:
    metrics = ManagementMetrics(registry)
    return [
        WorkloadController(fleet, clock, networking=networking),
        Federator(fleet, clock, metrics=metrics),
        Projector(fleet, clock, hub, metrics=metrics),
    ]


def cell_controllers(
    fleet: Fleet,
    clock: Clock,
    cell_name: CellName,
    *,
    networking: bool = False,
    registry: CollectorRegistry | None = None,
    named: bool = True,
    recreate_denied: bool = True,
    is_gone: IsGone = nobody_knows,
    quota: bool = True,
    write_back: bool = True,
) -> list[Reconciler]:
    """`cell_name` is what a cell calls itself on claims and hub copies; it must be its own among all cells.

    `named` says that somebody chose it: only then may copies that carry it be taken for this cell's leftovers. A cell
    without write-back stands alone: what it is asked to run comes from anybody, not from a hub.
    """
    metrics = Metrics(registry)
    asked: Quota
    if quota:
        asked = Claims(fleet, clock, cell_name, NAME, recreate_denied=recreate_denied, is_gone=is_gone, metrics=metrics)
    else:
        asked = Disabled()
    return [
        DeploymentController(fleet, clock, networking=networking),
        InstanceController(
            fleet,
            clock,
            asked,
            WriteBack(fleet, cell_name, NAME, named=named) if write_back else None,
            networking=networking,
            metrics=metrics,
        ),
    ]
