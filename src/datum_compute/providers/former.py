"""Stops what a provider that the cell no longer uses left running. Entry point: `FormerProviders`.

A provider removes its finalizer from an Instance only when nothing of it runs any more. A provider that was switched
off cannot, so this controller does it instead: it stops what still runs, and then removes the finalizer.
"""

from collections.abc import Sequence
from typing import Any

import structlog

from datum_compute.api import reasons
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CONTAINERS_FINALIZER, PODS_FINALIZER, SIMULATED_FINALIZER
from datum_compute.federation.roles import CELL
from datum_compute.federation.scope import CELL_NAMESPACES
from datum_compute.kube.errors import Forbidden, NotFound
from datum_compute.kube.meta import as_dict
from datum_compute.providers.pods.state import POD
from datum_compute.providers.report import reached_at
from datum_compute.runtime import Change, Pass, Source, itself

NONE = "none"
FINALIZERS = {"simulated": SIMULATED_FINALIZER, "pods": PODS_FINALIZER, "containers": CONTAINERS_FINALIZER}
RECHECK_SECONDS = 5.0
UNSURE = "The site cannot tell whether the instance still runs where it was run before"

_log = structlog.get_logger(__name__)


class FormerProviders:
    """`current` is the provider in use. If that is none, what runs may still be needed, and is stopped only with its
    Instance. Otherwise it is stopped at once, because the current provider runs the Instance now.
    """

    name = "former-provider"

    def __init__(self, current: str) -> None:
        self._current = current
        self._former = {name: finalizer for name, finalizer in FINALIZERS.items() if name != current}
        self._reported: set[str] = set()  # uids of Instances that are held

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(CELL, INSTANCE, itself, when=self._is_held, scope=CELL_NAMESPACES),)

    def _is_held(self, change: Change[Instance]) -> bool:
        return bool(set(self._former.values()) & set(change.object.metadata.finalizers))

    async def reconcile(self, pass_: Pass) -> None:
        instance = pass_.get(INSTANCE)
        if instance is None:
            return
        ended = [
            finalizer
            for finalizer in self._former.values()
            if finalizer in instance.metadata.finalizers and await self._has_ended(pass_, instance, finalizer)
        ]
        await pass_.write.remove_finalizers(pass_.get(INSTANCE) or instance, *ended)
        if ended:
            self._reported.discard(instance.metadata.uid)
            _log.info("former provider released", instance=str(pass_.request), finalizers=ended)

    async def _has_ended(self, pass_: Pass, instance: Instance, finalizer: str) -> bool:
        if finalizer == SIMULATED_FINALIZER:
            return True  # nothing really runs
        if finalizer == CONTAINERS_FINALIZER:
            # Whoever changed the provider has removed the containers, or left them to the user.
            await _unpublish(pass_, instance)
            return True
        if self._current == NONE and not instance.metadata.deleting:
            return False
        pass_.no_later_than(RECHECK_SECONDS)
        try:
            return await self._is_stopped(pass_, instance)
        except Forbidden as error:
            self._report(pass_, instance, error)
            raise

    async def _is_stopped(self, pass_: Pass, instance: Instance) -> bool:
        """Asks the server, because Pods are not watched any more."""
        try:
            pod = await pass_.client.get(POD, instance.name, instance.namespace)
        except NotFound:
            return True
        owner = pod.metadata.controller
        if owner is None or owner.uid != instance.metadata.uid:
            return True
        if not pod.metadata.deleting:
            await pass_.write.delete(pod)
        return False

    def _report(self, pass_: Pass, instance: Instance, error: Forbidden) -> None:
        if instance.metadata.uid in self._reported:
            return
        self._reported.add(instance.metadata.uid)
        _log.warning(
            "instance held by a former provider",
            instance=f"{instance.namespace}/{instance.name}",
            finalizer=PODS_FINALIZER,
            error=str(error),
            todo="bind compute-cell-on-cell-provider-pods until the Pods are deleted",
        )
        pass_.events.warning(instance, reasons.HELD_BY_FORMER_SETUP, UNSURE)


async def _unpublish(pass_: Pass, instance: Instance) -> None:
    """Removes the address at which a container was reached; no other provider would."""
    status = as_dict(instance.status_json)
    if interfaces := status.get("networkInterfaces"):
        await pass_.write.status(
            instance, status | {"networkInterfaces": [reached_at(interfaces[0], ""), *interfaces[1:]]}
        )
