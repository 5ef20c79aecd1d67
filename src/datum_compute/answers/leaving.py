"""What something that is being deleted waits for. Entry point: `deletion`."""

from datum_compute.answers.hops import Finding, Hop, View
from datum_compute.answers.seen import Gap
from datum_compute.api import GROUP, reasons
from datum_compute.api.labels import WORKLOAD_FINALIZER
from datum_compute.api.reasons import Acts
from datum_compute.kube.meta import KubeObject

_OURS = (GROUP, f".{GROUP}", "datumapis.com")


def deletion(view: View) -> Finding | None:
    """The last thing that holds up the deletion of the place, from the site upwards; None if it is over."""
    workload, deployment = view.seen.workload, view.deployment
    at_site = view.seen.site(view.place.city).instances
    for instance in () if isinstance(at_site, Gap) else view.members(at_site):
        if instance.metadata.deleting and (found := _held(view, instance, f"instance/{instance.name}")):
            return found
    if deployment is not None:
        if found := _held(view, deployment, f"deployment/{deployment.name}"):
            return found
        since = view.plausible(deployment.metadata.deletion_timestamp or workload.metadata.deletion_timestamp)
        message = f"waits for {view.place.city}"
        return Finding(
            Hop.DELETION,
            reasons.BEING_REMOVED,
            message,
            since=since,
            exact=True,
            dated=True,
            object=f"deployment/{deployment.name}",
            base=since,
        )
    if workload.metadata.deleting:
        return _held(view, workload, f"workload/{workload.name}") or _waiting(view, workload)
    return None


def _waiting(view: View, object_: KubeObject) -> Finding:
    since = view.plausible(object_.metadata.deletion_timestamp)
    message = "is being removed"
    return Finding(
        Hop.DELETION,
        reasons.BEING_REMOVED,
        message,
        since=since,
        exact=True,
        dated=True,
        object=object_.name,
        base=since,
    )


def _held(view: View, object_: KubeObject, name: str) -> Finding | None:
    """A mark that none of our own controllers is about to remove."""
    if not object_.metadata.deleting:
        return None
    foreign = [mark for mark in object_.metadata.finalizers if not _is_ours(mark)]
    providers = [mark for mark in object_.metadata.finalizers if mark.endswith("-provider")]
    since = view.plausible(object_.metadata.deletion_timestamp)
    if foreign:
        message, acts = f"waits for {', '.join(foreign)}", None
    elif providers and WORKLOAD_FINALIZER not in object_.metadata.finalizers and _is_late(view, object_):
        message = f"waits for {', '.join(mark.rpartition('/')[2] for mark in providers)}, which does not act here"
        acts = Acts.PLATFORM
    else:
        return None
    return Finding(
        Hop.DELETION,
        reasons.HELD_BY_FINALIZER,
        message,
        acts,
        since=since,
        exact=True,
        dated=True,
        object=name,
        base=since,
    )


def _is_ours(mark: str) -> bool:
    prefix = mark.partition("/")[0]
    return any(prefix == ours.removeprefix(".") or prefix.endswith(ours) for ours in _OURS)


def _is_late(view: View, object_: KubeObject) -> bool:
    since = view.plausible(object_.metadata.deletion_timestamp)
    return since is not None and view.now - since > Hop.DELETION.normal
