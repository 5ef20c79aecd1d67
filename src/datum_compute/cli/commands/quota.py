"""The quota of the project and its use. Entry point: `command`."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from datum_compute.answers.owners import Owners, has_owner_labels
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
from datum_compute.cli.shell.flags import option, verb
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.lines import Column, Item, Piece, bad, hints, table
from datum_compute.cli.show.specs import instance_type
from datum_compute.cli.show.views import Page, View
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.kube import conditions

_BAR = 20


class ResourceType(Struct, frozen=True):
    """The name and unit of a resource type for people, and how many of the platform's units make one of theirs."""

    name: str
    unit: str
    factor: int = 1


_RESOURCE_TYPES = {
    WORKLOADS: ResourceType("Workloads", "workloads"),
    INSTANCES: ResourceType("Instances", "instances"),
    VCPUS: ResourceType("vCPUs", "vCPUs", 1000),
    MEMORY: ResourceType("Memory", "MiB"),
}


class Resource(Struct, frozen=True):
    """Limit and use of one resource type, in the unit that people use."""

    resource: str
    unit: str
    limit: float
    used: float
    available: float


class Use(Struct, frozen=True, rename="camel"):
    """Instances of one type in one city: how many have quota, and how many wait for it."""

    city: str
    type: str
    in_use: int
    waiting: int
    at_limit: bool
    message: str = ""


@verb("quota", needs=ENTITLED_PROJECT, outputs=("table", "json", "yaml"))
@option("--city", metavar="CITY", help="Show the instances of this city too.")
@option("--constrained", is_flag=True, help="Only what is used up.")
@option("--breakdown", is_flag=True, help="Show instances by city and type too.")
def command(run: Run, city: str | None, constrained: bool, breakdown: bool) -> View:
    """Show the quota of the project and its use.

    Quota belongs to the project, not to a city: the limits are shared by all cities. Cities are listed with --city or
    --breakdown, and whenever an instance waits for quota.
    """
    buckets = _buckets(run)
    found = resources(buckets, _units(run, buckets))
    uses = [use for use in _uses(run) if city is None or use.city.lower() == city.lower()]
    if not (city is not None or breakdown or any(use.waiting for use in uses)):
        uses = []
    if constrained:
        found = [resource for resource in found if resource.available <= 0]
        uses = [use for use in uses if use.at_limit]
    if not buckets:
        advice = "Ask Datum to set up compute quota; nothing in your workload can change this."
        page = Page(["No quota configured for this project."], hints(advice))
    elif constrained and not found and not uses:
        page = Page(["No resource types are at their limit."])
    else:
        page = Page(_content(run.project.name, found, uses))
    return View(lambda _now: page, {"project": run.project.name, "resources": found, "cities": uses})


def resources(buckets: Iterable[AllowanceBucket], units: Mapping[str, str]) -> list[Resource]:
    """Well-known resource types first, then others by name. Buckets without a status are left out."""
    order = {type_: index for index, type_ in enumerate(_RESOURCE_TYPES)}

    def rank(bucket: AllowanceBucket) -> tuple[int, str]:
        return order.get(bucket.spec.resource_type, len(order)), bucket.spec.resource_type

    return [_resource(bucket, units) for bucket in sorted(buckets, key=rank) if bucket.status is not None]


def _resource(bucket: AllowanceBucket, units: Mapping[str, str]) -> Resource:
    type_, status = bucket.spec.resource_type, bucket.status
    assert status is not None
    short = type_.removeprefix(f"{GROUP}/")
    resource_type = _RESOURCE_TYPES.get(type_, ResourceType(short, units.get(type_, short)))
    amounts = (amount / resource_type.factor for amount in (status.limit, status.allocated, status.available))
    return Resource(resource_type.name, resource_type.unit, *amounts)


def uses(instances: Iterable[Instance], owners: Owners) -> list[Use]:
    """The use of quota, sorted by city and type."""
    groups: dict[tuple[str, str], list[Instance]] = {}
    for instance in instances:
        groups.setdefault((owners.of(instance).city, instance_type(instance.spec)), []).append(instance)
    return [_use(city, type_, group) for (city, type_), group in sorted(groups.items())]


def _use(city: str, type_: str, instances: Sequence[Instance]) -> Use:
    found = [
        condition
        for instance in instances
        if instance.status and (condition := conditions.find(instance.status.conditions, QUOTA_GRANTED))
    ]
    granted = sum(condition.status == "True" for condition in found)
    exceeded = [
        condition for condition in found if (condition.status, condition.reason) == ("False", reasons.QUOTA_EXCEEDED)
    ]
    message = exceeded[0].message if exceeded else ""
    return Use(city, type_, granted, len(instances) - granted, bool(exceeded), message)


def _buckets(run: Run) -> list[AllowanceBucket]:
    listing = run.project.list_served(ALLOWANCE_BUCKET, f"{CONSUMER_KIND}=Project", QUOTA_NAMESPACE)
    return [bucket for bucket in listing.items if bucket.spec.resource_type.startswith(GROUP)] if listing else []


def _units(run: Run, buckets: Iterable[AllowanceBucket]) -> dict[str, str]:
    """Units of resource types that this program does not know, if the platform has them registered."""
    if all(bucket.spec.resource_type in _RESOURCE_TYPES for bucket in buckets) or run.target.platform is None:
        return {}
    try:
        registrations = run.target.platform.list(RESOURCE_REGISTRATION).items
    except Failure:
        return {}
    specs = [registration.spec for registration in registrations]
    return {spec.resource_type: spec.display_unit for spec in specs if spec.display_unit != "1"}


def _uses(run: Run) -> list[Use]:
    instances = run.project.list(INSTANCE).items
    is_known = all(has_owner_labels(instance) for instance in instances)
    return uses(instances, Owners(() if is_known else run.project.list(WORKLOAD_DEPLOYMENT).items))


def _content(project: str, resources: Sequence[Resource], uses: Sequence[Use]) -> list[Item]:
    content: list[Item] = [f"Quota for project {project}"]
    if resources:
        columns = ("RESOURCE", "UNIT", "LIMIT", "USED", "AVAILABLE", Column("USAGE", left_out=1))
        content += ["", table(columns, map(_row, resources))]
    if uses:
        content += ["", table(("CITY", Column("TYPE", shrinks=True), "IN USE", "WAITING"), map(_use_row, uses))]
        content += [f"  {city}: {message}" for city, message in _messages(uses).items()]
    return content


def _row(resource: Resource) -> tuple[Piece, ...]:
    amounts = map(_amount, (resource.limit, resource.used, resource.available))
    usage = bar(resource.used, resource.limit)
    return (resource.resource, resource.unit, *amounts, bad(usage) if resource.available <= 0 else usage)


def _amount(value: float) -> str:
    """Without an exponent, and with decimals only where there are any."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


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
    """The first message of each city."""
    messages: dict[str, str] = {}
    for use in uses:
        if use.message:
            messages.setdefault(use.city, use.message)
    return messages
