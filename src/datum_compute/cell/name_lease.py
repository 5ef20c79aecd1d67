"""Makes sure that only one cluster uses a configured cell name. Entry points: `NameLease`, `NameNotHeld`.

The name is a Lease in the namespace that Karmada keeps for the cell on the hub. Its holder is the uid of the cell's
`kube-system` namespace, so that replicas and restarts of one cell share it. Two cells with the same name would mistake
each other's hub copies for their own leftovers.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from datum_compute.api import reasons
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import WORK, execution_space
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.federation.metrics import CELL_NAME_HELD
from datum_compute.federation.roles import CELL, CLAIMS, HUB
from datum_compute.kube.errors import ApiError, Conflict, Forbidden, NotFound
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.transport import Call
from datum_compute.runtime import Clock, Drop, Fleet, Handle, Pass, Plane, Request, Source
from datum_compute.runtime.leases import Tenure

LEASE_SECONDS = 60
RENEW_SECONDS = 40.0
RETRY_SECONDS = 10.0
ANSWER_SECONDS = 10.0
IDENTITY_NAMESPACE = "kube-system"

_log = structlog.get_logger(__name__)

CellName = Callable[[Plane], str]
"""What a cell calls itself on claims and hub copies."""


class NameNotHeld(ApiError):
    """A write that was not sent because it carries a name that another cell may hold."""

    code, reason, retryable = 503, "CellNameNotHeld", True


class NameLease:
    """Acquires and renews the Lease on the leading replica, and guards writes under the name.

    Hub copies are written only while the Lease is held. Claims stop only when another cluster is known to hold it: a
    site rolls and scales even while its hub is unreachable, and nobody can take over a name without the hub.
    """

    name = "cell-name"
    sweep_role = CELL
    sweep_seconds = 600.0

    def __init__(
        self, fleet: Fleet, clock: Clock, cell_name: str, *, registry: CollectorRegistry | None = None
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._cell_name = cell_name
        self._tenure: Tenure | None = None
        self._cluster: Namespace | None = None  # its uid is the cell's identity
        self._attempted = False
        self._obstacle = "the hub has not been asked for it yet"
        self._reported = ""
        CELL_NAME_HELD.gauge(registry).labels(cell_name).set_function(lambda: self.held)
        fleet.join(self)

    @property
    def held(self) -> bool:
        return self._tenure is not None and self._tenure.held

    @property
    def holder(self) -> str:
        """The other cluster that was last observed holding the name; empty when there was none."""
        tenure = self._tenure
        return tenure.holder if tenure is not None and tenure.holder != tenure.identity else ""

    @property
    def obstacle(self) -> str:
        """Why the name is not held; empty while it is."""
        if self.held:
            return ""
        if self.holder:
            return (
                f'The cell name "{self._cell_name}" is held by another cluster, whose namespace {IDENTITY_NAMESPACE} '
                f"has uid {self.holder}; give one of the two another discovery.clusterName"
            )
        return f'The cell name "{self._cell_name}" is not held: {self._obstacle}'

    # As a controller

    def sources(self) -> Sequence[Source[Any]]:
        return ()

    def sweep(self, cell: Plane) -> Iterable[Request | Drop]:
        yield Request(cell.name, "", self._cell_name)

    async def reconcile(self, pass_: Pass) -> None:
        pass_.no_later_than(RETRY_SECONDS)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._keep(pass_)
        except (ApiError, TimeoutError) as error:
            self._obstacle = self._explanation(error)
            _log.debug("cell name not renewed", name=self._cell_name, error=str(error) or "no answer")
        self._attempted = True
        self._report(pass_)

    async def _keep(self, pass_: Pass) -> None:
        tenure = await self._own_tenure(pass_)
        if tenure.held:
            try:
                await tenure.take()
                return
            except (Conflict, NotFound):
                pass  # somebody else wrote or deleted it
        await tenure.look()
        if tenure.free:
            await tenure.take()
            return
        tenure.lose()
        pass_.no_later_than(max(0.0, tenure.expiry - asyncio.get_running_loop().time()))

    async def _own_tenure(self, cell: Handle) -> Tenure:
        if self._tenure is None:
            hub = next(iter(self._fleet.known(HUB)))
            self._cluster = await cell.client.get(NAMESPACE, IDENTITY_NAMESPACE)
            self._tenure = Tenure(
                hub.client,
                execution_space(self._cell_name),
                self._cell_name,
                self._cluster.metadata.uid,
                self._clock,
                LEASE_SECONDS,
                RENEW_SECONDS,
            )
        return self._tenure

    def _explanation(self, error: Exception) -> str:
        space = execution_space(self._cell_name)
        match error:
            case NotFound() if self._tenure is None:
                return f"the cell has no namespace {IDENTITY_NAMESPACE} to identify it by"
            case NotFound():
                return f"the hub has no namespace {space}; discovery.clusterName must be the name of the cell's Cluster"
            case Forbidden():
                return f"the cell may not write Leases in {space} on the hub; bind compute-cell-on-hub-execution-space"
        return "the hub cannot be asked for it"

    def _report(self, pass_: Pass) -> None:
        """Reports changes, not every pass."""
        obstacle = self.obstacle
        if obstacle == self._reported:
            return
        self._reported = obstacle
        if not obstacle:
            _log.info("cell name held", name=self._cell_name)
            return
        _log.warning("cell name not held", name=self._cell_name, holder=self.holder, reason=obstacle)
        if self._cluster is not None:
            reason = reasons.CELL_NAME_TAKEN if self.holder else reasons.CELL_NAME_NOT_HELD
            pass_.events.warning(self._cluster, reason, obstacle)

    # As a member of the fleet

    def prepare(self, plane: Plane) -> None:
        if HUB in plane.roles:
            plane.guard(self._check_hub)
        if CLAIMS in plane.roles:
            plane.guard(self._check_claim)

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None: ...

    def _check_hub(self, call: Call) -> None:
        """Guards only what a cell writes: management may use the same plane in the same process."""
        if (INSTANCE.serves(call.path) or WORK.serves(call.path)) and not self.held:
            raise NameNotHeld(self.obstacle)

    def _check_claim(self, call: Call) -> None:
        """Guards creation and deletion only: others decide and relabel claims."""
        is_ours = call.method in ("POST", "DELETE") and RESOURCE_CLAIM.serves(call.path)
        if is_ours and not self.held and (self.holder or not self._attempted):
            raise NameNotHeld(self.obstacle)
