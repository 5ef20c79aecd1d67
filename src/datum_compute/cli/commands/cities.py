"""The cities that are offered to the project. Entry point: `command`."""

from collections.abc import Iterable

from msgspec import Struct

from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING, LocationBinding
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.entitlement import active_entitlement
from datum_compute.cli.flags import command as verb
from datum_compute.cli.lines import Column, Piece, Table, bad, good
from datum_compute.cli.run import Run, project
from datum_compute.cli.tree import Verbs
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


def cities(bindings: Iterable[LocationBinding], workloads: Iterable[Workload]) -> list[City]:
    """Grouped by code: available when one location is, and one that says nothing counts as available."""
    by_code: dict[str, list[LocationBinding]] = {}
    for binding in bindings:
        if code := binding.spec.topology.get(TOPOLOGY_CITY):
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


def _region(binding: LocationBinding) -> str:
    """Topologies name it differently; the key ends the same."""
    return next((value for key, value in sorted(binding.spec.topology.items()) if key.endswith("/region")), "")


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, names)))


def _row(city: City) -> tuple[Piece, ...]:
    available = good("yes") if city.available else bad("no")
    return (city.city, city.name, city.region, available, str(city.workloads))


command = Verbs("cities", "List the cities the project may use.", [list_], bare="list", aliases={"ls": "list"})
