"""Parts that several views share. Entry points: `head`, `health_line`, `ago`, `fact_lines`, `condition_table`,
`event_table`."""

from collections.abc import Iterable
from datetime import datetime

import msgspec
from msgspec import Struct

from datum_compute.answers.health import (
    AVAILABLE,
    DEGRADED,
    DELETING,
    IDLE,
    PAUSED,
    UNAVAILABLE,
    UNKNOWN,
    workload_health,
)
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.workload import Workload
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.lines import Column, Line, Span, Table, Tone, line
from datum_compute.cli.show.specs import Fact
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload.revisions import Revisions
from datum_compute.kube.kinds import Event
from datum_compute.kube.meta import Condition, Json, decode

_EVENTS = 20  # at most, in a view of one object
TONES = {
    AVAILABLE: Tone.GOOD,
    DEGRADED: Tone.BUSY,
    UNAVAILABLE: Tone.BAD,
    UNKNOWN: Tone.PLAIN,
    PAUSED: Tone.BUSY,
    DELETING: Tone.BUSY,
    IDLE: Tone.PLAIN,
}


def head(label: str, value: str, right: str = "") -> Line:
    """A label of twelve, a value of thirty-one, and what stands to the right of it."""
    return line(f"{label:<12} {value:<31} {right}")


def health_line(workload: Workload, deployments: Iterable[WorkloadDeployment]) -> Line:
    health = workload_health(workload, deployments)
    return line(f"{'Health':<12} ", Span(str(health), TONES[health.state]))


class _Managed(Struct, frozen=True):
    time: datetime | None = None
    subresource: str = ""
    fields: Json = msgspec.field(default_factory=dict, name="fieldsV1")


class _Metadata(Struct, frozen=True, rename="camel"):
    managed_fields: tuple[_Managed, ...] = ()
    creation_timestamp: datetime | None = None
    generation: int = 0


class _Dated(Struct, frozen=True):
    metadata: _Metadata


def last_change(seen: Read[Workload]) -> datetime | None:
    """When somebody last changed what it asks for, as the server remembers; None when it does not."""
    metadata = decode(seen.json, _Dated).metadata
    times = [
        managed.time
        for managed in metadata.managed_fields
        if managed.time is not None and not managed.subresource and "f:spec" in managed.fields
    ]
    return max(times, default=metadata.creation_timestamp if metadata.generation <= 1 else None)


def last_revision(seen: Read[Workload], known: Revisions) -> datetime | None:
    """When its active revision was made, when nobody has changed it since; else when it was last changed."""
    active, generation = known.active, seen.object.metadata.generation
    if active is not None and not known.changed_outside(seen.body()["spec"]) and active.generation in (0, generation):
        return active.time
    return last_change(seen)


def ago(since: datetime | None, now: datetime) -> str:
    return f"{age(since, now)} ago" if since is not None else "—"


def revision_text(seen: Read[Workload], known: Revisions) -> str:
    """The number of its last change; a star when somebody changed it without one."""
    number = f"#{known.current}" if known.current else "#—"
    return f"{number}* (changed outside datumctl)" if known.changed_outside(seen.body()["spec"]) else number


def fact_lines(facts: Iterable[Fact]) -> list[str]:
    """A label of twelve, and its values under each other."""
    return [
        f"  {fact.label if index == 0 else '':<12} {value}" for fact in facts for index, value in enumerate(fact.values)
    ]


_COLUMNS = (Column("TYPE"), Column("STATUS"), Column("REASON"), Column("AGE"), Column("MESSAGE", wraps=True))


def condition_table(conditions: Iterable[Condition], now: datetime) -> list[str | Table]:
    """As the server sends them, under a title; an age that cannot be true is left out, and so is an empty table."""
    rows = [
        (one.type, one.status, one.reason, _believable_age(one.last_transition_time, now), one.message)
        for one in conditions
    ]
    return ["", "Conditions", Table(_COLUMNS, rows, indent=2)] if rows else []


_EVENT_COLUMNS = (Column("TYPE"), Column("REASON"), Column("AGE"), Column("COUNT"), Column("MESSAGE", wraps=True))


def event_table(events: Iterable[Event], now: datetime) -> list[str | Table]:
    """What happened, the newest last, under a title; nothing when nothing did."""
    dated = sorted(events, key=lambda one: (one.last_timestamp or now, one.name))
    rows = [
        (one.type, one.reason, age(one.last_timestamp, now), str(one.count or 1), one.message)
        for one in dated[-_EVENTS:]
    ]
    return ["", "Events", Table(_EVENT_COLUMNS, rows, indent=2)] if rows else []


def _believable_age(since: datetime, now: datetime) -> str:
    """Empty for the year 1970, which a schema's default says, and for times to come."""
    return age(since, now) if since.year > 1970 and since <= now else ""
