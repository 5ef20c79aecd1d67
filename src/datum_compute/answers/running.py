"""The hops at the site and back: instances, gates, runtime, sums and projections. Entry point: `CHECKS`."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from datum_compute.answers.health import instance_health
from datum_compute.answers.hops import Finding, Hop, Outcome, State, View, is_going, is_ready
from datum_compute.answers.seen import Gap, items
from datum_compute.api import instance as instances
from datum_compute.api import reasons
from datum_compute.api.deployment import AVAILABLE, REPLICAS_READY
from datum_compute.api.instance import Instance
from datum_compute.api.labels import PODS_FINALIZER, SIMULATED_FINALIZER, UNIKRAFT_FINALIZER
from datum_compute.api.names import claim_name
from datum_compute.api.quota import GRANTED
from datum_compute.api.reasons import Acts, explain
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, as_dict

_PROVIDERS = (SIMULATED_FINALIZER, PODS_FINALIZER, UNIKRAFT_FINALIZER)
_SUMMARIES = {
    reasons.STOPPING: Hop.INSTANCES,
    reasons.QUOTA_EXCEEDED: Hop.GATES,
    reasons.QUOTA_NOT_GRANTED: Hop.GATES,
    reasons.PENDING_QUOTA: Hop.GATES,
    reasons.NETWORK_FAILED_TO_CREATE: Hop.GATES,
    reasons.NETWORK_PROVISIONING: Hop.GATES,
    reasons.NO_MATCHING_LOCATION: Hop.GATES,
    reasons.IMAGE_UNAVAILABLE: Hop.RUNTIME,
    reasons.INSTANCE_CRASHING: Hop.RUNTIME,
    reasons.CONFIGURATION_ERROR: Hop.RUNTIME,
}
"""Reasons on a deployment that say something about its instances, where none of them says it."""


def subject(view: View) -> Instance | None:
    """The instance that is waited for: the first on which somebody has to act, else the first that is not ready."""
    pressing = [instance for instance in view.troubled if _needs_action(instance)]
    return next(iter(pressing or view.troubled), None)


def _needs_action(instance: Instance) -> bool:
    condition = instance_health(instance).condition
    return condition is not None and explain(condition.reason).acts in (Acts.YOU, Acts.PLATFORM)


def _instances(view: View) -> Outcome:
    if isinstance(view.seen.instances, Gap) and isinstance(view.seen.site(view.place.city).instances, Gap):
        return _reported(view) or State.UNREAD
    if view.troubled:
        return State.PASSED
    stopping = [i for i in view.instances if is_going(i) and (not view.only or i.name == view.only)]
    if stopping:
        ready_condition = conditions.find(conditions.of(stopping[0]), instances.READY)
        began = stopping[0].metadata.deletion_timestamp or (
            ready_condition.last_transition_time if ready_condition else None
        )
        since = view.plausible(began)
        name = stopping[0].name
        return Finding(
            Hop.INSTANCES,
            reasons.STOPPING,
            f"the old one is stopping: {name}",
            since=since,
            exact=True,
            dated=True,
            object=f"instance/{name}",
            instance=name,
            base=since,
        )
    if view.only:
        return State.PASSED
    ready = sum(map(is_ready, view.current))
    if ready >= view.numbers.desired and len(view.instances) <= max(view.numbers.desired, view.numbers.replicas):
        return State.PASSED
    return _reported(view) or _provisioning(view, "instances are being created", None)


def _reported(view: View) -> Finding | None:
    """What the site says about instances that it did not create."""
    deployment = view.cell_copy or view.deployment
    if deployment is None:
        return None
    found = conditions.of(deployment)
    refused = conditions.find(found, REPLICAS_READY)
    if refused is not None and refused.status == "False" and refused.reason in reasons.OBSTACLES:
        taken = refused.reason == reasons.INSTANCE_NAME_TAKEN
        message = f"something else has that name: {refused.message}" if taken else refused.message
        return _finding(view, Hop.INSTANCES, refused.reason, message, refused)
    available = conditions.find(found, AVAILABLE)
    if available is None or available.status == "True":
        return None
    reason, message = available.reason, available.message
    if refused is not None and (refused.status, refused.reason) == ("False", reasons.QUOTA_EXCEEDED):
        reason, message = reasons.QUOTA_EXCEEDED, f"quota exceeded: {message}"
    if view.troubled or reason not in _SUMMARIES:
        return None
    return _finding(view, _SUMMARIES[reason], reason, message, available)


def _provisioning(view: View, message: str, condition: Condition | None) -> Finding:
    deployment = view.deployment
    available = condition or (conditions.find(conditions.of(deployment), AVAILABLE) if deployment else None)
    return _finding(view, Hop.INSTANCES, reasons.INSTANCES_PROVISIONING, message, available)


def _finding(view: View, hop: Hop, reason: str, message: str, condition: Condition | None) -> Finding:
    since, exact = view.began(view.name, reason, condition)
    base = view.plausible(condition.last_transition_time) if condition else None
    return Finding(hop, reason, message, since=since, exact=exact, object=f"deployment/{view.name}", base=base)


def _about(
    view: View,
    instance: Instance,
    hop: Hop,
    reason: str,
    message: str,
    condition: Condition | None,
    acts: Acts | None = None,
) -> Finding:
    since, exact = view.began(instance.name, reason, condition)
    base = view.plausible(condition.last_transition_time) if condition else None
    if base is None:  # nobody has set the condition yet
        base = view.plausible(instance.metadata.creation_timestamp)
        since, exact = since or base, exact or since is None
    name = instance.name
    return Finding(
        hop, reason, message, acts, since=since, exact=exact, object=f"instance/{name}", instance=name, base=base
    )


def _gates(view: View) -> Outcome:
    instance = subject(view)
    if instance is None:
        return State.PASSED
    gates = instance.spec.controller.scheduling_gates if instance.spec.controller else ()
    names = [gate.name for gate in gates]
    ready = conditions.find(conditions.of(instance), instances.READY)
    if instances.QUOTA_GATE in names:
        return _quota(view, instance)
    if instances.NETWORK_GATE in names:
        if ready is not None and ready.reason == reasons.NETWORK_FAILED_TO_CREATE:
            return _about(view, instance, Hop.GATES, ready.reason, ready.message, ready)
        message = "the network is being set up"
        return _about(view, instance, Hop.GATES, reasons.NETWORK_PROVISIONING, message, ready)
    if foreign := [name for name in names if name not in instances.GATES]:
        message = f"gate {', '.join(foreign)}, which nobody here removes"
        return _about(view, instance, Hop.GATES, reasons.SCHEDULING_GATES_PRESENT, message, ready, acts=Acts.PLATFORM)
    if names:
        message = f"scheduling gates present: {', '.join(names)}"
        return _about(view, instance, Hop.GATES, reasons.SCHEDULING_GATES_PRESENT, message, ready)
    quota = conditions.find(conditions.of(instance), instances.QUOTA_GRANTED)
    if quota is not None and quota.status == "False":
        return _quota(view, instance)
    return State.PASSED


def _quota(view: View, instance: Instance) -> Finding:
    quota = conditions.find(conditions.of(instance), instances.QUOTA_GRANTED)
    reason = quota.reason if quota is not None else reasons.PENDING_EVALUATION
    message = quota.message if quota is not None else ""
    if reason == reasons.QUOTA_NO_BUDGET and _is_undecided(view, instance):
        message = "nobody has decided the request for quota"
    elif reason == reasons.QUOTA_EXCEEDED:
        message = f"quota exceeded: {message}"
    elif reason == reasons.QUOTA_BACKEND_UNAVAILABLE:
        message = f"quota cannot be asked: {message}"
    return _about(view, instance, Hop.GATES, reason, message or "the request for quota is not decided", quota)


def _is_undecided(view: View, instance: Instance) -> bool:
    claim = next((claim for claim in items(view.seen.claims) if claim.name == claim_name(instance.name)), None)
    granted = conditions.find(conditions.of(claim), GRANTED) if claim is not None else None
    return claim is not None and (granted is None or granted.reason == reasons.PENDING_EVALUATION)


def _runtime(view: View) -> Outcome:
    instance = subject(view)
    if instance is None:
        return State.PASSED
    health = instance_health(instance)
    ready = conditions.find(conditions.of(instance), instances.READY)
    condition = health.condition or ready
    reason = condition.reason if condition is not None else reasons.PENDING
    message = condition.message if condition is not None else ""
    if ready is not None and explain(ready.reason).acts in (Acts.YOU, Acts.PLATFORM):
        condition, reason, message = ready, ready.reason, ready.message
    if reason in (reasons.PENDING_PROGRAMMING, reasons.PENDING):
        reason, message = reasons.PENDING_PROGRAMMING, "the site has not started setting it up"
        at_site = view.seen.site(view.place.city).instances
        if not isinstance(at_site, Gap) and not set(instance.metadata.finalizers) & set(_PROVIDERS):
            message = "no provider has touched it"
    elif reason == reasons.INSTANCE_CRASHING:
        message = f"the process keeps exiting: {message}" if message else "the process keeps exiting"
    return _about(view, instance, Hop.RUNTIME, reason, message, condition)


def _back(view: View) -> Outcome:
    if view.is_complete or view.only:
        return State.PASSED
    desired, ready = view.numbers.desired, sum(map(is_ready, view.current))
    if ready < desired:
        return State.UNREAD if isinstance(view.seen.instances, Gap) else State.PASSED
    counted = view.deployment.status.ready_replicas if view.deployment and view.deployment.status else 0
    since = _latest(view.current)
    acts = None
    hub, cell = view.hub_copy, view.cell_copy
    if hub is not None and cell is not None and as_dict(cell.status_json) and not as_dict(hub.status_json):
        message, acts = f"{ready} of {desired} run; the hub shows no status: interpreter missing", Acts.PLATFORM
    elif hub is not None and hub.status is not None:
        message = f"the hub knows {hub.status.ready_replicas} ready, the project {counted}"
    else:
        message = f"{ready} of {desired} run; the sums are behind and know {counted}"
    return Finding(
        Hop.BACK,
        reasons.STATUS_NOT_RETURNED,
        message,
        acts,
        since=view.plausible(since),
        exact=True,
        dated=True,
        grace=Hop.BACK.normal if acts is not None else timedelta(0),
        object=f"deployment/{view.name}",
        base=view.plausible(since),
    )


def _latest(found: Sequence[Instance]) -> datetime | None:
    """When an instance last changed."""
    times = [condition.last_transition_time for instance in found for condition in conditions.of(instance)]
    return max(times, default=None)


def _projection(view: View) -> Outcome:
    if isinstance(view.seen.instances, Gap):
        return State.UNREAD
    at_site = view.seen.site(view.place.city).instances
    known = {instance.name for instance in view.projections if not instance.metadata.deleting}
    if isinstance(at_site, Gap):
        running = view.numbers.ready if view.is_answered else 0
        missing = max(running - len(known), 0)
        since = _available_since(view)
    else:
        live = [instance for instance in view.members(at_site, labelled=True) if not instance.metadata.deleting]
        running, lost = len(live), [instance for instance in live if instance.name not in known]
        missing, since = len(lost), _latest(lost)
    if not missing or view.only:
        return State.PASSED
    message = f"{running} run, {running - missing} are shown"
    since = view.plausible(since)
    return Finding(
        Hop.PROJECTION,
        reasons.PROJECTION_MISSING,
        message,
        since=since,
        exact=True,
        dated=True,
        grace=Hop.PROJECTION.normal,
        object=f"deployment/{view.name}",
        base=since,
    )


def _available_since(view: View) -> datetime | None:
    found = conditions.of(view.deployment) if view.deployment else ()
    return max((condition.last_transition_time for condition in found), default=None)


CHECKS: Mapping[Hop, Callable[[View], Outcome]] = {
    Hop.INSTANCES: _instances,
    Hop.GATES: _gates,
    Hop.RUNTIME: _runtime,
    Hop.BACK: _back,
    Hop.PROJECTION: _projection,
}
