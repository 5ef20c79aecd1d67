"""Fragments of pages that several verbs share. Entry points: `labelled_line`, `labelled_prose`, `prose`, `health_line`,
`fact_lines`, `next_steps`, `condition_table`, `event_table`."""

from collections.abc import Iterable, Mapping
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
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.lines import Column, Item, Line, Piece, Span, Table, Tone, hints, line, table
from datum_compute.cli.show.specs import Fact
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload.revisions import Revisions
from datum_compute.kube.kinds import Event
from datum_compute.kube.meta import Condition, Json, decode

_EVENTS = 20  # at most, on the page of one object
TONES = {
    AVAILABLE: Tone.GOOD,
    DEGRADED: Tone.BUSY,
    UNAVAILABLE: Tone.BAD,
    UNKNOWN: Tone.PLAIN,
    PAUSED: Tone.BUSY,
    DELETING: Tone.BUSY,
    IDLE: Tone.PLAIN,
}


def labelled_line(label: str, value: Piece, *, width: int = 12) -> Line:
    return line(f"{label:<{width}} ", value)


def labelled_prose(label: str, text: str, *, width: int = 12) -> Table:
    """A labelled text that continues below itself."""
    return table((Column("", least=width - 2), Column("", wraps=True)), [(label, text)])


def prose(text: str, *, indent: int) -> Table:
    """A text that continues below itself."""
    return table((Column("", wraps=True),), [(text,)], indent)


def heading(label: str, value: str, right: str) -> Line:
    """A labelled value with another text in the column to its right."""
    return labelled_line(label, f"{value:<31} {right}")


def health_line(workload: Workload, deployments: Iterable[WorkloadDeployment]) -> Line:
    health = workload_health(workload, deployments)
    return labelled_line("Health", Span(str(health), TONES[health.state]))


def next_steps(run: Run, steps: Mapping[str, str], *, indent: int = 0, width: int = 12) -> list[Line]:
    """Commands to run next, by label; nothing when there are none."""
    before = " " * indent
    lines = [f"{before}  {label:<{width}} {run.try_next(command)}" for label, command in steps.items()]
    return hints("", f"{before}Next steps:", *lines) if lines else []


class _ManagedFields(Struct, frozen=True):
    time: datetime | None = None
    subresource: str = ""
    fields: Json = msgspec.field(default_factory=dict, name="fieldsV1")


class _Metadata(Struct, frozen=True, rename="camel"):
    managed_fields: tuple[_ManagedFields, ...] = ()
    creation_timestamp: datetime | None = None
    generation: int = 0


class _Object(Struct, frozen=True):
    metadata: _Metadata


def last_change(workload: Read[Workload]) -> datetime | None:
    """When somebody last changed the spec, according to the server; None when it does not know."""
    metadata = decode(workload.json, _Object).metadata
    times = [
        managed.time
        for managed in metadata.managed_fields
        if managed.time is not None and not managed.subresource and "f:spec" in managed.fields
    ]
    return max(times, default=metadata.creation_timestamp if metadata.generation <= 1 else None)


def updated_at(workload: Read[Workload], revisions: Revisions) -> datetime | None:
    """When the active revision was made or, if the spec changed since then, when that happened."""
    active, generation = revisions.active, workload.object.metadata.generation
    if (
        active is not None
        and not revisions.changed_outside(workload.body()["spec"])
        and active.generation in (0, generation)
    ):
        return active.time
    return last_change(workload)


def ago(since: datetime | None, now: datetime) -> str:
    return f"{age(since, now)} ago" if since is not None else "—"


def revision_text(workload: Read[Workload], revisions: Revisions) -> str:
    """The number of the active revision, with a star when the spec was changed without recording one."""
    number = f"#{revisions.current}" if revisions.current else "#—"
    changed = revisions.changed_outside(workload.body()["spec"])
    return f"{number}* (changed outside datumctl)" if changed else number


def fact_lines(facts: Iterable[Fact]) -> list[str]:
    """A label, and its values below each other."""
    return [
        f"  {fact.label if index == 0 else '':<12} {value}" for fact in facts for index, value in enumerate(fact.values)
    ]


def condition_table(conditions: Iterable[Condition], now: datetime) -> list[Item]:
    """Conditions as the server sent them, under a title. Ages that cannot be true are left out."""
    rows = [
        (condition.type, condition.status, condition.reason, _plausible_age(condition, now), condition.message)
        for condition in conditions
    ]
    columns = ("TYPE", "STATUS", "REASON", "AGE", Column("MESSAGE", wraps=True))
    return ["", "Conditions", table(columns, rows, indent=2)] if rows else []


def event_table(events: Iterable[Event], now: datetime) -> list[Item]:
    """The latest events under a title, the newest last."""
    latest = sorted(events, key=lambda event: (event.last_timestamp or now, event.name))[-_EVENTS:]
    rows = [
        (event.type, event.reason, age(event.last_timestamp, now), str(event.count or 1), event.message)
        for event in latest
    ]
    columns = ("TYPE", "REASON", "AGE", "COUNT", Column("MESSAGE", wraps=True))
    return ["", "Events", table(columns, rows, indent=2)] if rows else []


def _plausible_age(condition: Condition, now: datetime) -> str:
    """Empty for 1970, the default of the schema, and for times in the future."""
    since = condition.last_transition_time
    return age(since, now) if since.year > 1970 and since <= now else ""
