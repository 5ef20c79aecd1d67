"""What the project may use, and what it uses. Entry point: `command`."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from datum_compute.answers.owners import Owners, labelled
from datum_compute.api import GROUP, reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED, Instance
from datum_compute.api.quota import (
    ALLOWANCE_BUCKET,
    CONSUMER_KIND,
    INSTANCES,
    MEMORY,
    QUOTA_NAMESPACE,
    RESOURCE_REGISTRATION,
    VCPUS,
    WORKLOADS,
    AllowanceBucket,
)
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.flags import option
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.lines import Column, Line, Piece, Table, bad
from datum_compute.cli.show.specs import instance_type
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.kube import conditions

_BAR = 20


class Known(Struct, frozen=True):
    """How a resource type is called, and how many of the platform's units make one of the unit shown."""

    name: str
    unit: str
    factor: int = 1


_KNOWN = {
    WORKLOADS: Known("Workloads", "workloads"),
    INSTANCES: Known("Instances", "instances"),
    VCPUS: Known("vCPUs", "vCPUs", 1000),
    MEMORY: Known("Memory", "MiB"),
}


class Resource(Struct, frozen=True):
    """One resource type as people count it."""

    resource: str
    unit: str
    limit: float
    used: float
    available: float


class Use(Struct, frozen=True, rename="camel"):
    """The instances of one type in one city: those that have quota, and those that wait for it."""

    city: str
    type: str
    in_use: int
    waiting: int
    at_limit: bool
    message: str = ""


@verb("quota", needs=[project, active_entitlement], outputs=("table", "json", "yaml"))
@option("--city", metavar="CITY", help="Show the instances of this city too.")
@option("--constrained", is_flag=True, help="Only what is used up.")
@option("--breakdown", is_flag=True, help="Show instances by city and type too.")
def command(run: Run, city: str | None, constrained: bool, breakdown: bool) -> None:
    """Show limits and use of the project.

    Quota belongs to the project, not to a city: the limits are shared by all cities. Cities are listed with --city or
    --breakdown, and whenever an instance waits for quota.
    """
    buckets = _buckets(run)
    found = resources(buckets, _units(run, buckets))
    uses = [use for use in _uses(run) if city is None or use.city.lower() == city.lower()]
    if not (city is not None or breakdown or any(use.waiting for use in uses)):
        uses = []
    if constrained:
        found = [one for one in found if one.available <= 0]
        uses = [use for use in uses if use.at_limit]
    if run.output != "table":
        run.terminal.data({"project": run.project.name, "resources": found, "cities": uses}, run.output)
    elif not buckets:
        run.terminal.show("No quota configured for this project.")
        run.terminal.hint("Ask Datum to set up compute quota; nothing in your workload can change this.")
    elif constrained and not found and not uses:
        run.terminal.show("No resource types are at their limit.")
    else:
        run.terminal.show(*_view(run.project.name, found, uses))


def resources(buckets: Iterable[AllowanceBucket], units: Mapping[str, str]) -> list[Resource]:
    """In the order that people think of them, then by name. Buckets without a status have nothing to say yet."""
    order = {type_: index for index, type_ in enumerate(_KNOWN)}
    by_order = sorted(buckets, key=lambda one: (order.get(one.spec.resource_type, len(order)), one.spec.resource_type))
    return [_resource(bucket, units) for bucket in by_order if bucket.status is not None]


def _resource(bucket: AllowanceBucket, units: Mapping[str, str]) -> Resource:
    type_, status = bucket.spec.resource_type, bucket.status
    assert status is not None
    short = type_.removeprefix(f"{GROUP}/")
    known = _KNOWN.get(type_, Known(short, units.get(type_, short)))
    amounts = (status.limit / known.factor, status.allocated / known.factor, status.available / known.factor)
    return Resource(known.name, known.unit, *amounts)


def uses(instances: Iterable[Instance], owners: Owners) -> list[Use]:
    """By city and type, in that order."""
    groups: dict[tuple[str, str], list[Instance]] = {}
    for instance in instances:
        groups.setdefault((owners.of(instance).city, instance_type(instance.spec)), []).append(instance)
    return [_use(city, type_, found) for (city, type_), found in sorted(groups.items())]


def _use(city: str, type_: str, instances: Sequence[Instance]) -> Use:
    found = [conditions.find(one.status.conditions if one.status else (), QUOTA_GRANTED) for one in instances]
    granted = sum(one is not None and one.status == "True" for one in found)
    exceeded = [
        one for one in found if one is not None and (one.status, one.reason) == ("False", reasons.QUOTA_EXCEEDED)
    ]
    message = exceeded[0].message if exceeded else ""
    return Use(city, type_, granted, len(found) - granted, bool(exceeded), message)


def _buckets(run: Run) -> list[AllowanceBucket]:
    listing = run.project.list_served(ALLOWANCE_BUCKET, f"{CONSUMER_KIND}=Project", QUOTA_NAMESPACE)
    return [one for one in listing.items if one.spec.resource_type.startswith(GROUP)] if listing else []


def _units(run: Run, buckets: Iterable[AllowanceBucket]) -> dict[str, str]:
    """Units of resource types that this program does not know, as far as the platform tells them."""
    if all(one.spec.resource_type in _KNOWN for one in buckets) or run.target.platform is None:
        return {}
    try:
        registrations = run.target.platform.list(RESOURCE_REGISTRATION).items
    except Failure:
        return {}
    return {one.spec.resource_type: one.spec.display_unit for one in registrations if one.spec.display_unit != "1"}


def _uses(run: Run) -> list[Use]:
    instances = run.project.list(INSTANCE).items
    known = all(labelled(one) for one in instances)
    return uses(instances, Owners(() if known else run.project.list(WORKLOAD_DEPLOYMENT).items))


def _view(name: str, found: Sequence[Resource], uses: Sequence[Use]) -> list[str | Line | Table]:
    titles = ("RESOURCE", "UNIT", "LIMIT", "USED", "AVAILABLE", "USAGE")
    view: list[str | Line | Table] = [f"Quota for project {name}"]
    if found:
        view += ["", Table(tuple(map(Column, titles)), [_row(one) for one in found])]
    if uses:
        columns = tuple(map(Column, ("CITY", "TYPE", "IN USE", "WAITING")))
        view += ["", Table(columns, [_use_row(use) for use in uses])]
        view += [f"  {city}: {message}" for city, message in _messages(uses).items()]
    return view


def _row(resource: Resource) -> tuple[Piece, ...]:
    amounts = (f"{amount:.6g}" for amount in (resource.limit, resource.used, resource.available))
    usage = bar(resource.used, resource.limit)
    return (resource.resource, resource.unit, *amounts, bad(usage) if resource.available <= 0 else usage)


def bar(used: float, limit: float) -> str:
    if limit <= 0:
        return "N/A"
    share = min(used / limit, 1.0)
    filled = round(share * _BAR)
    return f"[{'#' * filled}{'-' * (_BAR - filled)}] {round(used / limit * 100):>3}%"


def _use_row(use: Use) -> tuple[Piece, ...]:
    city: Piece = bad(f"{use.city} [at limit]") if use.at_limit else use.city
    return (city, use.type, str(use.in_use), str(use.waiting))


def _messages(uses: Iterable[Use]) -> dict[str, str]:
    """Once a city, however many types wait there."""
    messages: dict[str, str] = {}
    for use in uses:
        if use.message:
            messages.setdefault(use.city, use.message)
    return messages
