"""The revisions of a workload. Entry point: `command`."""

import re
from collections.abc import Sequence
from datetime import datetime

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import Count, option, verb, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.fragments import ago, last_change
from datum_compute.cli.show.lines import Column, Item, Piece, busy, good, same_beginning, table
from datum_compute.cli.show.specs import image
from datum_compute.cli.show.views import Page, View
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import history
from datum_compute.cli.workload.changes import change_lines
from datum_compute.cli.workload.revisions import Entry, Revisions
from datum_compute.kube.meta import Json

_CHANGES_WIDTH = 40
_NEW_IMAGE = re.compile(r"image: (\S+) → ([^\s;]+)")
_COLUMNS = (
    "REV",
    "WHEN",
    Column("IMAGE", shrinks=True),
    Column("CHANGES", shrinks=True, prose=True),
    "BY",
    "STATUS",
)


@verb("history", needs=ENTITLED_PROJECT, outputs=("table", "wide", "json", "yaml"))
@workload_argument
@option("--revision", type=Count(), metavar="N", help="Print the spec of this revision.")
@option("--limit", type=Count(), default=20, metavar="N", help="Show at most this many; 20 by default.")
def command(run: Run, workload: str, revision: int | None, limit: int) -> View:
    """Show the revisions of a workload, newest first.

    Each revision includes the spec with the values of its variables, readable by everyone who may read ConfigMaps of
    the project. Refer to a Secret for sensitive values.
    """
    read = run.project.get(WORKLOAD, workload)
    revisions = history.read(run.project, read.object)
    if revision is not None:
        return View(None, spec_of(entry_of(revisions, workload, revision)))
    entries = list(reversed(revisions.entries))[:limit]

    def page(now: datetime) -> Page:
        content: Item = f'No revision history found for workload "{workload}".'
        if entries:
            rows = [*_live_row(read, revisions, now), *(_row(entry, revisions, now) for entry in entries)]
            content = table(_COLUMNS, rows if run.wide else _shortened(rows))
        return Page([content])

    return View(page, [_document(entry, revisions) for entry in entries])


def entry_of(revisions: Revisions, workload: str, number: int) -> Entry:
    entry = revisions.find(number)
    if entry is None:
        text = f"revision #{number} not found"
        raise Failure(text, Exit.NOT_FOUND, next_command=f"rollout history {workload}")
    return entry


def spec_of(entry: Entry) -> Json:
    try:
        return entry.spec_json()
    except ValueError as error:
        raise Failure(f"decoding stored spec for revision #{entry.rev}: {error}") from None


def _row(entry: Entry, revisions: Revisions, now: datetime) -> tuple[Piece, ...]:
    active = good("active") if entry.rev == revisions.current else ""
    return (f"#{entry.rev}", ago(entry.time, now), entry.image, entry.changes, entry.actor, active)


def _live_row(read: Read[Workload], revisions: Revisions, now: datetime) -> list[tuple[Piece, ...]]:
    """The live spec, if it differs from the active revision."""
    live: Json = read.body()["spec"]
    if revisions.active is None or not revisions.changed_outside(live):
        return []
    changes = "; ".join(change_lines(spec_of(revisions.active), live))
    live_image = image(read.object.spec.template.spec, "")
    return [("(live)", ago(last_change(read), now), live_image, changes, "", busy("changed outside datumctl"))]


def _shortened(rows: Sequence[tuple[Piece, ...]]) -> list[tuple[Piece, ...]]:
    return [(*row[:3], _short(str(row[3])), *row[4:]) for row in rows]


def _short(text: str) -> str:
    """Changes cut to the width of their column. Of an image only what differs: the column beside it has all of it."""
    text = _NEW_IMAGE.sub(lambda match: f"image: {_difference(match[1], match[2])}", text)
    return text if len(text) <= _CHANGES_WIDTH else f"{text[: _CHANGES_WIDTH - 1]}…"


def _difference(old: str, new: str) -> str:
    """`2.0 → 2.1` if only the tags differ, else with as much of the names as differs."""
    start = same_beginning((old, new))
    return f"{old[start:]} → {new[start:]}"


def _document(entry: Entry, revisions: Revisions) -> Json:
    return {
        "revision": entry.rev,
        "timestamp": entry.timestamp,
        "image": entry.image,
        "changes": entry.changes,
        "actor": entry.actor,
        "kind": entry.kind,
        "sourceRevision": entry.source_rev or None,
        "templateHash": entry.template_hash,
        "specHash": entry.spec_hash,
        "active": entry.rev == revisions.current,
    }
