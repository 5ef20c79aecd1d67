"""Creates or updates a workload and watches its rollout. Entry point: `command`."""

import re
from collections.abc import Iterable, Sequence

import click
from msgspec.structs import replace

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import TOPOLOGY_CITY, WORKLOAD_UID
from datum_compute.api.networking import LOCATION_BINDING, NETWORK
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli import edits, history
from datum_compute.cli.changes import change_lines
from datum_compute.cli.commands.instances import first_addresses
from datum_compute.cli.edits import Asked, EnvChange
from datum_compute.cli.entitlement import active_entitlement
from datum_compute.cli.failures import Exit, Failure, usage
from datum_compute.cli.flags import Cities, Duration, Name, Port, Replicas, message_option, option
from datum_compute.cli.flags import command as verb
from datum_compute.cli.follow import follow, patience
from datum_compute.cli.joins import Owners
from datum_compute.cli.lines import NONE, Column, Piece, Table
from datum_compute.cli.project import Read
from datum_compute.cli.results import NOTHING_DONE, WRITTEN, agreed, check_changeable, show_written
from datum_compute.cli.revisions import DEPLOY
from datum_compute.cli.run import Run, project
from datum_compute.kube.meta import Json

_VARIABLE = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")


def asked(
    *,
    image: str | None,
    city: Iterable[Sequence[str]],
    min_: int | None,
    port: int | None,
    instance_type: str | None,
    env: Iterable[str],
) -> Asked:
    """What the flags name; each city once, whatever its case."""
    cities = {code.lower(): code for codes in city for code in codes}
    return Asked(image, tuple(cities.values()), min_, port, instance_type, tuple(map(variable, env)))


def variable(token: str) -> EnvChange:
    """`KEY=VALUE` sets, `KEY-` removes. The value is never part of an error."""
    name, equals, value = token.partition("=")
    if not equals and name.endswith("-"):
        name = name[:-1]
    elif not equals:
        raise usage("--env needs KEY=VALUE to set a variable, or KEY- to remove it")
    if not _VARIABLE.fullmatch(name):
        raise usage(f'--env: "{name}" is no name of a variable')
    return EnvChange(name, value if equals else None)


def _check(workload: str | None, image: str | None, env: Iterable[str], **others: object) -> None:
    if not workload:
        example = "deploy hello --image=IMAGE --city=CITY"
        raise usage("workload name is required" if image else "workload name and --image are required", example)
    for token in env:
        variable(token)


@verb("deploy", needs=[project, active_entitlement], outputs=WRITTEN, check=_check)
@click.argument("workload", type=Name("workload"), metavar="WORKLOAD", required=False)
@option("--image", metavar="IMAGE", help="Image of the container; needed for a new workload.")
@option("--city", type=Cities(), multiple=True, help="Cities to run in, repeated or separated by commas.")
@option("--min", "min_", type=Replicas(), metavar="N", help="Instances in each city; 1 for a new workload.")
@option("--port", type=Port(), metavar="PORT", help="Port that the container listens on; 0 for none.")
@option("--instance-type", metavar="TYPE", help=f"Size of each instance; {edits.DEFAULT_INSTANCE_TYPE} unless given.")
@option("--env", multiple=True, metavar="KEY=VALUE", help="Set a variable, or remove it with KEY-; repeatable.")
@option("-y", "--yes", is_flag=True, help="Do not ask.")
@option("--dry-run", is_flag=True, help="Let the server check it, and change nothing.")
@option("--wait/--no-wait", default=True, help="Watch the rollout until it is complete.")
@option("--detach", is_flag=True, help="The same as --no-wait.")
@option("--timeout", type=Duration(), metavar="DURATION", help="Longest wait; 0 is for ever.")
@option("--fail-fast", is_flag=True, help="Give up when an instance has failed for a minute.")
@message_option
def command(
    run: Run,
    workload: str,
    image: str | None,
    city: Sequence[Sequence[str]],
    min_: int | None,
    port: int | None,
    instance_type: str | None,
    env: Sequence[str],
    yes: bool,
    dry_run: bool,
    wait: bool,
    detach: bool,
    timeout: float | None,
    fail_fast: bool,
    message: str,
) -> None:
    """Create or update a workload and watch its rollout.

    On an update everything that no flag names stays as it is. Waits for ever in a terminal and 15 minutes elsewhere,
    unless --timeout is given. Values of variables are readable by everyone who may read the workload.
    """
    wanted = asked(image=image, city=city, min_=min_, port=port, instance_type=instance_type, env=env)
    run.terminal.note(f'Resolving workload "{workload}" in project {run.project.name}...')
    seen = run.project.find(WORKLOAD, workload)
    if seen is None:
        written = _create(run, workload, wanted, message, yes=yes, dry_run=dry_run)
    else:
        written = _update(run, seen, wanted, message, yes=yes, dry_run=dry_run)
    if written is None:
        return
    if not wait or detach:
        run.terminal.hint(f"Run '{run.try_next(f'rollout status {workload}')}' to watch progress.")
        return
    run.terminal.note("Waiting for rollout. Ctrl-C to detach (rollout continues in background).")
    if follow(run, written.object, patience(run, timeout, fail_fast=fail_fast)):
        _show_instances(run, written.object)


