"""Instances, all of them or one. Entry point: `command`."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import click
from msgspec import Struct

from datum_compute.answers.cities import affordable, cities
from datum_compute.answers.health import Judged, State, judge
from datum_compute.answers.owners import Owner, Owners, labelled
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED, READY, Assignments, Instance
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.reasons import explain
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.flags import INSTANCE_NAME, WORKLOAD_NAME, Choice, option, watch_option
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.fragments import condition_table, event_table, fact_lines
from datum_compute.cli.show.lines import Column, Line, Piece, Table, bad, busy, good, line
from datum_compute.cli.show.specs import Fact, instance_type, is_machine, runtime_facts
from datum_compute.cli.show.views import Look, Page, keep_showing, show
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.kube import conditions
from datum_compute.kube.kinds import EVENT, Event
from datum_compute.kube.meta import Condition

_EPOCH = datetime(1971, 1, 1, tzinfo=UTC)


class Entry(Struct, frozen=True):
    """An instance, whose it is, and how it is."""

    instance: Instance
    owner: Owner
    judged: Judged


@verb("list", needs=[project, active_entitlement], outputs=("table", "wide", "json", "yaml", "name"))
@click.argument("names", type=INSTANCE_NAME, nargs=-1, metavar="[NAME]...")
@option("--workload", type=WORKLOAD_NAME, metavar="NAME", help="Only those of this workload.")
@option("--city", metavar="CITY", help="Only those in this city.")
@option("--status", type=Choice("available", "pending", "failed"), help="Only those in this state.")
@watch_option
def list_(
    run: Run, names: Sequence[str], workload: str | None, city: str | None, status: str | None, watch: bool
) -> None:
    """List instances with their addresses and what they wait for, all of them or those that are named."""
    if not watch:
        show(run, _look(run, names, workload, city, status))
        return
    keep_showing(run, [run.project.watch_call(INSTANCE)], lambda: _look(run, names, workload, city, status))


def _look(run: Run, names: Sequence[str], workload: str | None, city: str | None, status: str | None) -> Look:
    selector = ""
    if workload is not None:
        selector = f"{WORKLOAD_UID}={run.project.get(WORKLOAD, workload).object.metadata.uid}"
    listing = run.project.get_all(INSTANCE, names) if names else run.project.list(INSTANCE, selector)
    owners = _owners(run, listing.items)
    entries = {one.name: Entry(one, owners.of(one), judge(one)) for one in listing.items}

    def wanted(instance: Instance) -> bool:
        entry = entries[instance.name]
        belongs = not names or workload in (None, entry.owner.workload)
        in_city = city is None or entry.owner.city.lower() == city.lower()
        return belongs and in_city and (status is None or _group(entry.judged).lower() == status)

    def order(instance: Instance) -> tuple[str, str, str]:
        owner = entries[instance.name].owner
        return owner.workload, owner.city, instance.name

    kept = listing.kept(wanted, order)
    shown = [entries[instance.name] for instance in kept.items]

    def page(now: datetime) -> Page:
        if not shown:
            return Page([_nothing(run.project.name, workload, city, status)])
        return Page([_table(shown, now, wide=run.output == "wide")], footer=["", _footer(shown)])

    return Look(page, kept.document(names), {f"instance/{one.object.name}": one.json for one in kept.found})


@verb("describe", needs=[project, active_entitlement], outputs=("table", "json", "yaml", "name"))
@click.argument("instance", type=INSTANCE_NAME, metavar="INSTANCE")
def describe(run: Run, instance: str) -> None:
    """Show one instance: whose it is, what it runs, its conditions, and what happened to it."""
    seen = run.project.get(INSTANCE, instance)
    match run.output:
        case "json" | "yaml":
            run.terminal.data(seen.json, run.output)
        case "name":
            run.terminal.name(f"instance/{seen.object.name}")
        case _:
            owner = _owners(run, [seen.object]).of(seen.object)
            entry = Entry(seen.object, owner, judge(seen.object))
            happened = run.project.list_served(EVENT, fields=f"involvedObject.uid={seen.object.metadata.uid}")
            run.terminal.show(*_details(entry, happened.items if happened else [], run.clock.now()))
            run.terminal.hint(*_next_steps(run, entry))


def _owners(run: Run, instances: Iterable[Instance]) -> Owners:
    """Deployments are read only where labels are missing."""
    if all(labelled(one) for one in instances):
        return Owners()
    return Owners(run.project.list(WORKLOAD_DEPLOYMENT).items)


def _nothing(project_name: str, workload: str | None, city: str | None, status: str | None) -> str:
    given = {"workload": workload, "city": city, "status": status}
    filters = ", ".join(f"{key}={value}" for key, value in given.items() if value is not None)
    return f"No instances found in project {project_name}" + (f" with {filters}." if filters else ".")


def _group(judged: Judged) -> str:
    if judged.state is State.AVAILABLE:
        return "Available"
    return "Failed" if judged.state.failed else "Pending"


_TONES: dict[str, Callable[[str], Piece]] = {"Available": good, "Failed": bad, "Pending": busy}


def _table(entries: Sequence[Entry], now: datetime, *, wide: bool) -> Table:
    """Where room is scarce, what the name or other columns tell as well goes first, and addresses that nobody has."""
    are_public = any(first_addresses(entry.instance).external_ip for entry in entries)
    columns = [
        Column("NAME"),
        Column("WORKLOAD", left_out=4),
        Column("CITY"),
        Column("EXTERNAL IP", left_out=2 if are_public else 6),
        Column("INTERNAL IP", left_out=3),
        Column("TYPE", left_out=5),
        Column("AGE", left_out=1),
        Column("STATUS"),
    ]
    if wide:
        columns = [*(Column(column.title) for column in columns), Column("INSTANCE TYPE")]
    return Table(tuple(columns), [_row(entry, now, wide=wide) for entry in entries])


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
        _TONES[_group(entry.judged)](entry.judged.status),
        *((instance_type(instance.spec),) if wide else ()),
    )


def first_addresses(instance: Instance) -> Assignments:
    """Those of the first interface."""
    interfaces = instance.status.network_interfaces if instance.status else ()
    return interfaces[0].assignments if interfaces else Assignments()


def _footer(entries: Sequence[Entry]) -> str:
    groups = [_group(entry.judged) for entry in entries]
    counted = ", ".join(f"{groups.count(name)} {name}" for name in ("Available", "Pending", "Failed"))
    return f"{len(entries)} instance{'' if len(entries) == 1 else 's'} — {counted}"


def _details(entry: Entry, events: Iterable[Event], now: datetime) -> list[str | Line | Table]:
    instance, judged = entry.instance, entry.judged
    facts = [*runtime_facts(instance.spec), Fact("Type", (instance_type(instance.spec),))]
    return [
        _head("Instance", instance.name),
        _head("Workload", entry.owner.workload),
        _head("Placement", entry.owner.placement),
        _head("City", entry.owner.city),
        _head("Age", age(instance.metadata.creation_timestamp, now)),
        _head("Status", _TONES[_group(judged)](judged.line)),
        *([_head("", judged.message)] if judged.message else []),
        *_meaning(instance, now),
        "",
        "Runtime",
        *fact_lines(facts),
        "",
        _head("Network", _network(first_addresses(instance))),
        *condition_table(instance.status.conditions if instance.status else (), now),
        *event_table(events, now),
    ]


def _meaning(instance: Instance, now: datetime) -> list[str | Line | Table]:
    """What the reason of an Instance that waits means, who can do something about it, and how long it has been so."""
    waiting = _blocker(instance)
    if waiting is None:
        return []
    since = waiting.last_transition_time
    known = _EPOCH < since <= now  # a default is dated 1970, and another machine's clock may be ahead
    explained = explain(waiting.reason, now - since if known else None)
    told = {
        "What this means": explained.sentence,
        "What to do": explained.line,
        "In this state for": age(since, now) if known else "",
    }
    lines: list[str | Line | Table] = [line(f"{label:<18} {text}") for label, text in told.items() if text]
    return ["", *lines] if lines else []


def _blocker(instance: Instance) -> Condition | None:
    """The condition that says why it is not ready; a reason that only points is followed to what it points at."""
    found = instance.status.conditions if instance.status else ()
    ready, quota = conditions.find(found, READY), conditions.find(found, QUOTA_GRANTED)
    if ready is not None and (ready.status == "True" or not explain(ready.reason).is_pointer):
        return ready if ready.status != "True" else None
    return quota if quota is not None and quota.status != "True" else ready


def _head(label: str, value: Piece) -> Line:
    return line(f"{label:<14} ", value)


def _network(addresses: Assignments) -> str:
    if not addresses.external_ip and not addresses.network_ip:
        return "Waiting for addresses (not yet scheduled)"
    return f"External: {addresses.external_ip or 'not assigned'}  Internal: {addresses.network_ip or 'not assigned'}"


def _next_steps(run: Run, entry: Entry) -> list[str]:
    if entry.judged.state is not State.QUOTA_EXCEEDED:
        return []
    steps = [f"  Check quota:       {run.try_next('quota')}"]
    if most := _affordable(run, entry.owner.workload):
        fewer = run.try_next(f"scale {entry.owner.workload} --min={most}")
        steps.insert(0, f"  Reduce replicas:   {fewer}")
    return ["", "Next steps:", *steps]


def _affordable(run: Run, name: str) -> int:
    """As `status` has it; 0 when the workload is gone, or not short of quota any more."""
    workload = run.project.find(WORKLOAD, name)
    if workload is None:
        return 0
    of_workload = f"{WORKLOAD_UID}={workload.object.metadata.uid}"
    deployments = run.project.list(WORKLOAD_DEPLOYMENT, of_workload).items
    return affordable(cities(workload.object, deployments, run.project.list(INSTANCE, of_workload).items))


command = Verbs(
    "instances",
    "List or describe instances.",
    [list_, describe],
    bare="list",
    aliases={"ls": "list", "get": "describe"},
)
