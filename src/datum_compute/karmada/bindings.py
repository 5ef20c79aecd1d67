"""Removal of Karmada bindings that outlived their deployment. Entry point: `release`."""

import structlog

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.karmada import RESOURCE_BINDING
from datum_compute.kube.errors import NotFound
from datum_compute.runtime import Handle

_log = structlog.get_logger(__name__)


async def release(hub: Handle, copy: WorkloadDeployment) -> None:
    """Deletes the binding of an earlier deployment of this name, which keeps Karmada from propagating this one.

    The hub's garbage collector deletes bindings with their owner. It misses an owner that has been replaced by another
    object of the same name by the time it looks, as after an outage of the hub, and then the binding stays for ever.
    """
    try:
        binding = await hub.client.get(
            RESOURCE_BINDING, f"{copy.name}-{WORKLOAD_DEPLOYMENT.name.lower()}", copy.namespace
        )
    except NotFound:
        return
    owner = binding.metadata.controller
    if owner is None or owner.uid == copy.metadata.uid or binding.metadata.deleting:
        return
    live = await hub.client.get(WORKLOAD_DEPLOYMENT, copy.name, copy.namespace)
    if live.metadata.uid == copy.metadata.uid:  # otherwise ours is the deployment that was replaced
        _log.info("binding of an earlier deployment removed", binding=f"{binding.namespace}/{binding.name}")
        await hub.write.delete_if_unchanged(binding)  # it may be given to this deployment meanwhile
