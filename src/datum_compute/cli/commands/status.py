"""How a workload is doing, city by city. Entry point: `command`."""

from collections.abc import Sequence
from datetime import datetime

from datum_compute.answers.cities import City, Trouble, affordable, cities
from datum_compute.answers.health import is_paused, workload_health
from datum_compute.answers.places import observed
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.reasons import Acts, explain
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.flags import watch_option, workload_argument
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.fragments import ago, head, health_line, last_revision, revision_text
from datum_compute.cli.show.lines import Column, Line, Piece, Table, busy, hints, line
from datum_compute.cli.show.specs import image, instance_type
from datum_compute.cli.show.views import Look, Page, keep_showing, show
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import history
from datum_compute.cli.workload.revisions import Revisions


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
        return Page(view, hints(*_next_steps(run, seen, found, known)))

    return Look(page, document, {f"workload/{name}": document})


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
    since = ago(last_revision(seen, known), now)
    return [
        head("Workload", workload.name, f"project: {project_name}"),
        head("Image", image(spec, "(virtual machine)")),
        head("Updated", since, f"Revision {revision_text(seen, known)}"),
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
    titled = (Column("CITY"), Column("READY"), Column("DESIRED"), Column("TYPE", shrinks=True))
    columns = (Column("", least=9), *titled, Column(""))
    rows: list[tuple[Piece, ...]] = []
    previous = ""
    for city in found:
        numbers = city.numbers
        name = city.place.placement if city.place.placement != previous else ""
        previous = city.place.placement
        mark = () if city.asked and not city.degraded else (busy("[degraded]") if city.asked else "[removing]",)
        ready = f"{numbers.ready}/{numbers.replicas}" if city.known else "—"  # an earlier one may still stop there
        kind = instance_type(workload.spec.template.spec)
        rows.append((name, city.place.city, ready, str(numbers.desired), kind, *mark))
    return [Table(columns, rows, indent=2)]


def _why(city: City, trouble: Trouble) -> list[str | Line]:
    what = "not ready" if trouble.waiting else "could not start"
    lines: list[str | Line] = [
        "",
        line(f"  {city.place.city}: {city.numbers.missing} instances {what} — {trouble.cause}"),
    ]
    return [*lines, f"    {trouble.message}"] if trouble.message else lines


def _next_steps(run: Run, seen: Read[Workload], found: Sequence[City], known: Revisions) -> list[str]:
    name, paused = seen.object.name, is_paused(seen.object)
    if seen.object.metadata.deleting:
        return []  # nothing can be changed any more
    mine = any(city.degraded and city.trouble and explain(city.trouble.reason).acts is Acts.YOU for city in found)
    steps = {}
    if paused:
        steps["Go on:"] = f"rollout resume {name}"
    if most := affordable(found):
        steps["Reduce replicas:"] = f"scale {name} --min={most}"
        steps["Check quota:"] = "quota"
    elif mine and not paused and known.undo_target(seen.body()["spec"]) is not None:
        steps["Roll back:"] = f"rollout undo {name}"
    if any(city.degraded for city in found):
        steps["View instances:"] = f"instances --workload={name}"
    lines = [f"    {label:<18} {run.try_next(line)}" for label, line in steps.items()]
    return ["", "  Next steps:", *lines] if lines else []


def _document(
    run: Run,
    seen: Read[Workload],
    deployments: Sequence[WorkloadDeployment],
    found: Sequence[City],
    known: Revisions,
) -> dict[str, object]:
    workload = seen.object
    spec = workload.spec.template.spec
    health = workload_health(workload, deployments)
    return {
        "name": workload.name,
        "project": run.project.name,
        "image": image(spec, ""),
        "instanceType": instance_type(spec),
        "revision": known.current or None,
        "updated": last_revision(seen, known),
        "health": str(health),
        "healthState": health.state,
        "paused": is_paused(workload),
        "deleting": workload.metadata.deleting,
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
