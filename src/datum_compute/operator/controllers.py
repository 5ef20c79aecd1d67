"""The controllers of each side. Entry points: `management_controllers`, `cell_controllers`."""

from prometheus_client import CollectorRegistry

from datum_compute.cell.abandoned_claims import AbandonedClaims
from datum_compute.cell.claims import ABANDON_SECONDS, Claims, IsGone, never_gone
from datum_compute.cell.deployment import DeploymentController
from datum_compute.cell.instance import InstanceController
from datum_compute.cell.ledger import Ledger
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.name_lease import CellName
from datum_compute.cell.quota import Disabled
from datum_compute.cell.quota_gate import NAME, QuotaGate
from datum_compute.cell.writeback import WriteBack
from datum_compute.federation.removal import GRACE_SECONDS
from datum_compute.management.federator import Federator
from datum_compute.management.handover import Handover
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.management.projector import Projector
from datum_compute.management.standby_clusters import StandbyClusters
from datum_compute.management.sweeper import HubSweeper
from datum_compute.management.workload import WorkloadController
from datum_compute.runtime import Clock, Fleet, Reconciler


def management_controllers(
    fleet: Fleet,
    hub: str,
    *,
    networking: bool = False,
    registry: CollectorRegistry | None = None,
    remove_leftovers: bool = True,
    leftover_grace: float = GRACE_SECONDS,
) -> list[Reconciler]:
    metrics = ManagementMetrics(registry)
    return [
        WorkloadController(networking=networking),
        Federator(fleet, metrics=metrics),
        Projector(fleet, hub, metrics=metrics),
        StandbyClusters(),
        Handover(fleet),
        HubSweeper(fleet, metrics=metrics, enabled=remove_leftovers, grace=leftover_grace),
    ]


def cell_controllers(
    fleet: Fleet,
    clock: Clock,
    cell_name: CellName,
    *,
    networking: bool = False,
    metrics: Metrics | None = None,
    named: bool = True,
    recreate_denied: bool = True,
    is_gone: IsGone = never_gone,
    ledger: Ledger | None = None,
    abandon_after: float = ABANDON_SECONDS,
    quota: bool = True,
    write_back: bool = True,
    remove_leftovers: bool = True,
    leftover_grace: float = GRACE_SECONDS,
) -> list[Reconciler]:
    """`cell_name` identifies the cell on claims and hub copies, and must be unique among all cells.

    `named` means that it was configured: only then may copies that carry it count as this cell's leftovers. A cell
    without write-back stands alone: its deployments come from anybody, not from a hub. Without a `ledger`, claims that
    a project refuses to delete are never abandoned.
    """
    metrics = metrics or Metrics()
    claims = (
        Claims(
            fleet,
            cell_name,
            NAME,
            recreate_denied=recreate_denied,
            is_gone=is_gone,
            named=named,
            ledger=ledger,
            abandon_after=abandon_after,
            metrics=metrics,
        )
        if quota
        else None
    )
    instances = InstanceController(networking=networking, waits_for_hub=write_back and not named, metrics=metrics)
    controllers: list[Reconciler] = [
        DeploymentController(
            fleet,
            networking=networking,
            metrics=metrics,
            remove_leftovers=remove_leftovers,
            leftover_grace=leftover_grace,
        ),
        instances,
        QuotaGate(fleet, clock, claims or Disabled(), metrics=metrics),
    ]
    if claims is not None and ledger is not None:
        controllers.append(AbandonedClaims(claims, ledger, metrics=metrics))
    if write_back:
        controllers.append(WriteBack(fleet, cell_name, named=named, is_current=instances.is_current, metrics=metrics))
    return controllers