def _create(run: Run, name: str, wanted: Asked, message: str, *, yes: bool, dry_run: bool) -> Read[Workload] | None:
    """None when nothing was written."""
    if not wanted.image:
        raise usage("--image is required", f"deploy {name} --image=IMAGE --city=CITY")
    if not wanted.cities:
        raise usage("--city is required (e.g. --city=DFW,IAD)", "cities")
    spec = edits.new_spec(_with_offered_cities(run, wanted, ()))
    _check_networks(run, edits.networks(spec), yes=yes, dry_run=dry_run)
    run.terminal.note(*_plan(spec))
    body = WORKLOAD.body(name, "default") | {"spec": spec}
    if dry_run:
        run.project.create(WORKLOAD, body, dry_run=True)
        run.terminal.show(NOTHING_DONE)
        return None
    if not agreed(run, yes=yes):
        return None
    written = run.project.create(WORKLOAD, body)
    show_written(run, WORKLOAD, written, f"  workload/{name} created")
    history.record(run, written, history.Change(DEPLOY, message or "initial deploy", None))
    return written


def _update(
    run: Run, seen: Read[Workload], wanted: Asked, message: str, *, yes: bool, dry_run: bool
) -> Read[Workload] | None:
    """None when nothing was written."""
    check_changeable(seen.object)
    before: Json = seen.body()["spec"]
    _check_editable(run, seen.object.name, before, wanted)
    used = [code for placement in edits.placements(before) for code in placement.get("cityCodes") or []]
    wanted = _with_offered_cities(run, wanted, used)

    def edit(body: Json) -> Json:
        return body | {"spec": edits.edited_spec(body["spec"], wanted)}

    after = edits.edited_spec(before, wanted)
    changes = change_lines(before, after)
    if not changes:
        run.terminal.show("No changes detected.")
        return None
    _check_networks(run, edits.networks(after), yes=yes, dry_run=dry_run)
    run.terminal.note(*_plan(after), *(f"  {change}" for change in changes))
    if dry_run:
        run.project.update(WORKLOAD, seen, edit, dry_run=True)
        run.terminal.show(NOTHING_DONE)
        return None
    if not agreed(run, yes=yes):
        return None
    written = run.project.update(WORKLOAD, seen, edit)
    show_written(run, WORKLOAD, written.after, f"  workload/{written.after.object.name} updated")
    history.record(run, written.after, history.Change(DEPLOY, message or "; ".join(changes), written.before))
    return written.after


