"""The first hops: what the project itself shows about a request. Entry point: `CHECKS`."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from datum_compute.answers.health import is_paused
from datum_compute.answers.hops import Finding, Hop, Outcome, State, View
from datum_compute.answers.places import observed
from datum_compute.answers.rollout import version
from datum_compute.answers.seen import Gap, items
from datum_compute.api import reasons
from datum_compute.api.deployment import AVAILABLE
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.names import deployment_name
from datum_compute.api.services import SERVICE_NAME, SERVICE_OBJECT, ServiceEntitlement
from datum_compute.api.workload import PLACED
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition, as_dict

_REFUSALS = (reasons.SPEC_REFUSED, reasons.WRITE_FORBIDDEN)


def _access(view: View) -> Outcome:
    part = view.seen.entitlements
    if part is Gap.ABSENT:
        return State.PASSED
    if isinstance(part, Gap):
        return State.UNREAD
    ours = [entitlement for entitlement in part if _is_ours(entitlement)]
    if not ours and not view.seen.has_catalog:
        return State.PASSED
    phases = {entitlement.status.phase if entitlement.status else "" for entitlement in ours}
    if "Active" in phases:
        return State.PASSED
    since = view.plausible(ours[0].metadata.creation_timestamp) if ours else None
    message = "compute is not enabled in this project"
    if ours:
        message = "access was denied" if "Rejected" in phases else "access waits for approval"
    return Finding(
        Hop.ACCESS,
        reasons.ACCESS_PENDING,
        message,
        since=since,
        exact=True,
        dated=True,
        object="entitlement/compute",
        base=since,
    )


def _is_ours(entitlement: ServiceEntitlement) -> bool:
    return entitlement.spec.service_ref.name in (SERVICE_OBJECT, SERVICE_NAME)


def _manager(view: View) -> Outcome:
    workload = view.seen.workload
    if observed(workload) or _is_judged(view) or _has_begun(view):
        return State.PASSED
    since = view.plausible(view.seen.changed or workload.metadata.creation_timestamp)
    finding = Finding(
        Hop.MANAGER,
        reasons.UNANSWERED,
        f"nobody has looked at it; project {view.seen.project} is not served at the moment",
        since=since,
        exact=True,
        dated=True,
        grace=Hop.MANAGER.normal,
        object=f"workload/{workload.name}",
        base=since,
    )
    return _with_lease(view, finding)


def _has_begun(view: View) -> bool:
    """Whether an instance of the newest version exists that is in trouble, whatever the workload reports yet."""
    deployment = view.deployment
    return deployment is not None and bool(view.troubled) and version(deployment) == version(view.seen.workload)


def _is_judged(view: View) -> bool:
    """Whether some condition is about the newest spec: where networks are missing nothing else is reported."""
    workload = view.seen.workload
    judged = (condition.observed_generation for condition in conditions.of(workload))
    return any(generation >= workload.metadata.generation for generation in judged)


def _with_lease(view: View, finding: Finding) -> Finding:
    """Names the holder of a lease that is not renewed, if the lease could be read."""
    lease = view.seen.lease
    if isinstance(lease, Gap):
        return finding
    spec = as_dict(lease.spec_json)
    renewed, seconds = _time(spec.get("renewTime")), spec.get("leaseDurationSeconds")
    if renewed is None or not isinstance(seconds, int) or not spec.get("holderIdentity"):
        return finding
    if view.now - renewed < timedelta(seconds=min(seconds, 60)):
        return finding
    message = f"the lease is held by {spec['holderIdentity']} and is not renewed"
    return replace(
        finding,
        reason=reasons.LEASE_STALE,
        message=message,
        since=view.plausible(renewed),
        base=view.plausible(renewed),
    )


def _time(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _network(view: View) -> Outcome:
    reported = _of_workload(view, reasons.NETWORK_NOT_FOUND)
    if reported is None and view.deployment is not None:
        return State.PASSED
    part = view.seen.networks
    if reported is None and part is Gap.ABSENT:
        return State.PASSED
    if reported is None and isinstance(part, Gap):
        return State.UNREAD
    named = {interface.network.name for interface in view.seen.workload.spec.template.spec.network_interfaces}
    missing = sorted(named - {network.name for network in items(part)})
    if reported is None and not missing:
        return State.PASSED
    if isinstance(part, Gap) or not missing:
        assert reported is not None
        message = reported.message
    else:
        message = f"network {', '.join(missing)} does not exist"
    name = view.seen.workload.name
    since, exact = view.began(name, reasons.NETWORK_NOT_FOUND, reported)
    base = view.plausible(reported.last_transition_time) if reported else None
    return Finding(
        Hop.NETWORK, reasons.NETWORK_NOT_FOUND, message, since=since, exact=exact, object=f"workload/{name}", base=base
    )


def _offer(view: View) -> Outcome:
    if view.deployment is not None:
        return State.PASSED  # a city that is no longer offered keeps what it has
    city, part = view.place.city, view.seen.offers
    reported = _of_city(view, reasons.NO_MATCHING_LOCATION)
    if isinstance(part, Gap):
        if reported is None:
            return State.PASSED if part is Gap.ABSENT else State.UNREAD
        message = reported.message
    else:
        offered = sorted({code for binding in part if (code := binding.spec.topology.get(TOPOLOGY_CITY, ""))})
        if city in offered:
            return State.PASSED
        message = f'City "{city}" is not offered to this project, which has {", ".join(offered) or "none"}'
    since = view.plausible(reported.last_transition_time) if reported else None
    return Finding(Hop.OFFER, reasons.NO_MATCHING_LOCATION, message, since=since, object=f"city/{city}", base=since)


def _rollout(view: View) -> Outcome:
    workload = view.seen.workload
    if not is_paused(workload) or view.deployment is None or not view.is_behind:
        return State.PASSED
    paused = conditions.find(conditions.of(workload), "Progressing")
    since = view.plausible(paused.last_transition_time) if paused else None
    return Finding(
        Hop.ROLLOUT,
        reasons.ROLLOUT_PAUSED,
        "the rollout is paused, so the newest version is not rolled out; resume it",
        since=since,
        exact=True,
        dated=True,
        object=f"workload/{workload.name}",
        base=since,
    )


def _deployment(view: View) -> Outcome:
    if view.deployment is not None:
        return State.PASSED
    if isinstance(view.seen.deployments, Gap):
        return State.UNREAD
    workload = view.seen.workload
    for reason in (reasons.DEPLOYMENT_NAME_TAKEN, *_REFUSALS):
        if (condition := _of_city(view, reason)) is not None:
            since, exact = view.began(workload.name, reason, condition)
            base = view.plausible(condition.last_transition_time)
            return Finding(
                Hop.DEPLOYMENT,
                reason,
                condition.message,
                since=since,
                exact=exact,
                object=f"workload/{workload.name}",
                base=base,
            )
    since = view.plausible(view.seen.changed or workload.metadata.creation_timestamp)
    return Finding(
        Hop.DEPLOYMENT,
        reasons.UNANSWERED,
        f"nothing was created for {view.place.city}",
        since=since,
        exact=True,
        dated=True,
        grace=Hop.DEPLOYMENT.normal,
        object=f"workload/{workload.name}",
        base=since,
    )


def _of_workload(view: View, reason: str) -> Condition | None:
    """The condition of the workload that is not True for this reason."""
    for type_ in (PLACED, AVAILABLE):
        condition = conditions.find(conditions.of(view.seen.workload), type_)
        if condition is not None and condition.status != "True" and condition.reason == reason:
            return condition
    return None


_SPEAKS_OF = {
    reasons.NO_MATCHING_LOCATION: (" is not offered to ", "No locations are offered"),
    reasons.DEPLOYMENT_NAME_TAKEN: (" belongs to workload ",),
    reasons.SPEC_REFUSED: (" was refused: ",),
    reasons.WRITE_FORBIDDEN: (" was refused: ",),
}
"""How the parts of a message are recognized: one condition has the messages of all places, under the worst reason."""


def _of_city(view: View, reason: str) -> Condition | None:
    """The condition of the workload that is not True for this reason in this city, with the part about it."""
    workload, place = view.seen.workload, view.place
    name = deployment_name(workload.name, workload.metadata.uid, place.placement, place.city)
    marks = (f"Deployment {name} ", f'"{place.city}"')
    for type_ in (PLACED, AVAILABLE):
        condition = conditions.find(conditions.of(workload), type_)
        if condition is None or condition.status == "True":
            continue
        if reason in _REFUSALS and condition.reason != reason:
            continue  # both read alike
        for part in condition.message.split("; "):
            is_here = any(mark in part for mark in marks)
            if is_here and any(fragment in part for fragment in _SPEAKS_OF[reason]):
                return replace(condition, reason=reason, message=part)
    return None


CHECKS: Mapping[Hop, Callable[[View], Outcome]] = {
    Hop.ACCESS: _access,
    Hop.MANAGER: _manager,
    Hop.NETWORK: _network,
    Hop.OFFER: _offer,
    Hop.ROLLOUT: _rollout,
    Hop.DEPLOYMENT: _deployment,
}
