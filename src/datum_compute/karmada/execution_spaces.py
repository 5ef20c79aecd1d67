"""One hub namespace per Cluster, as Karmada has it. Entry point: `ExecutionSpaces`."""

from collections.abc import Iterable, Sequence
from typing import Any

from datum_compute.api.karmada import CLUSTER, execution_space
from datum_compute.federation.roles import HUB
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.runtime import Change, Pass, Plane, Request, Source, itself

_PREFIX = execution_space("")


class ExecutionSpaces:
    """Creates and deletes the namespace with its Cluster. A cell keeps its own objects there, such as its Lease."""

    name = "execution-space"

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(HUB, CLUSTER, itself), Source(HUB, NAMESPACE, _of_namespace))

    async def reconcile(self, pass_: Pass) -> None:
        cluster, name = pass_.get(CLUSTER), execution_space(pass_.request.name)
        space = pass_.informer(NAMESPACE).get("", name)
        if cluster is None and space is not None and not space.metadata.deleting:
            await pass_.write.delete(space)
        elif cluster is not None and not cluster.metadata.deleting and space is None:
            try:
                await pass_.write.create(NAMESPACE, NAMESPACE.body(name))
            except AlreadyExists:
                return


def _of_namespace(hub: Plane, change: Change[Namespace]) -> Iterable[Request]:
    cluster = change.object.name.removeprefix(_PREFIX)
    if cluster and cluster != change.object.name:
        yield Request(hub.name, "", cluster)
