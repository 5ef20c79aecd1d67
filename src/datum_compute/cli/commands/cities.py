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
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.lines import NONE, Column, Line, Piece, Table, bad, good, line
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.kube import conditions


class City(Struct, frozen=True):
    city: str
    name: str
    region: str
    available: bool
    workloads: int


@verb("list", needs=[project, active_entitlement], outputs=("table", "json", "yaml", "name"))
def list_(run: Run) -> None:
    """List the cities the project may use, and how many workloads use each.

    A city that a workload uses and that is no longer offered is listed too, as not available.
    """
    bindings = run.project.list_served(LOCATION_BINDING)
    found = cities(bindings.items if bindings else [], run.project.list(WORKLOAD).items)
    match run.output:
        case "json" | "yaml":
            run.terminal.data(found, run.output)
        case "name":
            for one in found:
                run.terminal.name(f"city/{one.city}")
        case _ if not found:
            run.terminal.show(f"No cities are offered to project {run.project.name}.")
        case _:
            titles = ("CITY", "NAME", "REGION", "AVAILABLE", "WORKLOADS")
            run.terminal.show(Table(tuple(Column(title) for title in titles), [_row(one) for one in found]))


@verb("describe", needs=[project, active_entitlement], outputs=("table", "json", "yaml", "name"))
@click.argument("city", metavar="CITY")
def describe(run: Run, city: str) -> None:
    """Show one city: its locations, and the workloads that have a placement there."""
    bindings = run.project.list_served(LOCATION_BINDING)
    there = [one for one in bindings.items if _code(one).lower() == city.lower()] if bindings else []
    users = [one for one in run.project.list(WORKLOAD).items if _in_city(one, city)]
    found = next((one for one in cities(there, users) if one.city.lower() == city.lower()), None)
    if found is None:
        raise Failure(
            f'city "{city}" is not offered to project {run.project.name}, and no workload uses it',
            Exit.NOT_FOUND,
            next_command="cities",
        )
    match run.output:
        case "json" | "yaml":
            run.terminal.data(_document(found, there, users), run.output)
        case "name":
            run.terminal.name(f"city/{found.city}")
        case _:
            deployments = [
                one for one in run.project.list(WORKLOAD_DEPLOYMENT).items if one.spec.city_code == found.city
            ]
            run.terminal.show(*_details(found, there, users, deployments))


def cities(bindings: Iterable[LocationBinding], workloads: Iterable[Workload]) -> list[City]:
    """Grouped by code: available when one location is, and one that says nothing counts as available."""
    by_code: dict[str, list[LocationBinding]] = {}
    for binding in bindings:
        if code := _code(binding):
            by_code.setdefault(code, []).append(binding)
    used: dict[str, int] = {}
    for workload in workloads:
        for code in {code for placement in workload.spec.placements for code in placement.city_codes}:
            used[code] = used.get(code, 0) + 1
    return [
        City(
            code,
            _joined(binding.spec.display_name for binding in by_code.get(code, ())),
            _joined(_region(binding) for binding in by_code.get(code, ())),
            any(_available(binding) for binding in by_code.get(code, ())),
            used.get(code, 0),
        )
        for code in sorted({*by_code, *used})
    ]


def _available(binding: LocationBinding) -> bool:
    return not conditions.is_false(binding.status.conditions if binding.status else (), "Available")


def _code(binding: LocationBinding) -> str:
    return binding.spec.topology.get(TOPOLOGY_CITY, "")


def _in_city(workload: Workload, city: str) -> bool:
    codes = {code.lower() for placement in workload.spec.placements for code in placement.city_codes}
    return city.lower() in codes


def _region(binding: LocationBinding) -> str:
    """Topologies name it differently; the key ends the same."""
    return next((value for key, value in sorted(binding.spec.topology.items()) if key.endswith("/region")), "")


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, names)))


def _row(city: City) -> tuple[Piece, ...]:
    return (city.city, city.name, city.region, _yes(city.available), str(city.workloads))


def _document(city: City, bindings: Iterable[LocationBinding], workloads: Iterable[Workload]) -> dict[str, object]:
    return {
        "city": city.city,
        "name": city.name,
        "region": city.region,
        "available": city.available,
        "locations": [
            {"name": one.name, "displayName": one.spec.display_name, "available": _available(one), "message": _why(one)}
            for one in bindings
        ],
        "workloads": sorted(one.name for one in workloads),
    }


def _details(
    city: City,
    bindings: Sequence[LocationBinding],
    workloads: Sequence[Workload],
    deployments: Iterable[WorkloadDeployment],
) -> list[str | Line | Table]:
    view: list[str | Line | Table] = [
        line(f"{'City':<12} {city.city}"),
        line(f"{'Name':<12} {city.name or NONE}"),
        line(f"{'Region':<12} {city.region or NONE}"),
        line(f"{'Available':<12} ", *(_yes(city.available), "" if bindings else "  (no longer offered)")),
    ]
    if bindings:
        columns = (Column("LOCATION"), Column("NAME"), Column("AVAILABLE"), Column("MESSAGE", wraps=True))
        rows = [(one.name, one.spec.display_name, _yes(_available(one)), _why(one)) for one in bindings]
        view += ["", Table(columns, rows, indent=2)]
    if not workloads:
        return [*view, "", "  No workload uses it."]
    counted: dict[str, Counts] = {}
    for one in deployments:
        name = one.spec.workload_ref.name
        counted[name] = counted.get(name, Counts()) + counts(one)
    ready = {name: f"{numbers.ready}/{numbers.desired}" for name, numbers in counted.items()}
    rows_of_use = [(one.name, ready.get(one.name, "")) for one in sorted(workloads, key=lambda one: one.name)]
    return [*view, "", Table((Column("WORKLOAD"), Column("READY")), rows_of_use, indent=2)]


def _why(binding: LocationBinding) -> str:
    """What the platform says of a location that is not available."""
    blocked = block(binding.status.conditions, "Available") if binding.status else None
    return str(blocked) if blocked is not None and not _available(binding) else ""


def _yes(available: bool) -> Piece:
    return good("yes") if available else bad("no")


command = Verbs(
    "cities",
    "List the cities the project may use.",
    [list_, describe],
    bare="list",
    aliases={"ls": "list", "get": "describe"},
)
