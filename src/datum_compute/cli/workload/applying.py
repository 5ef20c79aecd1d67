"""Carries out the plan of a deploy: tells it, asks, writes and records it. Entry point: `apply`."""

from msgspec import Struct

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.diffs import diff_lines
from datum_compute.cli.show.results import NOTHING_DONE, agreed, show_written
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import edits, history
from datum_compute.cli.workload.changes import object_change_lines
from datum_compute.cli.workload.networks import check_networks
from datum_compute.cli.workload.plan import Plan
from datum_compute.cli.workload.revisions import DEPLOY

_UNCHANGED = "No changes detected."


class How(Struct, frozen=True):
    """What the flags say about the way to write."""

    yes: bool
    dry_run: bool
    diff: bool
    exit_code: bool
    message: str


class Outcome(Struct, frozen=True):
    """The workload as it is now, None when nobody agreed or it was only a try; and how the command ends."""

    live: Read[Workload] | None = None
    changed: bool = False
    revision: int = 0
    code: Exit = Exit.OK


def apply(run: Run, plan: Plan, how: How) -> Outcome:
    before, after = plan.before, plan.after
    if before is not None and not object_change_lines(before, after):
        return _unchanged(run, plan)
    check_networks(run, edits.networks(after["spec"]), yes=how.yes, dry_run=how.dry_run)
    checked = None
    if how.dry_run or (before is not None and not plan.complete):
        checked = _checked(run, plan)
        after = checked.body()
    changes = object_change_lines(before, after) if before is not None else []
    if before is not None and not changes:
        return _unchanged(run, plan)
    run.terminal.note(*plan.heading, *(f"  {change}" for change in changes))
    if how.diff:
        run.terminal.show(*diff_lines(before, after))
    if how.dry_run and checked is not None:
        show_written(run, WORKLOAD, checked, NOTHING_DONE)
        return Outcome(code=Exit.DIFFERENT if how.exit_code else Exit.OK)
    if not agreed(run, yes=how.yes):
        return Outcome()
    return _created(run, plan, how.message) if plan.seen is None else _updated(run, plan, plan.seen, how.message)


def _created(run: Run, plan: Plan, message: str) -> Outcome:
    written = run.project.create(WORKLOAD, plan.after)
    show_written(run, WORKLOAD, written, f"  workload/{plan.name} created")
    revision = history.record(run, written, history.Change(DEPLOY, message or "initial deploy", None))
    return Outcome(written, changed=True, revision=revision)


def _updated(run: Run, plan: Plan, seen: Read[Workload], message: str) -> Outcome:
    written = run.project.update(WORKLOAD, seen, plan.edit)
    if not written.changed:
        return _unchanged(run, plan)  # somebody else made the same change meanwhile
    show_written(run, WORKLOAD, written.after, f"  workload/{plan.name} updated")
    changes = object_change_lines(written.before.body(), written.after.body())
    revision = history.record(run, written.after, history.Change(DEPLOY, message or "; ".join(changes), written.before))
    return Outcome(written.after, changed=True, revision=revision)


def _checked(run: Run, plan: Plan) -> Read[Workload]:
    """The workload as the server would store it."""
    if plan.seen is None:
        return run.project.create(WORKLOAD, plan.after, dry_run=True)
    return run.project.update(WORKLOAD, plan.seen, plan.edit, dry_run=True).after


def _unchanged(run: Run, plan: Plan) -> Outcome:
    assert plan.seen is not None
    show_written(run, WORKLOAD, plan.seen, _UNCHANGED)
    return Outcome(plan.seen)
