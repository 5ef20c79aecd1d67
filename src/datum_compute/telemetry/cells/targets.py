"""Which Instances a reader may look into, and where they run. Entry points: `Target`, `targets`, `is_run`.

Everything here decides without I/O, from what the project and the hub say. Which project an Instance belongs to is what
the projector asks as well: the hub namespace has to be the one of the project's namespace, by its uid, and both the
namespace and the copy of the Instance have to name the project. Neither alone is enough, because the uid is only the
word of the project's plane.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.instance import PROGRAMMED, Instance
from datum_compute.api.labels import CITY_CODE, PLACEMENT_NAME, SOURCE_CLUSTER, WORKLOAD_NAME
from datum_compute.api.names import hub_namespace
from datum_compute.federation.identity import Identity
from datum_compute.kube import conditions
from datum_compute.kube.kinds import Namespace
from datum_compute.telemetry.sources import Labels


class Target(Struct, frozen=True):
    """An Instance as the hub knows it. What it is called in its cell is nothing that a tenant may see."""

    namespace: str  # of the project
    place: str  # the namespace on the hub and in the cell
    instance: str
    generation: str
    workload: str
    placement: str
    city: str
    cell: str
    containers: tuple[str, ...]
    runs: bool  # its provider runs it; otherwise something else in the cell may have its name
    crashes: bool = False

    @property
    def readable(self) -> bool:
        return self.runs or self.crashes

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.instance

    def labels(self, container: str) -> Labels:
        """Sites do not say to which of its outputs a container wrote a line."""
        return Labels(
            datum_workload_name=self.workload,
            datum_instance_name=self.instance,
            k8s_container_name=container,
            k8s_pod_uid=self.generation,
            datum_namespace_name=self.namespace,
            datum_placement_name=self.placement,
            datum_city_code=self.city,
        )


def targets(
    project: str,
    namespaces: Iterable[Namespace],
    on_hub: Callable[[str], Namespace | None],
    copies: Callable[[str], Iterable[Instance]],
) -> Iterator[Target]:
    """The Instances of a project. `namespaces` are those of the project's plane that a caller may read in."""
    for namespace in namespaces:
        identity, place = Identity(project, namespace.name), hub_namespace(namespace.metadata.uid)
        home = on_hub(place) if namespace.metadata.uid else None
        if home is None or Identity.of(home.metadata.labels) != identity:
            continue
        for copy in copies(place):
            if copy.namespace == place and Identity.of(copy.metadata.labels) == identity:
                with suppress(msgspec.MsgspecError):  # cells write copies, and one that makes no sense hides no other
                    yield target_of(copy, namespace.name)


def target_of(copy: Instance, namespace: str) -> Target:
    labels, sandbox = copy.metadata.labels, copy.spec.runtime.sandbox
    return Target(
        namespace=namespace,
        place=copy.namespace,
        instance=copy.name,
        generation=copy.metadata.uid,
        workload=labels.get(WORKLOAD_NAME, ""),
        placement=labels.get(PLACEMENT_NAME, ""),
        city=labels.get(CITY_CODE, ""),
        cell=labels.get(SOURCE_CLUSTER, ""),
        containers=tuple(container.name for container in sandbox.containers) if sandbox is not None else (),
        runs=is_run(copy),
        crashes=any(condition.reason == reasons.INSTANCE_CRASHING for condition in conditions.of(copy)),
    )


def is_run(copy: Instance) -> bool:
    """Whether the provider of an Instance says that it runs it. Until then something else may run under its name."""
    controller = copy.status.controller if copy.status is not None else None
    observed = controller is not None and bool(controller.observed_template_hash)
    return observed or conditions.is_true(conditions.of(copy), PROGRAMMED)
