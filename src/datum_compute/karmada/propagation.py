"""The propagation that this product needs of Karmada, in this process. Entry points: `NamespacePropagation`,
`Propagation`.

Namespaces of the hub are copied to every cell. An object that a policy selects is copied to the cells whose Cluster the
policy selects, and its status is copied back. A copy stays when the policy or the label is removed; it is deleted with
its original, even when another of the same name is created at once, and when another policy takes the original over.
An original that the hub has no record of, as after a restore from a backup, was not deleted: its copy stays, and the
next original of that name adopts it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import AVAILABLE
from datum_compute.api.karmada import (
    CLUSTER,
    MANAGED,
    ORIGINAL_ANNOTATIONS,
    ORIGINAL_UID,
    PROPAGATION_POLICY,
    WORK_NAMESPACE,
    Cluster,
    LabelMatch,
    PropagationPolicy,
    execution_space,
)
from datum_compute.federation.roles import CELL, HUB
from datum_compute.kube import conditions
from datum_compute.kube.kinds import NAMESPACE, Kind, Namespace
from datum_compute.kube.meta import Json, KubeObject, as_dict
from datum_compute.kube.patches import changes
from datum_compute.kube.selectors import LabelSelector
from datum_compute.runtime import Change, Fleet, Handle, Pass, Plane, Problems, Request, Source, itself

_FROM = "resourcetemplate.karmada.io"
HUB_GENERATION = f"{_FROM}/generation"
_LABELS_FROM_HUB = f"{_FROM}/managed-labels"
_POLICY = "propagationpolicy.karmada.io/name"
# On the hub: the status of each cell, where there are several, so that an unreachable one still counts.
_STATUSES = "work.karmada.io/aggregated-status"

_RESERVED = ("karmada-", "kube-")

HasDeleted = Callable[[str, Kind[Any], KubeObject, str], bool]
"""Whether a plane deleted the original of a copy, given its uid; `Engine.has_deleted` reads it in the log."""


class NamespacePropagation:
    """Copies hub namespaces, labels and annotations included, to every cell; later changes follow."""

    name = "namespace-propagation"

    def __init__(self, fleet: Fleet, hub: str, has_deleted: HasDeleted) -> None:
        self._fleet = fleet
        self._hub = hub
        self._has_deleted = has_deleted

    def sources(self) -> Sequence[Source[Any]]:
        return (Source(HUB, NAMESPACE, itself), Source(CELL, NAMESPACE, self._on_hub), Source(HUB, CLUSTER, _all))

    async def reconcile(self, pass_: Pass) -> None:
        name = pass_.request.name
        if name == "default" or name.startswith(_RESERVED):
            return
        original = pass_.get(NAMESPACE)
        cells = [cluster.name for cluster in pass_.informer(CLUSTER).all()]
        await _in_each(cells, lambda cell: self._place(pass_.on(self._fleet.plane(cell)), name, original))

    async def _place(self, cell: Handle, name: str, original: Namespace | None) -> None:
        copy = cell.informer(NAMESPACE).get("", name)
        if original is None or original.metadata.deleting:
            is_ours = copy is not None and MANAGED in copy.metadata.labels and not copy.metadata.deleting
            if copy is not None and is_ours and (original is not None or self._was_deleted(copy)):
                await cell.write.delete(copy)
            return
        labels, annotations = _from_hub(original)
        if copy is None:
            await cell.write.create(NAMESPACE, NAMESPACE.body(name, labels=labels, annotations=annotations))
        elif patch := _changes(copy, labels, annotations):
            await cell.write.patch(copy, patch)

    def _was_deleted(self, copy: Namespace) -> bool:
        return self._has_deleted(self._hub, NAMESPACE, copy, copy.metadata.annotations.get(ORIGINAL_UID, ""))

    def _on_hub(self, cell: Plane, change: Change[Namespace]) -> Iterable[Request]:
        yield Request(self._hub, "", change.object.name)


class Propagation:
    """Copies deployments from the hub to the cells that their policies select, and their status back."""

    name = "propagation"

    def __init__(self, fleet: Fleet, hub: str, has_deleted: HasDeleted) -> None:
        self._fleet = fleet
        self._hub = hub
        self._has_deleted = has_deleted

    def sources(self) -> Sequence[Source[Any]]:
        return (
            Source(HUB, WORKLOAD_DEPLOYMENT, itself),
            Source(HUB, PROPAGATION_POLICY, _of_policy),
            Source(HUB, CLUSTER, _deployments),
            Source(CELL, WORKLOAD_DEPLOYMENT, self._on_hub),
            Source(CELL, NAMESPACE, self._in_namespace),
        )

    async def reconcile(self, pass_: Pass) -> None:
        request, original = pass_.request, pass_.get(WORKLOAD_DEPLOYMENT)
        if original is not None and not original.metadata.deleting:
            await self._collect_status(pass_, original)
        if original is None or original.metadata.deleting:
            holding = [
                name
                for name, copy in self._copies(request)
                if copy is not None and (original is not None or self._was_deleted(copy))
            ]
            await _in_each(holding, lambda name: self._remove(pass_, name))
        else:
            targets = self._targets(pass_.plane, original, request)
            await _in_each(sorted(targets), lambda name: self._place(pass_, name, targets[name], original))

    def _targets(self, hub: Plane, original: WorkloadDeployment, request: Request) -> dict[str, str | None]:
        """The policy that places the object in each cell; empty where it stays without one, None where it is removed.

        A copy stays when its policy or the label of the cluster is removed, and is removed when another policy has
        taken the object over.
        """
        policies = [
            policy for policy in hub.informer(PROPAGATION_POLICY).all(request.namespace) if _selects(policy, original)
        ]
        names = {policy.name for policy in policies}
        targets: dict[str, str | None] = {}
        for cell, copy in self._copies(request):
            if copy is not None:
                placed_by = copy.metadata.annotations.get(_POLICY, "")
                targets[cell] = None if names and placed_by and placed_by not in names else ""
        for policy in policies:
            targets |= dict.fromkeys(_clusters(policy, hub.informer(CLUSTER).all()), policy.name)
        return targets

    def _copies(self, request: Request) -> list[tuple[str, WorkloadDeployment | None]]:
        return [
            (cell.name, _managed(cell.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, request.name)))
            for cell in sorted(self._fleet.of_role(CELL), key=lambda cell: cell.name)
        ]

    async def _remove(self, pass_: Pass, name: str) -> None:
        cell = pass_.on(self._fleet.plane(name))
        copy = cell.informer(WORKLOAD_DEPLOYMENT).get(pass_.request.namespace, pass_.request.name)
        if copy is not None and not copy.metadata.deleting:
            await cell.write.delete(copy)

    async def _place(self, pass_: Pass, name: str, policy: str | None, original: WorkloadDeployment) -> None:
        if policy is None:
            await self._remove(pass_, name)
            return
        request, cell = pass_.request, pass_.on(self._fleet.plane(name))
        copy = cell.informer(WORKLOAD_DEPLOYMENT).get(request.namespace, request.name)
        if copy is not None and not _is_copy(copy, original) and self._was_deleted(copy):
            await self._remove(pass_, name)  # its deletion triggers another pass
            return
        labels, annotations = _from_hub(original)
        annotations |= {WORK_NAMESPACE: execution_space(name)} | ({_POLICY: policy} if policy else {})
        if copy is None:
            if cell.informer(NAMESPACE).get("", request.namespace) is None:
                return  # the arrival of the namespace triggers another pass
            body = WORKLOAD_DEPLOYMENT.body(request.name, request.namespace, labels=labels, annotations=annotations)
            spec: Json = {"spec": original.spec_json} if bytes(original.spec_json) else {}
            await cell.write.create(WORKLOAD_DEPLOYMENT, body | spec)
        elif not copy.metadata.deleting and (patch := _changes(copy, labels, annotations, spec=original.spec_json)):
            await cell.write.patch(copy, patch)

    async def _collect_status(self, pass_: Pass, original: WorkloadDeployment) -> None:
        before = original.metadata.annotations.get(_STATUSES, "")
        statuses = self._statuses(pass_.plane, original, _remembered(before))
        after = msgspec.json.encode(statuses, order="deterministic").decode() if len(statuses) > 1 else ""
        if after != before:
            patch = {"metadata": {"annotations": {_STATUSES: after or None}}}
            original = await pass_.write.patch(original, patch)
        if status := aggregate([status for _, status in sorted(statuses.items())]):
            await pass_.write.status(original, status)

    def _statuses(self, hub: Plane, original: WorkloadDeployment, remembered: dict[str, Json]) -> dict[str, Json]:
        """The status in each cell, or the remembered one of a cell that is away."""
        request = Request(hub.name, original.namespace, original.name)
        away = {
            cluster.name: remembered[cluster.name]
            for cluster in hub.informer(CLUSTER).all()
            if cluster.name in remembered and not self._fleet.has(cluster.name)
        }
        copies = [(name, copy) for name, copy in self._copies(request) if copy and _reports_for(copy, original)]
        return away | {name: status for name, copy in copies if (status := as_dict(copy.status_json))}

    def _was_deleted(self, copy: WorkloadDeployment) -> bool:
        uid = copy.metadata.annotations.get(ORIGINAL_UID, "")
        return self._has_deleted(self._hub, WORKLOAD_DEPLOYMENT, copy, uid)

    def _on_hub(self, cell: Plane, change: Change[WorkloadDeployment]) -> Iterable[Request]:
        yield Request(self._hub, change.object.namespace, change.object.name)

    def _in_namespace(self, cell: Plane, change: Change[Namespace]) -> Iterable[Request]:
        """When a namespace is created in a cell, the originals that wait for it can be placed."""
        if change.before is None and self._fleet.has(self._hub):
            for original in self._fleet.plane(self._hub).informer(WORKLOAD_DEPLOYMENT).all(change.object.name):
                yield Request(self._hub, original.namespace, original.name)


async def _in_each(cells: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Acts on every cell, then raises the worst failure: an unreachable cell never holds up another."""
    problems = Problems()
    for name in cells:
        with problems.collect(name):
            await act(name)
    problems.raise_worst()


