"""Deletes what the network built-in left behind in a cell that no longer uses it. Entry point: `FormerNetworks`.

It lists now and then instead of watching: most cells never had the built-in, and may not be allowed to read networks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from datum_compute.api import reasons
from datum_compute.api.labels import NETWORK_FINALIZER
from datum_compute.api.networking import NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, Network
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import is_in_cell
from datum_compute.kube.errors import Forbidden, NotFound
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.platform.networks import is_made_here
from datum_compute.runtime import Pass, Plane, Problems, Request, Source

RECHECK_SECONDS = 10.0

_log = structlog.get_logger(__name__)


class FormerNetworks:
    """Deletes a Network that the built-in created once its last binding is gone, as the built-in would; contexts first.

    Other Networks are left to the network operator, which uses the same finalizer.
    """

    name = "former-network"
    sweep_role = CELL
    sweep_seconds = 600.0

    def __init__(self) -> None:
        self._reported: set[str] = set()  # names of planes, and uids of Networks

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(CELL, NAMESPACE),)

    def sweep(self, plane: Plane) -> Iterable[Request]:
        yield Request(plane.name, "", self.name)

    async def reconcile(self, pass_: Pass) -> None:
        try:
            networks = (await pass_.client.list(NETWORK)).items
        except NotFound:
            return
        except Forbidden as error:
            if pass_.name not in self._reported:
                self._reported.add(pass_.name)
                _log.info("cannot read networks, so those of a former built-in are not deleted", error=str(error))
            return
        problems = Problems()
        for network in networks:
            if not is_in_cell(pass_.plane, network.namespace) or NETWORK_FINALIZER not in network.metadata.finalizers:
                continue
            before = len(problems)
            with problems.collect(f"Network {network.namespace}/{network.name}"):
                if is_made_here(network):
                    await self._delete(pass_, network)
                elif network.metadata.deleting:
                    self._report(
                        pass_, network, "It waits for the network operator, because it was not created by this cell"
                    )
            if len(problems) > before:
                self._report(pass_, network, "The cell is not allowed to delete what its network built-in created")
        problems.raise_worst()

    async def _delete(self, pass_: Pass, network: Network) -> None:
        if not network.metadata.deleting:
            bindings = (await pass_.client.list(NETWORK_BINDING, network.namespace)).items
            if any(binding.spec.network.name == network.name for binding in bindings):
                return
            await pass_.write.delete(network)
            pass_.no_later_than(RECHECK_SECONDS)
            return
        contexts = (await pass_.client.list(NETWORK_CONTEXT, network.namespace)).items
        remaining = [context for context in contexts if context.spec.network.name == network.name]
        for context in remaining:
            if not context.metadata.deleting:
                await pass_.write.delete(context)
        if remaining:
            pass_.no_later_than(RECHECK_SECONDS)
        else:
            await pass_.write.remove_finalizers(network, NETWORK_FINALIZER)

    def _report(self, pass_: Pass, network: Network, sentence: str) -> None:
        """Reports each Network once per process."""
        if network.metadata.uid in self._reported:
            return
        self._reported.add(network.metadata.uid)
        name = f"{network.namespace}/{network.name}"
        _log.warning("network held", network=name, finalizer=NETWORK_FINALIZER, reason=sentence)
        pass_.events.warning(network, reasons.HELD_BY_FORMER_SETUP, sentence)