def _check_editable(run: Run, name: str, spec: Json, wanted: Asked) -> None:
    if wanted.needs_container and not edits.containers(spec):
        raise usage(f'workload "{name}" is a virtual machine; --image, --port and --env are for containers')
    number = len(edits.placements(spec))
    if wanted.needs_placement and number != 1:
        raise Failure(
            f'workload "{name}" has {number} placements — --city and --min are for workloads with one',
            Exit.USAGE,
            details=[
                f"Instances:  {run.try_next(f'scale {name} --placement=NAME --min=N')}",
                f"Cities:     kubectl edit workload {name}",
            ],
        )


def _with_offered_cities(run: Run, wanted: Asked, used: Sequence[str]) -> Asked:
    """Cities in the platform's spelling. One that the workload uses already may stay, offered or not."""
    if not wanted.cities:
        return wanted
    listing = run.project.list_served(LOCATION_BINDING)
    codes = [binding.spec.topology.get(TOPOLOGY_CITY, "") for binding in listing.items] if listing else []
    offered = {code.lower(): code for code in codes if code}
    if not offered:
        return wanted
    known = {code.lower(): code for code in used} | offered
    for code in wanted.cities:
        if code.lower() not in known:
            raise usage(
                f'city "{code}" is not offered to project {run.project.name}; '
                f"choose one of {', '.join(sorted(offered.values()))}",
                "cities",
            )
    return replace(wanted, cities=tuple(known[code.lower()] for code in wanted.cities))


def _check_networks(run: Run, names: Sequence[str], *, yes: bool, dry_run: bool) -> None:
    """Every network must be there; the default one is made on the way when somebody agrees."""
    for name in names:
        if run.project.find(NETWORK, name) is not None:
            continue
        if run.project.list_served(NETWORK) is None:
            return  # a plane without networks of its own
        if name != edits.DEFAULT_NETWORK:
            raise Failure(f'network "{name}" not found in project {run.project.name} — create it first')
        run.terminal.note(f'  Network "{name}" does not exist in project {run.project.name}.')
        if dry_run:
            continue
        if not yes and not run.terminal.asks:
            raise Failure(
                f'network "{name}" not found in project {run.project.name} — '
                "use --yes to auto-create or create it first"
            )
        if not yes and not run.terminal.confirm("  Create it now? (Y/n): ", default=True):
            raise Failure(f'network "{name}" is required; answer yes, pass --yes, or create it first')
        run.project.create(NETWORK, NETWORK.body(name, "default") | {"spec": {"ipam": {"mode": "Auto"}}})
        run.terminal.note(f"  network/{name} created")


def _plan(spec: Json) -> list[str]:
    return [
        f'  Placement "{one.get("name")}": cities=[{", ".join(one.get("cityCodes") or [])}], '
        f"min={(one.get('scaleSettings') or {}).get('minReplicas')}"
        for one in edits.placements(spec)
    ]


def _show_instances(run: Run, workload: Workload) -> None:
    instances = run.project.list(INSTANCE, f"{WORKLOAD_UID}={workload.metadata.uid}").items
    rows = _by_city(instances)
    if rows:
        run.terminal.note("", "  Instances:", Table((Column(""), Column(""), Column("")), rows, indent=4))
    run.terminal.note(
        "",
        "  Next steps:",
        f"    Status:      {run.try_next(f'status {workload.name}')}",
        f"    Instances:   {run.try_next(f'instances --workload={workload.name}')}",
    )


def _by_city(instances: Iterable[Instance]) -> list[tuple[Piece, ...]]:
    """City on its first row only, then name and address."""
    placed = sorted((Owners().of(instance).city, instance.name, instance) for instance in instances)
    rows: list[tuple[Piece, ...]] = []
    previous = ""
    for city, name, instance in placed:
        addresses = first_addresses(instance)
        rows.append((city if city != previous else "", name, addresses.external_ip or addresses.network_ip or NONE))
        previous = city
    return rows
