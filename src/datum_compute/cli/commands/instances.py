"""Instances: a list of them, or the details of one. Entry point: `command`."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import click
from msgspec import Struct

from datum_compute.answers.cities import affordable_replicas, cities
from datum_compute.answers.health import InstanceHealth, State, instance_health
from datum_compute.answers.owners import Owner, Owners, has_owner_labels
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED, READY, Assignments, Instance
from datum_compute.api.reasons import explain
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.flags import INSTANCE_NAME, WORKLOAD_NAME, Choice, option, verb, watch_option
from datum_compute.cli.shell.run import Run
from datum_compute.cli.shell.tree import listing_verbs
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.fragments import (
    condition_table,
    event_table,
    fact_lines,
    labelled_line,
    labelled_prose,
    next_steps,
)
from datum_compute.cli.show.lines import Column, Item, Line, Piece, Table, bad, busy, good, table
from datum_compute.cli.show.log_entries import short_name
from datum_compute.cli.show.specs import Fact, instance_type, is_machine, runtime_facts
from datum_compute.cli.show.views import Page, View, Watch, object_view
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.local import Port, find_overview
from datum_compute.cli.talk.log_api import FAILING, is_served
from datum_compute.cli.talk.project import of_workload
from datum_compute.cli.workload.cities import not_offered_hints
from datum_compute.kube import conditions
from datum_compute.kube.kinds import EVENT, Event
from datum_compute.kube.meta import Condition

_EPOCH = datetime(1971, 1, 1, tzinfo=UTC)
_TONES: dict[str, Callable[[str], Piece]] = {"Available": good, "Pending": busy, "Failed": bad}


class Entry(Struct, frozen=True):
    """An instance with its owner and its state."""

    instance: Instance
    owner: Owner
    health: InstanceHealth

    @property
    def group(self) -> str:
        """One of the three states that instances are counted by."""
        if self.health.state is State.AVAILABLE:
            return "Available"
        return "Failed" if self.health.state.failed else "Pending"


class Filter(Struct, frozen=True):
    """Which instances to list."""

    names: tuple[str, ...]
    workload: str | None
    city: str | None
    status: str | None
    watch: bool

    def matches(self, entry: Entry) -> bool:
        belongs = not self.names or self.workload in (None, entry.owner.workload)
        in_city = self.city is None or entry.owner.city.lower() == self.city.lower()
        return belongs and in_city and (self.status is None or entry.group.lower() == self.status)

    def __str__(self) -> str:
        flags = {"workload": self.workload, "city": self.city, "status": self.status}
        return ", ".join(f"{name}={value}" for name, value in flags.items() if value is not None)


@verb("list", needs=ENTITLED_PROJECT, outputs=("table", "wide", "json", "yaml", "name"), flags=Filter)
@click.argument("names", type=INSTANCE_NAME, nargs=-1, metavar="[NAME]...")
@option("--workload", type=WORKLOAD_NAME, metavar="NAME", help="Only those of this workload.")
@option("--city", metavar="CITY", help="Only those in this city.")
@option("--status", type=Choice("available", "pending", "failed"), help="Only those in this state.")
@watch_option
def list_(run: Run, flags: Filter) -> View | Watch:
    """List instances with their addresses and what they wait for, all of them or those that are named."""
    if not flags.watch:
        return _list(run, flags)
    return Watch([run.project.watch_call(INSTANCE)], lambda: _list(run, flags))


def _list(run: Run, filter_: Filter) -> View:
    selector = ""
    if filter_.workload is not None:
        selector = of_workload(run.project.get(WORKLOAD, filter_.workload).object)
    listing = run.project.get_all(INSTANCE, filter_.names) if filter_.names else run.project.list(INSTANCE, selector)
    entries = {entry.instance.name: entry for entry in _entries(run, listing.items)}

    def order(instance: Instance) -> tuple[str, str, str]:
        owner = entries[instance.name].owner
        return owner.workload, owner.city, instance.name

    listing = listing.select(lambda instance: filter_.matches(entries[instance.name]), order)
    rows = [entries[instance.name] for instance in listing.items]

    def page(now: datetime) -> Page:
        if not rows:
            criteria = f" with {filter_}" if str(filter_) else ""
            sentence = f"No instances found in project {run.project.name}{criteria}."
            return Page([sentence], not_offered_hints(run, filter_.city))
        return Page([_table(rows, now, wide=run.wide)], footer=["", _footer(rows)])

    return View(page, listing.document(filter_.names), listing.records)


@verb("describe", needs=ENTITLED_PROJECT, outputs=("table", "json", "yaml", "name"))
@click.argument("instance", type=INSTANCE_NAME, metavar="INSTANCE")
def describe(run: Run, instance: str) -> View:
    """Show one instance: its workload, what it runs, its conditions and events."""
    read = run.project.get(INSTANCE, instance)

    def page(now: datetime) -> Page:
        (entry,) = _entries(run, [read.object])
        events = run.project.list_served(EVENT, fields=f"involvedObject.uid={read.object.metadata.uid}")
        overview = find_overview(run)
        ports = overview.ports_of(run.project.name, instance) if overview is not None else ()
        return Page(_details(entry, ports, events.items if events else [], now), notes=_next_steps(run, entry))

    return object_view(INSTANCE, read, page)


def _entries(run: Run, instances: Sequence[Instance]) -> list[Entry]:
    """The deployments are read only if the labels of an instance do not tell its owner."""
    is_known = all(has_owner_labels(instance) for instance in instances)
    owners = Owners(() if is_known else run.project.list(WORKLOAD_DEPLOYMENT).items)
    return [Entry(instance, owners.of(instance), instance_health(instance)) for instance in instances]


def _table(entries: Sequence[Entry], now: datetime, *, wide: bool) -> Table:
    """On a narrow terminal, columns that repeat others are left out first, and external addresses that nobody has."""
    has_external = any(first_addresses(entry.instance).external_ip for entry in entries)
    columns = [
        Column("NAME"),
        Column("WORKLOAD", left_out=4),
        Column("CITY"),
        Column("EXTERNAL IP", left_out=2 if has_external else 6),
        Column("INTERNAL IP", left_out=3),
        Column("TYPE", left_out=5),
        Column("AGE", left_out=1),
        Column("STATUS"),
    ]
    if wide:
        columns = [*(Column(column.title) for column in columns), Column("INSTANCE TYPE")]
    return table(columns, [_row(entry, now, wide=wide) for entry in entries])


def _row(entry: Entry, now: datetime, *, wide: bool) -> tuple[Piece, ...]:
    instance = entry.instance
    addresses = first_addresses(instance)
    return (
        instance.name,
        entry.owner.workload,
        entry.owner.city,
        addresses.external_ip,
        addresses.network_ip,
        "vm" if is_machine(instance.spec) else "sandbox",
        age(instance.metadata.creation_timestamp, now),
        _TONES[entry.group](entry.health.status),
        *((instance_type(instance.spec),) if wide else ()),
    )


def first_addresses(instance: Instance) -> Assignments:
    """The addresses of the first interface."""
    interfaces = instance.status.network_interfaces if instance.status else ()
    return interfaces[0].assignments if interfaces else Assignments()


def _footer(entries: Sequence[Entry]) -> str:
    groups = [entry.group for entry in entries]
    summary = ", ".join(f"{groups.count(name)} {name}" for name in _TONES)
    return f"{len(entries)} instance{'' if len(entries) == 1 else 's'} — {summary}"


def _details(entry: Entry, ports: Sequence[Port], events: Iterable[Event], now: datetime) -> list[Item]:
    instance, health = entry.instance, entry.health
    facts = [*runtime_facts(instance.spec), Fact("Type", (instance_type(instance.spec),))]
    head: dict[str, Piece] = {
        "Instance": instance.name,
        "Workload": entry.owner.workload,
        "Placement": entry.owner.placement,
        "City": entry.owner.city,
        "Age": age(instance.metadata.creation_timestamp, now),
        "Status": _TONES[entry.group](health.line),
    }
    return [
        *(labelled_line(label, value, width=14) for label, value in head.items()),
        *([labelled_prose("", health.message, width=14)] if health.message else []),
        *_explanation(instance, now),
        "",
        "Runtime",
        *fact_lines(facts),
        "",
        labelled_line("Network", _network(first_addresses(instance)), width=14),
        *(
            labelled_line("" if index else "Ports", f"{port.port}/{port.protocol} at {port.address}", width=14)
            for index, port in enumerate(ports)
        ),
        *condition_table(instance.status.conditions if instance.status else (), now),
        *event_table(events, now),
    ]


def _explanation(instance: Instance, now: datetime) -> list[Item]:
    """What the reason of an instance that is not ready means, who can act on it, and how long it has been there."""
    condition = _blocker(instance)
    if condition is None:
        return []
    since = condition.last_transition_time
    is_plausible = _EPOCH < since <= now  # a default is dated 1970, and another machine's clock may be ahead
    explained = explain(condition.reason, now - since if is_plausible else None)
    texts = {"What this means": explained.sentence, "What to do": explained.line}
    lines: list[Item] = [labelled_prose(label, text, width=18) for label, text in texts.items() if text]
    if is_plausible:
        lines.append(labelled_line("In this state for", age(since, now), width=18))
    return ["", *lines] if lines else []


def _blocker(instance: Instance) -> Condition | None:
    """The condition that explains why it is not ready, following a reason that only points to another condition."""
    found = instance.status.conditions if instance.status else ()
    ready, quota = conditions.find(found, READY), conditions.find(found, QUOTA_GRANTED)
    if ready is not None and (ready.status == "True" or not explain(ready.reason).is_pointer):
        return ready if ready.status != "True" else None
    return quota if quota is not None and quota.status != "True" else ready


def _network(addresses: Assignments) -> str:
    if not addresses.external_ip and not addresses.network_ip:
        return "Waiting for addresses (not yet scheduled)"
    return f"External: {addresses.external_ip or 'not assigned'}  Internal: {addresses.network_ip or 'not assigned'}"


def _next_steps(run: Run, entry: Entry) -> list[Line]:
    condition = entry.health.condition
    if condition is not None and condition.reason in FAILING and is_served(run.target.logs):
        workload = entry.owner.workload
        step = f"logs {workload} --instance={short_name(workload, entry.instance.name)}"
        return next_steps(run, {"Read its logs:": step}, width=18)
    if entry.health.state is not State.QUOTA_EXCEEDED:
        return []
    steps = {"Check quota:": "quota"}
    if replicas := _affordable_replicas(run, entry.owner.workload):
        steps = {"Reduce replicas:": f"scale {entry.owner.workload} --min={replicas}"} | steps
    return next_steps(run, steps, width=18)


def _affordable_replicas(run: Run, name: str) -> int:
    """The number that `status` suggests; 0 if the workload is gone or no longer short of quota."""
    workload = run.project.find(WORKLOAD, name)
    if workload is None:
        return 0
    selector = of_workload(workload.object)
    deployments = run.project.list(WORKLOAD_DEPLOYMENT, selector).items
    return affordable_replicas(cities(workload.object, deployments, run.project.list(INSTANCE, selector).items))


command = listing_verbs("instances", "List or describe instances.", list_, describe)
