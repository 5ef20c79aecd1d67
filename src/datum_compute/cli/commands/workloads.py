"""Workloads: a list of them, or the details of one. Entry point: `command`."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import click
from msgspec import Struct

from datum_compute.answers.health import (
    DELETING,
    HEALTH_STATES,
    IDLE,
    PAUSED,
    Health,
    block,
    is_paused,
    progressing,
    workload_health,
)
from datum_compute.answers.places import Counts, Place, numbers, observed, tally, total
from datum_compute.api.deployment import AVAILABLE, WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.flags import WORKLOAD_NAME, Choice, option, verb, watch_option, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.shell.tree import listing_verbs
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.fragments import (
    TONES,
    ago,
    condition_table,
    fact_lines,
    heading,
    health_line,
    labelled_line,
    next_steps,
    revision_text,
    updated_at,
)
from datum_compute.cli.show.lines import Column, Item, Line, Piece, Span, Table, hints, table
from datum_compute.cli.show.specs import image, instance_type, is_machine, runtime_facts, short_image
from datum_compute.cli.show.views import Page, View, Watch, object_view
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.project import Read, of_workload
from datum_compute.cli.workload import history
from datum_compute.cli.workload.cities import not_offered_hints
from datum_compute.cli.workload.revisions import Revisions

RARE_STATES = (PAUSED, DELETING, IDLE)  # counted in the footer only if they occur


class Entry(Struct, frozen=True):
    """A workload with its deployments."""

    workload: Workload
    deployments: tuple[WorkloadDeployment, ...]

    @property
    def health(self) -> Health:
        return workload_health(self.workload, self.deployments)

    @property
    def numbers(self) -> Counts:
        return total(tally(self.workload, self.deployments).values())

    @property
    def updated(self) -> str:
        """Up-to-date instances, as the workload reports them; a dash until its status answers the newest spec."""
        status = self.workload.status
        return f"{status.updated_replicas}/{self.numbers.desired}" if status and observed(self.workload) else "—"

    def is_in(self, city: str) -> bool:
        codes = {code.lower() for placement in self.workload.spec.placements for code in placement.city_codes}
        return city.lower() in codes

    def has_health(self, word: str) -> bool:
        if word == "progressing":
            return progressing(self.deployments)
        if word == "paused":
            return is_paused(self.workload) and not self.workload.metadata.deleting
        return self.health.state.lower() == word


class Filter(Struct, frozen=True):
    """Which workloads to list."""

    names: tuple[str, ...]
    health: str | None
    city: str | None
    watch: bool

    def matches(self, entry: Entry) -> bool:
        in_city = self.city is None or entry.is_in(self.city)
        return in_city and (self.health is None or entry.has_health(self.health))


@verb("list", needs=ENTITLED_PROJECT, outputs=("table", "wide", "json", "yaml", "name"), flags=Filter)
@click.argument("names", type=WORKLOAD_NAME, nargs=-1, metavar="[NAME]...")
@option(
    "--health",
    type=Choice("available", "degraded", "unavailable", "progressing", "paused", "deleting", "idle", "unknown"),
    help="Only those in this state.",
)
@option("--city", metavar="CITY", help="Only those with a placement in this city.")
@watch_option
def list_(run: Run, flags: Filter) -> View | Watch:
    """List workloads with their health, all of them or those that are named."""
    if not flags.watch:
        return _list(run, flags)
    calls = [run.project.watch_call(WORKLOAD), run.project.watch_call(WORKLOAD_DEPLOYMENT)]
    return Watch(calls, lambda: _list(run, flags))


def _list(run: Run, filter_: Filter) -> View:
    listing = run.project.get_all(WORKLOAD, filter_.names) if filter_.names else run.project.list(WORKLOAD)
    deployments: dict[str, list[WorkloadDeployment]] = {}
    for deployment in run.project.list(WORKLOAD_DEPLOYMENT).items:
        deployments.setdefault(deployment.metadata.labels.get(WORKLOAD_UID, ""), []).append(deployment)
    entries = {
        workload.name: Entry(workload, tuple(deployments.get(workload.metadata.uid, ()))) for workload in listing.items
    }
    listing = listing.select(
        lambda workload: filter_.matches(entries[workload.name]), order=lambda workload: workload.name
    )
    rows = [entries[workload.name] for workload in listing.items]

    def page(now: datetime) -> Page:
        if not rows:
            return _empty(run, filter_)
        return Page([_table(rows, now, wide=run.wide)], footer=["", _footer(rows)])

    return View(page, listing.document(filter_.names), listing.records)


@verb("describe", needs=ENTITLED_PROJECT, outputs=("wide", "json", "yaml", "name"))
@workload_argument
def describe(run: Run, workload: str) -> View:
    """Show one workload: placements, container, conditions."""
    read = run.project.get(WORKLOAD, workload)

    def page(now: datetime) -> Page:
        deployments = run.project.list(WORKLOAD_DEPLOYMENT, of_workload(read.object)).items
        revisions = history.read(run.project, read.object)
        return Page(
            _details(run.project.name, read, deployments, revisions, now), notes=_next_steps(run, read, revisions)
        )

    return object_view(WORKLOAD, read, page)


def _next_steps(run: Run, read: Read[Workload], revisions: Revisions) -> list[Line]:
    name = read.object.name
    steps = {"Status:": f"status {name}", "Instances:": f"instances --workload={name}"}
    if revisions.undo_target(read.body()["spec"]) is not None:
        steps["Roll back:"] = f"rollout undo {name}"
    return next_steps(run, steps)


def _empty(run: Run, filter_: Filter) -> Page:
    name = run.project.name
    if filter_.health:
        return Page([f"No workloads in project {name} match health={filter_.health}."])
    if filter_.city:
        sentence = f"No workloads in project {name} have a placement in city {filter_.city}."
        return Page([sentence], not_offered_hints(run, filter_.city))
    start = f"Get started:  {run.try_next('deploy hello --image=IMAGE --city=CITY')}"
    return Page([f"No workloads found in project {name}."], hints("", start))


def _table(entries: Iterable[Entry], now: datetime, *, wide: bool) -> Table:
    columns: list[str | Column] = [
        "NAME",
        "HEALTH",
        "READY",
        Column("UP-TO-DATE", shrinks=True),
        Column("PLACEMENTS", shrinks=True),
        Column("IMAGE", shrinks=True),
        "AGE",
        *(["INSTANCE TYPE"] if wide else []),
    ]
    return table(columns, [_row(entry, now, wide=wide) for entry in entries])


def _row(entry: Entry, now: datetime, *, wide: bool) -> tuple[Piece, ...]:
    workload, numbers, state = entry.workload, entry.numbers, entry.health.state
    spec = workload.spec.template.spec
    return (
        workload.name,
        Span(state, TONES[state]),
        f"{numbers.ready}/{numbers.desired}",
        entry.updated,
        ",".join(placement.name for placement in workload.spec.placements) or "(none)",
        short_image(image(spec, "(vm)")),
        age(workload.metadata.creation_timestamp, now),
        *((instance_type(spec),) if wide else ()),
    )


def _footer(entries: Sequence[Entry]) -> str:
    states = [entry.health.state for entry in entries]
    counted = [state for state in HEALTH_STATES if state not in RARE_STATES or state in states]
    summary = ", ".join(f"{states.count(state)} {state}" for state in counted)
    return f"{len(entries)} workload{'' if len(entries) == 1 else 's'} — {summary}"


def _details(
    project: str,
    read: Read[Workload],
    deployments: Sequence[WorkloadDeployment],
    revisions: Revisions,
    now: datetime,
) -> list[Item]:
    workload = read.object
    spec = workload.spec.template.spec
    kind = "virtual-machine" if is_machine(spec) else f"sandbox/{instance_type(spec)}"
    return [
        heading("Workload", workload.name, f"project: {project}"),
        labelled_line("Type", kind),
        labelled_line("Updated", ago(updated_at(read, revisions), now)),
        labelled_line("Revision", revision_text(read, revisions)),
        "",
        health_line(workload, deployments),
        "",
        "Placements",
        *_placements(workload, deployments),
        "",
        "Machine" if is_machine(spec) else "Container",
        *fact_lines(runtime_facts(spec)),
        *condition_table(workload.status.conditions if workload.status else (), now),
    ]


def _placements(workload: Workload, deployments: Iterable[WorkloadDeployment]) -> list[str]:
    placements = workload.spec.placements
    if not placements:
        return ["  (none configured — workload will not run anywhere)"]
    by_place = {Place.of(deployment): deployment for deployment in deployments}
    lines = []
    for placement in placements:
        settings = placement.scale_settings
        most = "∞" if settings.max_replicas is None else str(settings.max_replicas)
        codes = sorted(placement.city_codes)
        lines.append(f"  {placement.name}  cities: {', '.join(codes)}  scale: {settings.min_replicas}..{most}")
        for code in codes:
            deployment = by_place.get(Place(placement.name, code))
            counts = numbers(workload, settings.min_replicas, deployment)
            lines.append(f"    {code}  {_readiness(counts, deployment)}")
    return lines


def _readiness(counts: Counts, deployment: WorkloadDeployment | None) -> str:
    """Ready and desired instances in a city, and what blocks the missing ones."""
    text = f"ready: {counts.ready}/{counts.desired}"
    status = deployment.status if deployment is not None else None
    blocked = block(status.conditions, AVAILABLE) if status else None
    if blocked is None or not counts.missing:
        return text
    return f"{text}  Blocked" + (f" — {cause}" if (cause := blocked.message or blocked.reason) else "")


command = listing_verbs("workloads", "List or describe workloads.", list_, describe)
