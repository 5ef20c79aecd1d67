"""The health of a workload, city by city. Entry point: `command`."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from datum_compute.answers.cities import City, Trouble, affordable_replicas, cities
from datum_compute.answers.health import is_paused, workload_health
from datum_compute.answers.places import Place, observed
from datum_compute.answers.seen import NOT_ASKED
from datum_compute.answers.why import Answer, why
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.reasons import Acts, explain
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.flags import verb, watch_option, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.fragments import (
    ago,
    heading,
    health_line,
    labelled_line,
    next_steps,
    prose,
    revision_text,
    updated_at,
)
from datum_compute.cli.show.lines import Column, Item, Line, Piece, busy, line, table
from datum_compute.cli.show.specs import image, instance_type
from datum_compute.cli.show.views import Page, View, Watch
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.log_api import FAILING, is_served
from datum_compute.cli.talk.project import Read, of_workload
from datum_compute.cli.talk.sighting import answered, base_of
from datum_compute.cli.workload import history
from datum_compute.cli.workload.revisions import Revisions
from datum_compute.kube.meta import Json


@verb("status", needs=ENTITLED_PROJECT, outputs=("table", "json", "yaml"))
@workload_argument
@watch_option
def command(run: Run, workload: str, watch: bool) -> View | Watch:
    """Show the health of a workload, its cities, and what blocks it."""
    if not watch:
        return _view(run, workload)
    calls = run.project.workload_watches(run.project.get(WORKLOAD, workload).object)
    return Watch(calls, lambda: _view(run, workload))


class _Status(Struct, frozen=True):
    """Everything that the page and the document are made from."""

    project: str
    read: Read[Workload]
    deployments: Sequence[WorkloadDeployment]
    cities: Sequence[City]
    revisions: Revisions
    answer: Answer

    @property
    def workload(self) -> Workload:
        return self.read.object


def _view(run: Run, name: str) -> View:
    read = run.project.get(WORKLOAD, name)
    selector = of_workload(read.object)
    deployments = run.project.list(WORKLOAD_DEPLOYMENT, selector).items
    revisions = history.read(run.project, read.object)
    now = run.clock.now().astimezone()
    instances: list[Instance] = []
    seen = base_of(run.project, read, deployments, NOT_ASKED)
    if why(seen, now).blocks:
        instances = run.project.list(INSTANCE, selector).items
        seen = base_of(run.project, read, deployments, instances)
    _, answer = answered(run.project, read, seen, now, revisions)
    status = _Status(
        run.project.name, read, deployments, cities(read.object, deployments, instances), revisions, answer
    )
    document = _document(status)
    return View(
        lambda now: Page(_content(status, now), notes=_next_steps(run, status)),
        document,
        {f"workload/{name}": document},
    )


def _content(status: _Status, now: datetime) -> list[Item]:
    workload = status.workload
    updated = ago(updated_at(status.read, status.revisions), now)
    return [
        heading("Workload", workload.name, f"project: {status.project}"),
        labelled_line("Image", image(workload.spec.template.spec, "(virtual machine)")),
        heading("Updated", updated, f"Revision {revision_text(status.read, status.revisions)}"),
        "",
        health_line(workload, status.deployments),
        "",
        *_city_table(status),
        *(text for city, trouble in _troubles(status) for text in _trouble_lines(city, trouble)),
        *_sentence(status),
    ]


def _sentence(status: _Status) -> list[Item]:
    """What `why` says, if anything is held up."""
    return ["", prose(status.answer.sentence, indent=2)] if status.answer.blocks else []


def _city_table(status: _Status) -> list[Item]:
    workload = status.workload
    if not workload.spec.placements:
        return ["  No placements configured."]
    is_deleting = workload.metadata.deleting
    if not status.deployments:
        return [
            "  No city has a deployment of it any more." if is_deleting else "  Waiting for the first city to report."
        ]
    rows: list[tuple[Piece, ...]] = []
    previous = ""
    deployed = {Place.of(deployment) for deployment in status.deployments}
    for city in status.cities:
        if is_deleting and city.place not in deployed:
            continue  # nothing is desired there any more
        numbers = city.numbers
        name = city.place.placement if city.place.placement != previous else ""
        previous = city.place.placement
        mark: tuple[Piece, ...] = (busy("[degraded]"),) if city.degraded else ()
        if is_deleting or not city.requested:
            mark = ("[removing]",)
        # An instance of an earlier deployment of the same name may still be stopping there.
        ready = f"{numbers.ready}/{numbers.replicas}" if city.known else "—"
        kind = instance_type(workload.spec.template.spec)
        rows.append((name, city.place.city, ready, str(numbers.desired), kind, *mark))
    columns = (Column("", least=9), "CITY", "READY", "DESIRED", Column("TYPE", shrinks=True), "")
    return [table(columns, rows, indent=2)]


def _troubles(status: _Status) -> list[tuple[City, Trouble]]:
    """Why cities have fewer ready instances than they should; a workload that is being deleted should have none."""
    if status.workload.metadata.deleting:
        return []
    return [(city, city.trouble) for city in status.cities if city.trouble is not None]


def _trouble_lines(city: City, trouble: Trouble) -> list[Item]:
    state = "not ready" if trouble.waiting else "could not start"
    sentence = line(f"  {city.place.city}: {city.numbers.missing} instances {state} — {trouble.cause}")
    return ["", sentence, *([prose(trouble.message, indent=4)] if trouble.message else [])]


def _next_steps(run: Run, status: _Status) -> list[Line]:
    name, paused = status.workload.name, is_paused(status.workload)
    if status.workload.metadata.deleting:
        return []  # it cannot be changed any more
    user_can_act = any(
        city.degraded and city.trouble and explain(city.trouble.reason).acts is Acts.YOU for city in status.cities
    )
    steps = {}
    if paused:
        steps["Resume:"] = f"rollout resume {name}"
    if replicas := affordable_replicas(status.cities):
        steps["Reduce replicas:"] = f"scale {name} --min={replicas}"
        steps["Check quota:"] = "quota"
    elif user_can_act and not paused and status.revisions.undo_target(status.read.body()["spec"]) is not None:
        steps["Roll back:"] = f"rollout undo {name}"
    if any(city.degraded for city in status.cities):
        steps["View instances:"] = f"instances --workload={name}"
    if any(city.trouble and city.trouble.reason in FAILING for city in status.cities) and is_served(run.target.logs):
        steps["Read logs:"] = f"logs {name}"
    return next_steps(run, steps, indent=2, width=18)


def _document(status: _Status) -> Json:
    workload = status.workload
    spec = workload.spec.template.spec
    health = workload_health(workload, status.deployments)
    return {
        "name": workload.name,
        "project": status.project,
        "image": image(spec, ""),
        "instanceType": instance_type(spec),
        "revision": status.revisions.current or None,
        "updated": updated_at(status.read, status.revisions),
        "health": str(health),
        "healthState": health.state,
        "paused": is_paused(workload),
        "deleting": workload.metadata.deleting,
        "observed": observed(workload),
        "why": status.answer.sentence,
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
            for city in status.cities
        ],
    }
