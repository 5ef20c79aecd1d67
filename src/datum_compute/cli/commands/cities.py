"""The cities that are offered to the project. Entry point: `command`."""

from collections.abc import Iterable, Sequence

import click
from msgspec import Struct

from datum_compute.answers.health import block
from datum_compute.answers.places import Counts, counts
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING, LocationBinding
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import verb
from datum_compute.cli.shell.run import Run
from datum_compute.cli.shell.tree import listing_verbs
from datum_compute.cli.show.fragments import labelled_line
from datum_compute.cli.show.lines import NONE, Column, Item, Piece, bad, good, line, table
from datum_compute.cli.show.views import Page, View
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.kube import conditions
from datum_compute.kube.meta import Json

_OUTPUTS = ("table", "json", "yaml", "name")


class City(Struct, frozen=True):
    city: str
    name: str
    region: str
    available: bool
    workloads: int


@verb("list", needs=ENTITLED_PROJECT, outputs=_OUTPUTS)
def list_(run: Run) -> View:
    """List the cities the project may use, and how many workloads use each.

    A city that a workload uses and that is no longer offered is listed too, as not available.
    """
    found = cities(_bindings(run), run.project.list(WORKLOAD).items)
    rows = [(city.city, city.name, city.region, _yes_or_no(city.available), str(city.workloads)) for city in found]
    content: Item = f"No cities are offered to project {run.project.name}."
    if found:
        content = table(("CITY", "NAME", "REGION", "AVAILABLE", "WORKLOADS"), rows)
    return View(lambda _now: Page([content]), found, {f"city/{city.city}": city for city in found})


@verb("describe", needs=ENTITLED_PROJECT, outputs=_OUTPUTS)
@click.argument("city", metavar="CITY")
def describe(run: Run, city: str) -> View:
    """Show one city: its locations, and the workloads that have a placement there."""
    bindings = [binding for binding in _bindings(run) if _code(binding).lower() == city.lower()]
    workloads = [workload for workload in run.project.list(WORKLOAD).items if _is_in_city(workload, city)]
    found = next((entry for entry in cities(bindings, workloads) if entry.city.lower() == city.lower()), None)
    if found is None:
        raise Failure(
            f'city "{city}" is not offered to project {run.project.name}, and no workload uses it',
            Exit.NOT_FOUND,
            next_command="cities",
        )

    def page(_now: object) -> Page:
        deployments = run.project.list(WORKLOAD_DEPLOYMENT).items
        in_city = [deployment for deployment in deployments if deployment.spec.city_code == found.city]
        return Page(_details(found, bindings, workloads, in_city))

    document = _document(found, bindings, workloads)
    return View(page, document, {f"city/{found.city}": document})


def cities(bindings: Iterable[LocationBinding], workloads: Iterable[Workload]) -> list[City]:
    """Cities that are offered or used, by code. A city is available when any of its locations is."""
    by_code: dict[str, list[LocationBinding]] = {}
    for binding in bindings:
        if code := _code(binding):
            by_code.setdefault(code, []).append(binding)
    users: dict[str, int] = {}
    for workload in workloads:
        for code in {code for placement in workload.spec.placements for code in placement.city_codes}:
            users[code] = users.get(code, 0) + 1
    return [
        City(
            code,
            _joined(binding.spec.display_name for binding in by_code.get(code, ())),
            _joined(_region(binding) for binding in by_code.get(code, ())),
            any(_is_available(binding) for binding in by_code.get(code, ())),
            users.get(code, 0),
        )
        for code in sorted({*by_code, *users})
    ]


def _bindings(run: Run) -> Sequence[LocationBinding]:
    listing = run.project.list_served(LOCATION_BINDING)
    return listing.items if listing else ()


def _is_available(binding: LocationBinding) -> bool:
    """A location that reports nothing counts as available."""
    return not conditions.is_false(binding.status.conditions if binding.status else (), "Available")


def _code(binding: LocationBinding) -> str:
    return binding.spec.topology.get(TOPOLOGY_CITY, "")


def _is_in_city(workload: Workload, city: str) -> bool:
    codes = {code.lower() for placement in workload.spec.placements for code in placement.city_codes}
    return city.lower() in codes


def _region(binding: LocationBinding) -> str:
    """The region, whose key has different prefixes in different topologies."""
    return next((value for key, value in sorted(binding.spec.topology.items()) if key.endswith("/region")), "")


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, names)))


def _document(city: City, bindings: Iterable[LocationBinding], workloads: Iterable[Workload]) -> Json:
    return {
        "city": city.city,
        "name": city.name,
        "region": city.region,
        "available": city.available,
        "locations": [
            {
                "name": binding.name,
                "displayName": binding.spec.display_name,
                "available": _is_available(binding),
                "message": _problem(binding),
            }
            for binding in bindings
        ],
        "workloads": sorted(workload.name for workload in workloads),
    }


def _details(
    city: City,
    bindings: Sequence[LocationBinding],
    workloads: Sequence[Workload],
    deployments: Iterable[WorkloadDeployment],
) -> list[Item]:
    content: list[Item] = [
        labelled_line("City", city.city),
        labelled_line("Name", city.name or NONE),
        labelled_line("Region", city.region or NONE),
        line(f"{'Available':<12} ", _yes_or_no(city.available), "" if bindings else "  (no longer offered)"),
    ]
    if bindings:
        columns = ("LOCATION", "NAME", "AVAILABLE", Column("MESSAGE", wraps=True))
        rows = [
            (binding.name, binding.spec.display_name, _yes_or_no(_is_available(binding)), _problem(binding))
            for binding in bindings
        ]
        content += ["", table(columns, rows, indent=2)]
    if not workloads:
        return [*content, "", "  No workload uses it."]
    totals: dict[str, Counts] = {}
    for deployment in deployments:
        name = deployment.spec.workload_ref.name
        totals[name] = totals.get(name, Counts()) + counts(deployment)
    ready = {name: f"{total.ready}/{total.desired}" for name, total in totals.items()}
    users = [(name, ready.get(name, "")) for name in sorted(workload.name for workload in workloads)]
    return [*content, "", table(("WORKLOAD", "READY"), users, indent=2)]


def _problem(binding: LocationBinding) -> str:
    """The reason that the platform reports for a location that is not available."""
    blocked = block(binding.status.conditions, "Available") if binding.status else None
    return str(blocked) if blocked is not None and not _is_available(binding) else ""


def _yes_or_no(available: bool) -> Piece:
    return good("yes") if available else bad("no")


command = listing_verbs("cities", "List the cities the project may use.", list_, describe)
