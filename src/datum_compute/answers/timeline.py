"""What happened to a workload on all planes, in order. Entry points: `timeline`, `Occurrence`.

A site's event and its copy in the project are one occurrence, and so is what repeats within a minute.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.owners import deployment_of
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import QUOTA_GRANTED, READY, Instance
from datum_compute.kube import conditions
from datum_compute.kube.kinds import Event
from datum_compute.kube.meta import Condition

LIFETIME = timedelta(hours=1)  # of events, on most servers
_TOGETHER = timedelta(seconds=60)
_OWN = (READY, QUOTA_GRANTED)  # Ready sums up the others
_PLANES = ("project", "hub", "cell")  # from where events are repeated to where they begin
_ORDINAL = re.compile(r"-\d+$")


class Occurrence(Struct, frozen=True):
    """`subject` is the object it is about; `city` is empty for what concerns the whole workload."""

    time: datetime
    city: str
    subject: str
    plane: str
    reason: str
    text: str
    count: int = 1


def of_events(events: Iterable[Event], plane: str, workload: str, cities: Mapping[str, str]) -> Iterable[Occurrence]:
    """Those about a workload, its deployments and their instances, also instances that exist no more.

    `cities` has the city of each deployment, by its name, which is the same on every plane.
    """
    for event in events:
        about = event.involved_object
        deployment = _ORDINAL.sub("", about.name) if about.kind == "Instance" else about.name
        is_ours = deployment in cities if about.kind != "Workload" else about.name == workload
        time = event.last_timestamp or event.first_timestamp or event.metadata.creation_timestamp
        if is_ours and time is not None:
            city = "" if about.kind == "Workload" else cities[deployment]
            yield Occurrence(time, city, about.name, plane, event.reason, event.message, event.count or 1)


def of_conditions(
    deployments: Iterable[WorkloadDeployment], instances: Iterable[Instance], cities: Mapping[str, str]
) -> Iterable[Occurrence]:
    """When each condition took the status that it has now; of an instance, those that say something of their own."""
    for deployment in deployments:
        for condition in conditions.of(deployment):
            yield from _transition(condition, cities.get(deployment.name, ""), deployment.name)
    for instance in instances:
        for condition in conditions.of(instance):
            if condition.type not in _OWN:
                continue
            yield from _transition(condition, cities.get(deployment_of(instance), ""), instance.name)


def _transition(condition: Condition, city: str, subject: str) -> Iterable[Occurrence]:
    if condition.last_transition_time.year > 1970:
        text = f"{condition.type} is {condition.status}" + (f": {condition.message}" if condition.message else "")
        yield Occurrence(condition.last_transition_time, city, subject, "project", condition.reason, text)


def timeline(
    occurrences: Iterable[Occurrence], *, since: datetime | None = None, city: str = ""
) -> Sequence[Occurrence]:
    """In order of time, of one city if it is given; what concerns the whole workload is part of every city."""
    chosen = [
        occurrence
        for occurrence in occurrences
        if (since is None or occurrence.time >= since)
        and (not city or not occurrence.city or occurrence.city.lower() == city.lower())
    ]
    merged: list[Occurrence] = []
    for occurrence in sorted(chosen, key=lambda found: (found.time, found.city, found.subject, found.reason)):
        index = next((i for i in range(len(merged) - 1, -1, -1) if _is_same(merged[i], occurrence)), None)
        if index is None:
            merged.append(occurrence)
        else:
            merged[index] = _together(merged[index], occurrence)
    return sorted(merged, key=lambda found: (found.time, found.city, found.subject, found.reason))


def _is_same(before: Occurrence, after: Occurrence) -> bool:
    alike = (before.city, before.subject, before.reason, before.text) == (
        *(after.city, after.subject),
        *(after.reason, after.text),
    )
    return alike and after.time - before.time <= _TOGETHER


def _together(before: Occurrence, after: Occurrence) -> Occurrence:
    """An echo on another plane is the same event; on the same plane it happened again."""
    count = before.count + after.count if before.plane == after.plane else max(before.count, after.count)
    origin = max(before.plane, after.plane, key=_PLANES.index)
    return replace(before, time=after.time, plane=origin, count=count)


def complete_since(now: datetime, created: datetime | None) -> datetime:
    """Since when nothing can be missing: events are kept for about an hour."""
    oldest = now - LIFETIME
    return max(oldest, created) if created is not None else oldest
