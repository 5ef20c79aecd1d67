"""Carries out the plan of a deploy: shows it, asks, writes the workload and records it. Entry point: `apply`."""

from msgspec import Struct

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.diffs import diff_lines
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import edits, history
from datum_compute.cli.workload.changes import object_change_lines
from datum_compute.cli.workload.networks import check_networks
from datum_compute.cli.workload.plan import Plan
from datum_compute.cli.workload.revisions import DEPLOY
from datum_compute.cli.workload.writing import DRY_RUN, approved, show_written, traced


class ApplyFlags(Struct, frozen=True):
    """The flags that decide how a plan is carried out."""

    yes: bool
    dry_run: bool
    diff: bool
    exit_code: bool
    message: str


class Outcome(Struct, frozen=True):
    """The workload after a deploy, None after a dry run or a declined prompt; and the exit code."""

    workload: Read[Workload] | None = None
    changed: bool = False
    revision: int = 0
    code: Exit = Exit.OK


def apply(run: Run, plan: Plan, flags: ApplyFlags) -> Outcome:
    before, after = plan.before, plan.after
    if before is not None and not object_change_lines(before, after):
        return _unchanged(run, plan)
    check_networks(run, edits.networks(after["spec"]), yes=flags.yes, dry_run=flags.dry_run)
    checked = None
    if flags.dry_run or (before is not None and not plan.complete):
        checked = _dry_run(run, plan)
        after = checked.body()
    changes = object_change_lines(before, after) if before is not None else []
    if before is not None and not changes:
        return _unchanged(run, plan)
    run.terminal.note(*plan.heading, *(f"  {change}" for change in changes))
    if flags.diff:
        run.terminal.show(*diff_lines(before, after))
    if flags.dry_run and checked is not None:
        show_written(run, WORKLOAD, checked, DRY_RUN)
        return Outcome(code=Exit.DIFFERENT if flags.exit_code else Exit.OK)
    if not approved(run, yes=flags.yes):
        return Outcome()
    if plan.live is None:
        return _create(run, plan, flags.message)
    return _update(run, plan, plan.live, flags.message)


def _create(run: Run, plan: Plan, message: str) -> Outcome:
    created = run.project.create(WORKLOAD, run.trace.noted_on(plan.after, run.project.name))
    show_written(run, WORKLOAD, created, f"  workload/{plan.name} created")
    revision = history.record(run, created, history.Change(DEPLOY, message or "initial deploy", None))
    return Outcome(created, changed=True, revision=revision)


def _update(run: Run, plan: Plan, live: Read[Workload], message: str) -> Outcome:
    written = run.project.update(WORKLOAD, live, traced(run, plan.edit))
    if not written.changed:
        return _unchanged(run, plan)  # somebody else made the same change meanwhile
    show_written(run, WORKLOAD, written.after, f"  workload/{plan.name} updated")
    changes = object_change_lines(written.before.body(), written.after.body())
    revision = history.record(run, written.after, history.Change(DEPLOY, message or "; ".join(changes), written.before))
    return Outcome(written.after, changed=True, revision=revision)


def _dry_run(run: Run, plan: Plan) -> Read[Workload]:
    """The workload as the server would store it."""
    if plan.live is None:
        return run.project.create(WORKLOAD, plan.after, dry_run=True)
    return run.project.update(WORKLOAD, plan.live, plan.edit, dry_run=True).after


def _unchanged(run: Run, plan: Plan) -> Outcome:
    assert plan.live is not None
    show_written(run, WORKLOAD, plan.live, "No changes detected.")
    return Outcome(plan.live)
