"""What happened to a workload, on every plane that can be read. Entry point: `command`."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.delivery import serving
from datum_compute.answers.seen import Hub, items
from datum_compute.answers.timeline import Occurrence, complete_since, of_conditions, of_events, timeline
from datum_compute.answers.why import views
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import FEDERATION_NAMESPACE
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.flags import Duration, option, verb, watch_option, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.lines import Column, Piece, hints, table
from datum_compute.cli.show.views import Page, View, Watch
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.federations import find_federation
from datum_compute.cli.talk.planes import Plane
from datum_compute.cli.talk.project import NAMESPACE, of_workload
from datum_compute.cli.talk.sighting import base_of
from datum_compute.cli.workload import history
from datum_compute.cli.workload.revisions import Entry
from datum_compute.kube.kinds import EVENT
from datum_compute.kube.meta import timestamp


class Flags(Struct, frozen=True):
    workload: str
    since: float
    city: str
    watch: bool
    federation_kubeconfig: str


@verb("events", needs=ENTITLED_PROJECT, outputs=("table", "json", "yaml"), flags=Flags)
@workload_argument
@option(
    "--since", type=Duration(), default="1h", metavar="DURATION", help="Only what happened so recently; 1h by default."
)
@option("--city", default="", metavar="CITY", help="Only this city, and what concerns all of them.")
@option(
    "--federation-kubeconfig", default="", metavar="FILE", help="Kubeconfig of the hub and the cells, to read more."
)
@watch_option
def command(run: Run, flags: Flags) -> View | Watch:
    """Show what happened to a workload, in order, in all its cities.

    Events, changes of conditions and revisions of every server that can be read are one list. What repeats within a
    minute is one row, and so is what a site reported and the project repeats. Servers keep events for about an hour.
    """
    if not flags.watch:
        return _view(run, flags)
    return Watch([run.project.watch_call(EVENT)], lambda: _view(run, flags))


def _view(run: Run, flags: Flags) -> View:
    now = run.clock.now()
    read = run.project.get(WORKLOAD, flags.workload)
    selector = of_workload(read.object)
    plane = Plane(run.project.transport)
    deployments = run.project.list(WORKLOAD_DEPLOYMENT, selector).items
    instances = items(plane.list(INSTANCE, NAMESPACE, selector))
    cities = {deployment.name: deployment.spec.city_code for deployment in deployments}
    found = [
        *of_events(items(plane.list(EVENT, NAMESPACE)), "project", flags.workload, cities),
        *of_conditions(deployments, instances, cities),
        *_revisions(flags.workload, history.read(run.project, read.object).entries),
    ]
    federation = find_federation(run, flags.federation_kubeconfig)
    if federation is not None:
        seen = base_of(run.project, read, deployments, instances)
        homes = {deployment.metadata.annotations.get(FEDERATION_NAMESPACE, "") for deployment in deployments}
        seen = replace(seen, hub=Hub(clusters=federation.hub.list(CLUSTER)))
        for home in sorted(filter(None, homes)):
            found += of_events(items(federation.hub.list(EVENT, home)), "hub", flags.workload, cities)
            for view in views(seen, now):
                if (cluster := serving(view)) is not None:
                    events = items(federation.cell(cluster.name, view.place.city).list(EVENT, home))
                    found += of_events(events, "cell", flags.workload, cities)
        federation.close()
    rows = timeline(found, since=now - timedelta(seconds=flags.since), city=flags.city)
    complete = complete_since(now, read.object.metadata.creation_timestamp)
    document = {"completeSince": timestamp(complete), "events": [_document(row) for row in rows]}
    return View(lambda now: _page(rows, complete, now), document)


def _revisions(name: str, entries: Iterable[Entry]) -> Iterable[Occurrence]:
    for entry in entries:
        if entry.time is not None:
            text = f"#{entry.rev} by {entry.actor}: {entry.changes}"
            yield Occurrence(entry.time, "", name, "project", "Revision", text)


def _page(rows: Iterable[Occurrence], complete: datetime, now: datetime) -> Page:
    rows = list(rows)
    since = f"Complete for the last {age(complete, now)}."
    if not rows:
        return Page(["Nothing happened.", *hints(since)])
    cells: list[tuple[Piece, ...]] = [(age(row.time, now), row.city, row.subject, _text(row)) for row in rows]
    return Page([table(("WHEN", "CITY", "WHO", Column("WHAT", wraps=True)), cells)], hints("", since))


def _text(row: Occurrence) -> str:
    times = f" ×{row.count}" if row.count > 1 else ""
    return f"{row.reason}{times}: {row.text}" if row.text else f"{row.reason}{times}"


def _document(row: Occurrence) -> dict[str, object]:
    return {
        "time": timestamp(row.time),
        "city": row.city or None,
        "object": row.subject,
        "plane": row.plane,
        "reason": row.reason,
        "text": row.text,
        "count": row.count,
    }
