"""How a workload is doing, city by city. Entry point: `command`."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from datum_compute.api.deployment import AVAILABLE, WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli import history
from datum_compute.cli.durations import age
from datum_compute.cli.entitlement import active_entitlement
from datum_compute.cli.flags import command as verb
from datum_compute.cli.flags import watch_option, workload_argument
from datum_compute.cli.health import Counts, State, block, counts, judge, observed
from datum_compute.cli.joins import deployment_of
from datum_compute.cli.lines import Column, Line, Piece, Table, busy, hints, line
from datum_compute.cli.looks import Look, Page, keep_showing, show
from datum_compute.cli.parts import head, health_line, health_of, last_revision, revision_text
from datum_compute.cli.project import Read
from datum_compute.cli.revisions import Revisions
from datum_compute.cli.rollout import Place
from datum_compute.cli.run import Run, project
from datum_compute.cli.specs import image, instance_type


class Trouble(Struct, frozen=True):
    """Why a city has fewer ready instances than it should."""

    reason: str = ""
    message: str = ""
    cause: str = ""  # the reason in plain words
    waiting: bool = False  # nothing went wrong yet
    quota: bool = False


class City(Struct, frozen=True):
    """One placement in one city. `asked`: the spec still names it."""

    place: Place
    numbers: Counts
    asked: bool
    trouble: Trouble | None = None

    @property
    def degraded(self) -> bool:
        return self.numbers.ready < self.numbers.desired

    @property
    def missing(self) -> int:
        return self.numbers.desired - self.numbers.ready


@verb("status", needs=[project, active_entitlement], outputs=("table", "json", "yaml"))
@workload_argument
@watch_option
def command(run: Run, workload: str, watch: bool) -> None:
    """Show the health of a workload, its cities, and what blocks it."""
    if not watch:
        show(run, _look(run, workload))
        return
    of_workload = f"{WORKLOAD_UID}={run.project.get(WORKLOAD, workload).object.metadata.uid}"
    calls = [
        run.project.watch_call(WORKLOAD, name=workload),
        run.project.watch_call(WORKLOAD_DEPLOYMENT, selector=of_workload),
        run.project.watch_call(INSTANCE, selector=of_workload),
    ]
    keep_showing(run, calls, lambda: _look(run, workload))


def _look(run: Run, name: str) -> Look:
    seen = run.project.get(WORKLOAD, name)
    of_workload = f"{WORKLOAD_UID}={seen.object.metadata.uid}"
    deployments = run.project.list(WORKLOAD_DEPLOYMENT, of_workload).items
    instances: list[Instance] = []
    if any(city.degraded for city in cities(seen.object, deployments, ())):
        instances = run.project.list(INSTANCE, of_workload).items
    found = cities(seen.object, deployments, instances)
    known = history.read(run.project, seen.object)
    document = _document(run, seen, deployments, found, known)

    def page(now: datetime) -> Page:
        view = _view(run.project.name, seen, deployments, found, known, now)
        return Page(view, hints(*_next_steps(run, name, found)))

    return Look(page, document, {f"workload/{name}": document})


def cities(workload: Workload, deployments: Iterable[WorkloadDeployment], instances: Iterable[Instance]) -> list[City]:
    """Every place that the spec names or a deployment is left in, placements in the order of the spec."""
    by_place = {Place(one.spec.placement_name, one.spec.city_code): one for one in deployments}
    asked = {
        Place(placement.name, code): placement.scale_settings.min_replicas
        for placement in workload.spec.placements
        for code in placement.city_codes
    }
    order = {placement.name: index for index, placement in enumerate(workload.spec.placements)}
    by_deployment: dict[str, list[Instance]] = {}
    for instance in sorted(instances, key=lambda one: one.name):
        by_deployment.setdefault(deployment_of(instance), []).append(instance)

    found = []
    for place in sorted({*by_place, *asked}, key=lambda one: (order.get(one.placement, len(order)), one)):
        deployment = by_place.get(place)
        if deployment is None:
            numbers, trouble = Counts(desired=asked[place]), Trouble(cause="not set up yet", waiting=True)
        else:
            numbers = counts(deployment)
            trouble = _trouble(deployment, by_deployment.get(deployment.name, ()))
        short = numbers.ready < numbers.desired
        found.append(City(place, numbers, place in asked, trouble if short else None))
    return found


def _trouble(deployment: WorkloadDeployment, instances: Sequence[Instance]) -> Trouble:
    """From the first instance that is not ready; from the deployment where there is none."""
    for instance in instances:
        judged = judge(instance)
        if judged.state is not State.AVAILABLE:
            reason = judged.because.reason if judged.because else ""
            waiting = not judged.line.startswith("Not available")
            return Trouble(reason, judged.message, judged.cause, waiting, judged.state is State.QUOTA_EXCEEDED)
    blocked = block(deployment.status.conditions, AVAILABLE) if deployment.status else None
    if blocked is None:
        return Trouble(cause="not reported yet", waiting=True)
    return Trouble(blocked.reason, blocked.message, blocked.reason, waiting=True)


def _view(
    project_name: str,
    seen: Read[Workload],
    deployments: Sequence[WorkloadDeployment],
    found: Sequence[City],
    known: Revisions,
    now: datetime,
) -> list[str | Line | Table]:
    workload = seen.object
    spec = workload.spec.template.spec
    since = age(last_revision(seen, known), now)
    return [
        head("Workload", workload.name, f"project: {project_name}"),
        head("Image", image(spec, "(virtual machine)")),
        head("Updated", f"{since} ago", f"Revision {revision_text(seen, known)}"),
        "",
        health_line(workload, deployments),
        "",
        *(_places(workload, deployments, found)),
        *(text for city in found if city.trouble for text in _why(city, city.trouble)),
    ]


def _places(
    workload: Workload, deployments: Sequence[WorkloadDeployment], found: Sequence[City]
) -> list[str | Line | Table]:
    if not workload.spec.placements:
        return ["  No placements configured."]
    if not deployments:
        return ["  Waiting for the first city to report."]
    columns = (Column("", least=9), Column("CITY"), Column("READY"), Column("DESIRED"), Column("TYPE"), Column(""))
    rows: list[tuple[Piece, ...]] = []
    previous = ""
    for city in found:
        numbers = city.numbers
        name = city.place.placement if city.place.placement != previous else ""
        previous = city.place.placement
        mark = () if city.asked and not city.degraded else (busy("[degraded]") if city.asked else "[removing]",)
        ready = f"{numbers.ready}/{numbers.replicas}"
        kind = instance_type(workload.spec.template.spec)
        rows.append((name, city.place.city, ready, str(numbers.desired), kind, *mark))
    return [Table(columns, rows, indent=2)]


def _why(city: City, trouble: Trouble) -> list[str | Line]:
    what = "not ready" if trouble.waiting else "could not start"
    lines: list[str | Line] = ["", line(f"  {city.place.city}: {city.missing} instances {what} — {trouble.cause}")]
    return [*lines, f"    {trouble.message}"] if trouble.message else lines


def _next_steps(run: Run, name: str, found: Sequence[City]) -> list[str]:
    if not any(city.degraded for city in found):
        return []
    steps = []
    short_of_quota = [city.numbers.ready for city in found if city.trouble and city.trouble.quota]
    if short_of_quota:
        steps += [
            f"    Reduce replicas:   {run.try_next(f'scale {name} --min={max(min(short_of_quota), 1)}')}",
            f"    Check quota:       {run.try_next('quota')}",
        ]
    return ["", "  Next steps:", *steps, f"    View instances:    {run.try_next(f'instances --workload={name}')}"]


def _document(
    run: Run,
    seen: Read[Workload],
    deployments: Sequence[WorkloadDeployment],
    found: Sequence[City],
    known: Revisions,
) -> dict[str, object]:
    workload = seen.object
    spec = workload.spec.template.spec
    health = health_of(workload, deployments)
    return {
        "name": workload.name,
        "project": run.project.name,
        "image": image(spec, ""),
        "instanceType": instance_type(spec),
        "revision": known.current or None,
        "updated": last_revision(seen, known),
        "health": str(health),
        "healthState": health.state,
        "observed": observed(workload),
        "cities": [
            {
                "placement": city.place.placement,
                "city": city.place.city,
                "ready": city.numbers.ready,
                "updated": city.numbers.updated,
                "replicas": city.numbers.replicas,
                "desired": city.numbers.desired,
                "degraded": city.degraded,
                "reason": city.trouble.reason if city.trouble else "",
                "message": city.trouble.message if city.trouble else "",
            }
            for city in found
        ],
    }
