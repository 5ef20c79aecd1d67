"""Workloads, all of them or one. Entry point: `command`."""

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
from datum_compute.cli.shell.flags import WORKLOAD_NAME, Choice, option, watch_option, workload_argument
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.fragments import (
    TONES,
    ago,
    condition_table,
    fact_lines,
    head,
    health_line,
    last_revision,
    revision_text,
)
from datum_compute.cli.show.lines import Column, Line, Piece, Span, Table, hints
from datum_compute.cli.show.specs import image, instance_type, is_machine, runtime_facts, short_image
from datum_compute.cli.show.views import Look, Page, keep_showing, show
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import history
from datum_compute.cli.workload.revisions import Revisions

RARE_STATES = (PAUSED, DELETING, IDLE)  # counted in the footer only where there is one


class Entry(Struct, frozen=True):
    """A workload with the deployments that belong to it."""

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
        """Of the newest version, as the workload itself reports; a dash until it reports on what was asked last."""
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


@verb("list", needs=[project, active_entitlement], outputs=("table", "wide", "json", "yaml", "name"))
@click.argument("names", type=WORKLOAD_NAME, nargs=-1, metavar="[NAME]...")
@option(
    "--health",
    type=Choice("available", "degraded", "unavailable", "progressing", "paused", "deleting", "idle", "unknown"),
    help="Only those in this state.",
)
@option("--city", metavar="CITY", help="Only those with a placement in this city.")
@watch_option
def list_(run: Run, names: Sequence[str], health: str | None, city: str | None, watch: bool) -> None:
    """List workloads with their health, all of them or those that are named."""
    if not watch:
        show(run, _look(run, names, health, city))
        return
    calls = [run.project.watch_call(WORKLOAD), run.project.watch_call(WORKLOAD_DEPLOYMENT)]
    keep_showing(run, calls, lambda: _look(run, names, health, city))


def _look(run: Run, names: Sequence[str], health: str | None, city: str | None) -> Look:
    listing = run.project.get_all(WORKLOAD, names) if names else run.project.list(WORKLOAD)
    deployments: dict[str, list[WorkloadDeployment]] = {}
    for deployment in run.project.list(WORKLOAD_DEPLOYMENT).items:
        deployments.setdefault(deployment.metadata.labels.get(WORKLOAD_UID, ""), []).append(deployment)
    entries = {
        workload.name: Entry(workload, tuple(deployments.get(workload.metadata.uid, ()))) for workload in listing.items
    }

    def wanted(workload: Workload) -> bool:
        entry = entries[workload.name]
        return (city is None or entry.is_in(city)) and (health is None or entry.has_health(health))

    kept = listing.kept(wanted, order=lambda workload: workload.name)
    shown = [entries[workload.name] for workload in kept.items]

    def page(now: datetime) -> Page:
        if not shown:
            return _nothing(run, health, city)
        return Page([_table(shown, now, wide=run.output == "wide")], footer=["", _footer(shown)])

    return Look(page, kept.document(names), {f"workload/{one.object.name}": one.json for one in kept.found})


@verb("describe", needs=[project, active_entitlement], outputs=("wide", "json", "yaml", "name"))
@workload_argument
def describe(run: Run, workload: str) -> None:
    """Show one workload: placements, container, conditions."""
    seen = run.project.get(WORKLOAD, workload)
    match run.output:
        case "json" | "yaml":
            run.terminal.data(seen.json, run.output)
        case "name":
            run.terminal.name(f"workload/{seen.object.name}")
        case _:
            of_workload = f"{WORKLOAD_UID}={seen.object.metadata.uid}"
            deployments = run.project.list(WORKLOAD_DEPLOYMENT, of_workload).items
            known = history.read(run.project, seen.object)
            run.terminal.show(*_details(run, seen, deployments, known))
            run.terminal.hint(*_next_steps(run, seen, known))


def _next_steps(run: Run, seen: Read[Workload], known: Revisions) -> list[str]:
    name = seen.object.name
    steps = {"Status:": f"status {name}", "Instances:": f"instances --workload={name}"}
    if known.undo_target(seen.body()["spec"]) is not None:
        steps["Roll back:"] = f"rollout undo {name}"
    return ["", "Next steps:", *(f"  {label:<12} {run.try_next(command)}" for label, command in steps.items())]


def _nothing(run: Run, health: str | None, city: str | None) -> Page:
    name = run.project.name
    if health:
        return Page([f"No workloads in project {name} match health={health}."])
    if city:
        return Page([f"No workloads in project {name} have a placement in city {city}."])
    start = f"Get started:  {run.try_next('deploy hello --image=IMAGE --city=CITY')}"
    return Page([f"No workloads found in project {name}."], hints("", start))


def _table(entries: Iterable[Entry], now: datetime, *, wide: bool) -> Table:
    columns = [
        Column("NAME"),
        Column("HEALTH"),
        Column("READY"),
        Column("UP-TO-DATE", shrinks=True),
        Column("PLACEMENTS", shrinks=True),
        Column("IMAGE", shrinks=True),
        Column("AGE"),
    ]
    if wide:
        columns.append(Column("INSTANCE TYPE"))
    return Table(tuple(columns), [_row(entry, now, wide=wide) for entry in entries])


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
    number = [entry.health.state for entry in entries]
    shown = [state for state in HEALTH_STATES if state not in RARE_STATES or state in number]
    counted = ", ".join(f"{number.count(state)} {state}" for state in shown)
    return f"{len(entries)} workload{'' if len(entries) == 1 else 's'} — {counted}"


def _details(
    run: Run, seen: Read[Workload], deployments: Sequence[WorkloadDeployment], known: Revisions
) -> list[str | Line | Table]:
    workload = seen.object
    spec = workload.spec.template.spec
    now = run.clock.now()
    kind = "virtual-machine" if is_machine(spec) else f"sandbox/{instance_type(spec)}"
    return [
        head("Workload", workload.name, f"project: {run.project.name}"),
        head("Type", kind),
        head("Updated", ago(last_revision(seen, known), now)),
        head("Revision", revision_text(seen, known)),
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
    found = {Place.of(deployment): deployment for deployment in deployments}
    lines = []
    for placement in placements:
        settings = placement.scale_settings
        most = "∞" if settings.max_replicas is None else str(settings.max_replicas)
        codes = sorted(placement.city_codes)
        lines.append(f"  {placement.name}  cities: {', '.join(codes)}  scale: {settings.min_replicas}..{most}")
        for code in codes:
            deployment = found.get(Place(placement.name, code))
            counted = numbers(workload, settings.min_replicas, deployment)
            lines.append(f"    {code}  {_city(counted, deployment)}")
    return lines


def _city(counted: Counts, deployment: WorkloadDeployment | None) -> str:
    """Ready of desired, and why not all are."""
    text = f"ready: {counted.ready}/{counted.desired}"
    status = deployment.status if deployment is not None else None
    blocked = block(status.conditions, AVAILABLE) if status else None
    if blocked is None or not counted.missing:
        return text
    return f"{text}  Blocked" + (f" — {why}" if (why := blocked.message or blocked.reason) else "")


command = Verbs(
    "workloads",
    "List or describe workloads.",
    [list_, describe],
    bare="list",
    aliases={"ls": "list", "get": "describe"},
)