def aggregate(statuses: Sequence[Json]) -> Json:
    """One status from those of several cells: a single one is passed through, several are summed."""
    if len(statuses) < 2:
        return statuses[0] if statuses else {}
    counters = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")
    result = dict(statuses[0])
    result |= {counter: sum(status.get(counter, 0) for status in statuses) for counter in counters}
    result["observedGeneration"] = min(status.get("observedGeneration", 0) for status in statuses)
    available = [c for status in statuses for c in status.get("conditions", ()) if c["type"] == AVAILABLE]
    best = next((c for c in available if c["status"] == "True"), available[0] if available else None)
    if best is not None:
        others = [c for c in statuses[0].get("conditions", ()) if c["type"] != AVAILABLE]
        result["conditions"] = [best, *others]
    return result


def _managed(copy: WorkloadDeployment | None) -> WorkloadDeployment | None:
    return copy if copy is not None and MANAGED in copy.metadata.labels else None


def _remembered(annotation: str) -> dict[str, Json]:
    try:
        return msgspec.json.decode(annotation, type=dict[str, dict[str, Any]]) if annotation else {}
    except msgspec.MsgspecError:
        return {}  # somebody else wrote it; it will be rewritten


def _is_copy(copy: WorkloadDeployment, original: WorkloadDeployment) -> bool:
    """Whether it is a copy of this very object, not of an earlier one of the same name."""
    return copy.metadata.annotations.get(ORIGINAL_UID, original.metadata.uid) == original.metadata.uid


