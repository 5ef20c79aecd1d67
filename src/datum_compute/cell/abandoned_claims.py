"""Deletes abandoned claims once their project's plane allows it. Entry point: `AbandonedClaims`."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import structlog

from datum_compute.api.instance import INSTANCE
from datum_compute.api.permissions import LEDGER
from datum_compute.cell.claims import Claims, is_refusal
from datum_compute.cell.ledger import AbandonedClaim, Ledger
from datum_compute.cell.metrics import Metrics
from datum_compute.federation.roles import CELL
from datum_compute.kube.errors import ApiError, Forbidden
from datum_compute.runtime import NotEngaged, Pass, Plane, Problems, Request, Source

_log = structlog.get_logger(__name__)


class AbandonedClaims:
    """Works through the ledger of each cell at start and every ten minutes; projects do not wait for each other."""

    name = "abandoned-claims"
    sweep_role = CELL
    sweep_seconds = 600.0

    def __init__(self, claims: Claims, ledger: Ledger, *, metrics: Metrics | None = None) -> None:
        self._claims = claims
        self._ledger = ledger
        self._metrics = metrics or Metrics()
        self._warned = False

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(CELL, INSTANCE),)

    def sweep(self, plane: Plane) -> Iterable[Request]:
        yield Request(plane.name, "", LEDGER)

    async def reconcile(self, pass_: Pass) -> None:
        cell = pass_.plane
        try:
            abandoned = await self._ledger.read(cell)
        except Forbidden as error:
            if not self._warned:
                _log.warning("claims cannot be abandoned: bind compute-cell-on-cell-abandoned-claims", error=str(error))
            self._warned = True
            return
        problems = Problems()
        settled: list[AbandonedClaim] = []
        await asyncio.gather(
            *(
                self._settle(cell, project, list(claims), settled, problems)
                for project, claims in groupby(abandoned, attrgetter("project"))
            )
        )
        if settled:
            await self._ledger.remove(cell, settled)
        self._metrics.claims_abandoned.set(len(abandoned) - len(settled))
        problems.raise_worst()

    async def _settle(
        self,
        cell: Plane,
        project: str,
        claims: Sequence[AbandonedClaim],
        settled: list[AbandonedClaim],
        problems: Problems,
    ) -> None:
        """One after the other, because the first refusal stands for the rest of the project."""
        for claim in claims:
            with problems.collect(f"Claim {claim.name} of project {project}"):
                try:
                    if not await self._is_in_use(cell, claim):
                        await self._claims.remove(cell, claim)
                        _log.info("abandoned claim removed", project=project, claim=f"{claim.namespace}/{claim.name}")
                    settled.append(claim)
                except NotEngaged:
                    return  # the next sweep tries again
                except ApiError as error:
                    if is_refusal(error):
                        return
                    raise

    async def _is_in_use(self, cell: Plane, claim: AbandonedClaim) -> bool:
        """Whether a later Instance of the same name uses the claim; asks the cell's server if the cache has none."""
        namespace, name = claim.instance_namespace, claim.instance
        cached = cell.informer(INSTANCE).get(namespace, name)
        return cached is not None or await cell.client.find(INSTANCE, name, namespace) is not None
