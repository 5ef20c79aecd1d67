"""The hops from the project to the site: hub, route, site and cell. Entry points: `CHECKS`, `way`."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from datum_compute.answers.hops import Finding, Hop, Outcome, State, View, hash_of
from datum_compute.answers.seen import Gap, items
from datum_compute.api import reasons
from datum_compute.api.deployment import AVAILABLE, FEDERATED, WorkloadDeployment
from datum_compute.api.karmada import Cluster
from datum_compute.api.labels import SERVING_CLUSTER, TOPOLOGY_CITY, UPSTREAM_GENERATION
from datum_compute.api.names import policy_name
from datum_compute.api.reasons import Acts
from datum_compute.api.template_hash import template_hash
from datum_compute.federation.policy import routes
from datum_compute.kube import conditions
from datum_compute.kube.meta import Json, KubeObject, as_dict

READY = "Ready"
SCHEDULED = "Scheduled"


def has_arrived(view: View) -> bool:
    """Whether the site has the newest request, whatever the objects on the way look like."""
    if view.is_answered or _is_current(view, view.cell_copy):
        return True
    # The project shows instances sooner than sums. Only trouble proves it: a ready one may be of an earlier scale.
    hash_ = template_hash(view.deployment.template_json) if view.deployment else ""
    return any(hash_of(instance) == hash_ for instance in view.troubled)


def _is_current(view: View, copy: WorkloadDeployment | None) -> bool:
    """Whether a copy has the spec of the project, and its status answers it."""
    return (
        _has_spec(view, copy)
        and copy is not None
        and copy.status is not None
        and (copy.status.observed_generation >= _generation(view))
    )


def _has_spec(view: View, copy: WorkloadDeployment | None) -> bool:
    return copy is not None and copy.metadata.annotations.get(UPSTREAM_GENERATION) == str(_generation(view))


def _generation(view: View) -> int:
    return view.deployment.metadata.generation if view.deployment else 0


def _finding(view: View, hop: Hop, reason: str, message: str, **details: Any) -> Finding:
    since = requested(view)
    fields = {
        "since": since,
        "exact": True,
        "dated": True,
        "grace": hop.normal,
        "object": f"deployment/{view.name}",
        "base": since,
    }
    return Finding(hop, reason, message, **{**fields, **details})


def requested(view: View) -> datetime | None:
    """Since when the site owes an answer."""
    created = view.deployment.metadata.creation_timestamp if view.deployment else None
    changed = view.seen.changed
    known = [moment for moment in (view.plausible(created), view.plausible(changed)) if moment is not None]
    return max(known, default=None)


def _hub(view: View) -> Outcome:
    hub = view.seen.hub
    if (refused := _refusal(view)) is not None:
        return refused
    if not isinstance(hub.namespace, Gap) and hub.namespace.metadata.deleting:
        held = ", ".join(_finalizers(hub.namespace)) or "what is in it"
        since = view.plausible(hub.namespace.metadata.deletion_timestamp)
        message = f"namespace {hub.namespace.name} on the hub is being removed, held by {held}"
        return _finding(
            view, Hop.HUB, reasons.NAMESPACE_TERMINATING, message, since=since, base=since, grace=timedelta(0)
        )
    if not isinstance(hub.deployments, Gap):
        if _has_spec(view, view.hub_copy):
            return State.PASSED
        what = "has an earlier version" if view.hub_copy is not None else "does not have it"
        message = f"the way to the sites is interrupted: the hub {what}"
        return _finding(view, Hop.HUB, reasons.FEDERATION_FAILED, message)
    if (event := _outage(view)) is not None:
        return event
    if hub.deployments is Gap.AWAY:
        message = "the way to the sites is interrupted: the hub does not answer"
        return _finding(view, Hop.HUB, reasons.FEDERATION_FAILED, message)
    return State.UNREAD


def _refusal(view: View) -> Finding | None:
    """What management itself reports about the way to the hub."""
    condition = conditions.find(conditions.of(view.deployment), FEDERATED) if view.deployment else None
    if condition is None or condition.status != "False":
        return None
    reason, message = condition.reason, condition.message
    if reason == reasons.WRITE_FORBIDDEN:
        reason, message = reasons.FEDERATION_FAILED, f"not allowed to write there: {message}"
    since, exact = view.began(view.name, condition.reason, condition)
    base = view.plausible(condition.last_transition_time)
    return _finding(
        view, Hop.HUB, reason, message, since=since, exact=exact, dated=False, grace=timedelta(0), base=base
    )


def _outage(view: View) -> Finding | None:
    """The outage that management has reported since the request was made."""
    since = requested(view)
    for event in items(view.seen.events):
        is_outage = event.about == view.name and event.reason == reasons.FEDERATION_FAILED
        at = event.last_timestamp
        if is_outage and at is not None and (since is None or at >= since):
            return _finding(view, Hop.HUB, reasons.FEDERATION_FAILED, event.message, grace=timedelta(0))
    return None


def _finalizers(object_: KubeObject) -> list[str]:
    return [*object_.metadata.finalizers, *(as_dict(object_.spec_json).get("finalizers") or ())]


def _policy(view: View) -> Outcome:
    part, city = view.seen.hub.policies, view.place.city
    if isinstance(part, Gap):
        return State.PASSED if part is Gap.ABSENT else State.UNREAD
    name = f"policy/{policy_name(city)}"
    policy = next((policy for policy in part if policy.name == policy_name(city)), None)
    if policy is None:
        return _finding(view, Hop.POLICY, reasons.POLICY_MISSING, f"nothing routes {city}", object=name)
    if routes(policy, city):
        return State.PASSED
    names = (as_dict(policy.spec_json).get("placement") or {}).get("clusterAffinity", {}).get("clusterNames")
    how = f"narrowed to {', '.join(map(str, names))} by hand" if names else "edited by hand"
    message = f"the route of {city} was {how}"
    return _finding(view, Hop.POLICY, reasons.POLICY_EDITED, message, object=name)


def serving(view: View) -> Cluster | None:
    """The Cluster that serves the city."""
    clusters = [cluster for cluster in items(view.seen.hub.clusters) if _city(cluster) == view.place.city]
    named = view.hub_copy.metadata.annotations.get(SERVING_CLUSTER) if view.hub_copy else None
    return next((cluster for cluster in clusters if cluster.name == named), clusters[0] if clusters else None)


def _city(cluster: Cluster) -> str:
    return cluster.metadata.labels.get(TOPOLOGY_CITY, "")


def _site(view: View) -> Outcome:
    part, city = view.seen.hub.clusters, view.place.city
    available = conditions.find(conditions.of(view.deployment), AVAILABLE) if view.deployment else None
    if isinstance(part, Gap):
        if available is not None and available.reason == reasons.NO_MATCHING_LOCATION:
            since = view.plausible(available.last_transition_time)
            return _finding(
                view,
                Hop.SITE,
                available.reason,
                available.message,
                since=since,
                base=since,
                exact=False,
                dated=False,
                grace=timedelta(0),
            )
        return State.PASSED if part is Gap.ABSENT else State.UNREAD
    cluster = serving(view)
    if cluster is None:
        similar = next((cluster for cluster in part if _city(cluster).lower() == city.lower()), None)
        message = f"no site serves {city}"
        if similar is not None:
            message = f'{message}: {similar.name} serves "{_city(similar)}", asked is "{city}"'
        return _finding(view, Hop.SITE, reasons.NO_MATCHING_LOCATION, message, object=f"city/{city}")
    ready = conditions.find(conditions.of(cluster), READY)
    if ready is None or ready.status == "True":
        return State.PASSED
    since = view.plausible(ready.last_transition_time)
    message = f"no word from {city}; what runs there goes on"
    return _finding(
        view,
        Hop.SITE,
        reasons.SITE_AWAY,
        message,
        since=since,
        base=since,
        grace=timedelta(0),
        object=f"cluster/{cluster.name}",
    )


def site_is_away(view: View) -> bool:
    cluster = serving(view)
    ready = conditions.find(conditions.of(cluster), READY) if cluster is not None else None
    return ready is not None and ready.status != "True"


def _binding(view: View) -> Outcome:
    part = view.seen.hub.bindings
    if isinstance(part, Gap):
        return State.PASSED if part is Gap.ABSENT else State.UNREAD
    binding = _own_binding(view)
    if binding is None:
        return _finding(view, Hop.BINDING, reasons.NOT_SCHEDULED, "Karmada has not taken it up")
    name = f"resourcebinding/{binding.name}"
    owners = {owner.uid for owner in binding.metadata.owner_references}
    if view.hub_copy is not None and owners and view.hub_copy.metadata.uid not in owners:
        message = "held by an earlier deployment of that name"
        return _finding(view, Hop.BINDING, reasons.BINDING_HELD, message, object=name)
    scheduled: Json = next(
        (entry for entry in as_dict(binding.status_json).get("conditions") or () if entry.get("type") == SCHEDULED), {}
    )
    if scheduled.get("status") == "False":
        message = f"Karmada cannot place it: {scheduled.get('message', '')}".rstrip(": ")
        return _finding(view, Hop.BINDING, reasons.NOT_SCHEDULED, message, object=name)
    if not as_dict(binding.spec_json).get("clusters"):
        return _finding(view, Hop.BINDING, reasons.NOT_SCHEDULED, "Karmada has chosen no site for it", object=name)
    return State.PASSED


def _own_binding(view: View) -> KubeObject | None:
    wanted = f"{view.name}-workloaddeployment"
    return next((binding for binding in items(view.seen.hub.bindings) if binding.name == wanted), None)


def _work(view: View) -> Outcome:
    if view.seen.hub.bindings is Gap.ABSENT:
        return State.PASSED
    binding = _own_binding(view)
    if binding is None:
        return State.UNREAD
    name = f"resourcebinding/{binding.name}"
    if as_dict(binding.spec_json).get("suspension"):
        return _finding(view, Hop.WORK, reasons.NOT_APPLIED, "its delivery is suspended by hand", object=name)
    statuses = as_dict(binding.status_json).get("aggregatedStatus") or []
    failed = next((status for status in statuses if not status.get("applied")), None)
    if failed is not None:
        reported = str(failed.get("appliedMessage") or "")
        unknown = "no matches for kind" in reported
        message = "the site does not know this kind" if unknown else f"the site did not take it: {reported}"
        return _finding(view, Hop.WORK, reasons.NOT_APPLIED, message.rstrip(": "), object=name)
    return State.PASSED if statuses else State.UNREAD


def _cell(view: View) -> Outcome:
    part, city = view.seen.site(view.place.city).deployments, view.place.city
    if isinstance(part, Gap):
        return State.UNREAD
    if not _has_spec(view, view.cell_copy):
        what = "an earlier version" if view.cell_copy is not None else "nothing of it"
        return _finding(view, Hop.CELL, reasons.UNANSWERED, f"{city} has {what} so far", grace=Hop.WORK.normal)
    if not _is_current(view, view.cell_copy):
        return _finding(view, Hop.CELL, reasons.UNANSWERED, f"{city} has it and does not act")
    return State.PASSED


def way(view: View) -> Finding:
    """What can be said where nobody could read the planes on the way, and no answer has come back."""
    city = view.place.city
    return _finding(view, Hop.WAY, reasons.ON_ITS_WAY, f"on its way to {city}", grace=timedelta(0), acts=Acts.WAIT)


CHECKS: Mapping[Hop, Callable[[View], Outcome]] = {
    Hop.HUB: _hub,
    Hop.POLICY: _policy,
    Hop.SITE: _site,
    Hop.BINDING: _binding,
    Hop.WORK: _work,
    Hop.CELL: _cell,
}