def _reports_for(copy: WorkloadDeployment, original: WorkloadDeployment) -> bool:
    """Whether its status counts; that of an earlier object's copy does only while it reports that it is stopping."""
    available = conditions.find(conditions.of(copy), AVAILABLE)
    is_stopping = copy.metadata.deleting and available is not None and available.reason == reasons.STOPPING
    return is_stopping or _is_copy(copy, original)


def _selects(policy: PropagationPolicy, object_: WorkloadDeployment) -> bool:
    return any(
        selector.api_version == WORKLOAD_DEPLOYMENT.api_version
        and selector.kind == WORKLOAD_DEPLOYMENT.name
        and selector.name in ("", object_.name)
        and _matches(selector.label_selector, object_.metadata.labels)
        for selector in policy.spec.resource_selectors
    )


def _clusters(policy: PropagationPolicy, clusters: Iterable[Cluster]) -> list[str]:
    selector = policy.spec.placement.cluster_affinity.label_selector
    return [cluster.name for cluster in clusters if _matches(selector, cluster.metadata.labels)]


def _matches(selector: LabelMatch, labels: Mapping[str, str]) -> bool:
    return LabelSelector.of(selector.match_labels, selector.match_expressions).matches(labels)


def _from_hub(original: KubeObject) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and annotations of a copy: those of the hub, and marks by which they can be removed again."""
    metadata = original.metadata
    annotations = {key: value for key, value in metadata.annotations.items() if key != _STATUSES}
    marks = {
        HUB_GENERATION: str(metadata.generation),
        ORIGINAL_UID: metadata.uid,
        _LABELS_FROM_HUB: ",".join(sorted(metadata.labels)),
        ORIGINAL_ANNOTATIONS: ",".join(sorted(annotations)),
    }
    return metadata.labels | {MANAGED: "true"}, annotations | marks


def _changes(
    copy: KubeObject, labels: Mapping[str, str], annotations: Mapping[str, str], spec: Raw | None = None
) -> Json:
    """The patch that makes a copy like its original; labels and annotations of the cell's own are left alone."""
    marks = copy.metadata.annotations
    return changes(
        copy,
        labels={**_removed(labels, marks.get(_LABELS_FROM_HUB, "")), **labels},
        annotations={**_removed(annotations, marks.get(ORIGINAL_ANNOTATIONS, "")), **annotations},
        spec=spec,
    )


def _removed(current: Mapping[str, str], from_hub: str) -> dict[str, str | None]:
    """The keys that the hub once set and has removed since."""
    return {key: None for key in from_hub.split(",") if key and key not in current}


def _all(hub: Plane, change: Change[Cluster]) -> Iterable[Request]:
    if change.before is None:
        for namespace in hub.informer(NAMESPACE).all():
            yield Request(hub.name, "", namespace.name)


def _deployments(hub: Plane, change: Change[Cluster]) -> Iterable[Request]:
    if change.before is None or change.after is None or change.before.metadata.labels != change.after.metadata.labels:
        for original in hub.informer(WORKLOAD_DEPLOYMENT).all():
            yield Request(hub.name, original.namespace, original.name)


def _of_policy(hub: Plane, change: Change[PropagationPolicy]) -> Iterable[Request]:
    for original in hub.informer(WORKLOAD_DEPLOYMENT).all(change.object.namespace):
        if _selects(change.object, original):
            yield Request(hub.name, original.namespace, original.name)
