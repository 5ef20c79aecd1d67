"""What was asked of a workload before. Entry point: `command`."""

import re
from collections.abc import Sequence
from datetime import datetime

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import Count, option, workload_argument
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.fragments import ago, last_change
from datum_compute.cli.show.lines import Column, Piece, Table, busy, good, same_beginning
from datum_compute.cli.show.specs import image
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import history
from datum_compute.cli.workload.changes import change_lines
from datum_compute.cli.workload.revisions import Entry, Revisions
from datum_compute.kube.meta import Json

_CHANGES_WIDTH = 40
_NEW_IMAGE = re.compile(r"image: (\S+) → ([^\s;]+)")
_OUTSIDE = "changed outside datumctl"


@verb("history", needs=[project, active_entitlement], outputs=("table", "wide", "json", "yaml"))
@workload_argument
@option("--revision", type=Count(), metavar="N", help="Print the spec of this revision.")
@option("--limit", type=Count(), default=20, metavar="N", help="Show at most this many; 20 unless given.")
def command(run: Run, workload: str, revision: int | None, limit: int) -> None:
    """Show the revisions of a workload, newest first.

    The spec of each is kept with it, and with it the values of its variables: whoever may read ConfigMaps of the
    project may read them. Take what is secret from a Secret.
    """
    seen = run.project.get(WORKLOAD, workload)
    known = history.read(run.project, seen.object)
    if revision is not None:
        run.terminal.data(spec_of(wanted(known, workload, revision)), "json" if run.output == "json" else "yaml")
        return
    shown = list(reversed(known.entries))[:limit]
    if run.output in ("json", "yaml"):
        run.terminal.data([_document(entry, known) for entry in shown], run.output)
    elif not shown:
        run.terminal.show(f'No revision history found for workload "{workload}".')
    else:
        rows = [*_live(seen, known, run.clock.now()), *(_row(entry, known, run.clock.now()) for entry in shown)]
        titles = ("REV", "WHEN", "IMAGE", "CHANGES", "BY", "STATUS")
        run.terminal.show(Table(tuple(map(_column, titles)), _cut(rows) if run.output == "table" else rows))


def wanted(known: Revisions, workload: str, number: int) -> Entry:
    found = known.find(number)
    if found is None:
        text = f"revision #{number} not found"
        raise Failure(text, Exit.NOT_FOUND, next_command=f"rollout history {workload}")
    return found


def spec_of(entry: Entry) -> Json:
    try:
        return entry.spec_json()
    except ValueError as error:
        raise Failure(f"decoding stored spec for revision #{entry.rev}: {error}") from None


def _column(title: str) -> Column:
    return Column(title, shrinks=title in ("IMAGE", "CHANGES"), prose=title == "CHANGES")


def _row(entry: Entry, known: Revisions, now: datetime) -> tuple[Piece, ...]:
    when = ago(entry.time, now)
    active = good("active") if entry.rev == known.current else ""
    return (f"#{entry.rev}", when, entry.image, entry.changes, entry.actor, active)


def _live(seen: Read[Workload], known: Revisions, now: datetime) -> list[tuple[Piece, ...]]:
    """What runs now, when it is not what was last recorded."""
    live: Json = seen.body()["spec"]
    if known.active is None or not known.changed_outside(live):
        return []
    changes = "; ".join(change_lines(spec_of(known.active), live))
    when = ago(last_change(seen), now)
    return [("(live)", when, image(seen.object.spec.template.spec, ""), changes, "", busy(_OUTSIDE))]


def _cut(rows: Sequence[tuple[Piece, ...]]) -> list[tuple[Piece, ...]]:
    return [(*row[:3], _short(str(row[3])), *row[4:]) for row in rows]


def _short(text: str) -> str:
    """So much of what changed that it fits; of an image the part that differs, as the column beside it has it all."""
    text = _NEW_IMAGE.sub(lambda found: f"image: {_differing(found[1], found[2])}", text)
    return text if len(text) <= _CHANGES_WIDTH else f"{text[: _CHANGES_WIDTH - 1]}…"


def _differing(old: str, new: str) -> str:
    """`2.0 → 2.1` where only the tag is another one, else with as much of the name as differs."""
    start = same_beginning((old, new))
    return f"{old[start:]} → {new[start:]}"


def _document(entry: Entry, known: Revisions) -> Json:
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
        "active": entry.rev == known.current,
    }
