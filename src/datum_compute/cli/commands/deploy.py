"""Creates or updates a workload and watches its rollout. Entry point: `command`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from datum_compute.answers.health import is_paused
from datum_compute.answers.owners import Owners
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import Workload
from datum_compute.cli.commands.instances import first_addresses
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import WORKLOAD_NAME, Cities, Duration, Image, Port, Replicas, message_option, option
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.lines import NONE, Column, Piece, Table
from datum_compute.cli.show.results import ABORTED, WRITTEN
from datum_compute.cli.show.terminal import Style, Terminal
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.workload import edits, manifest
from datum_compute.cli.workload.applying import How, Outcome, apply
from datum_compute.cli.workload.edits import Asked, EnvChange
from datum_compute.cli.workload.follow import Patience, earlier_change, follow, patience
from datum_compute.cli.workload.plan import from_flags, from_manifest
from datum_compute.cli.workload.questions import Ended, from_questions
from datum_compute.cli.workload.saving import DEFAULT_FILE, save
from datum_compute.kube.meta import Json

_VARIABLE = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")


class Manifest(click.ParamType[Json]):
    """A file with a workload, or - for stdin; read at once, so that what is wrong with it is told before any call."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Json:
        if isinstance(value, dict):
            return value
        assert ctx is not None
        return manifest.parsed(_text(ctx.find_root().obj, value), "stdin" if value == "-" else value)


def _text(environment: Environment, file: str) -> str:
    try:
        return (
            environment.stdin.read() if file == "-" else Path(environment.directory, file).read_text(encoding="utf-8")
        )
    except UnicodeDecodeError:
        raise Failure(f"{file}: this is no UTF-8 text") from None
    except OSError as error:
        raise Failure(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _only_one(ctx: click.Context, param: click.Parameter, values: Sequence[Json]) -> Json | None:
    if len(values) > 1:
        raise usage("-f was given more than once; deploy one manifest after the other")
    return values[0] if values else None


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


_CHANGES = ("image", "city", "min_", "port", "instance_type", "env")
_EXAMPLE = "deploy hello --image=IMAGE --city=CITY"


def _check(workload: str | None, file: Json | None, **flags: Any) -> None:
    """Everything that can be said of the words alone."""
    named = [f"--{name.strip('_').replace('_', '-')}" for name in _CHANGES if flags[name] not in (None, ())]
    if file is not None:
        _check_beside_manifest(workload, file, named, flags["save_to"])
    elif not workload and named:
        raise usage("workload name is required", _EXAMPLE)
    elif not workload and not _somebody_to_ask():
        raise usage("workload name and --image are required, or use -f to specify a manifest file", _EXAMPLE)
    for flag in ("image", "instance_type"):
        if flags[flag] is not None and not flags[flag].strip():
            raise usage(f"--{flag.replace('_', '-')} is empty; leave it out to keep what is there")
    for token in flags["env"]:
        variable(token)
    _check_pairs(**flags)


def _somebody_to_ask() -> bool:
    return Terminal(click.get_current_context().find_root().obj, Style()).asks


def _check_beside_manifest(workload: str | None, file: Json, named: Sequence[str], save_to: str | None) -> None:
    if named:
        raise usage(f"{named[0]} cannot be combined with -f: set it in the manifest instead")
    if save_to is not None:
        raise usage("--save cannot be combined with -f: the manifest is in a file already")
    name = file["metadata"]["name"]
    if workload and workload != name:
        raise usage(f'the manifest is of workload "{name}", not "{workload}": leave the name out, or change it there')


def _check_pairs(
    *,
    dry_run: bool,
    exit_code: bool,
    wait: bool | None,
    detach: bool,
    timeout: float | None,
    fail_fast: bool,
    save_to: str | None,
    no_save: bool,
    **others: object,
) -> None:
    if exit_code and not dry_run:
        raise usage("--exit-code needs --dry-run")
    if detach and wait:
        raise usage("--detach cannot be combined with --wait")
    if save_to is not None and no_save:
        raise usage("--save cannot be combined with --no-save")
    if save_to is not None and dry_run:
        raise usage("--save cannot be combined with --dry-run: nothing is made that could be saved")
    if detach or wait is False:
        off = "--detach" if detach else "--no-wait"
        for flag, given in (("--timeout", timeout is not None), ("--fail-fast", fail_fast)):
            if given:
                raise usage(f"{flag} cannot be combined with {off}: there is no wait")


@verb("deploy", needs=[project, active_entitlement], outputs=WRITTEN, check=_check)
@click.argument("workload", type=WORKLOAD_NAME, metavar="WORKLOAD", required=False)
@option("--image", type=Image(), metavar="IMAGE", help="Image of the container; needed for a new workload.")
@option("--city", type=Cities(), multiple=True, help="Cities to run in, repeated or separated by commas.")
@option("--min", "min_", type=Replicas(), metavar="N", help="Instances in each city; 1 for a new workload.")
@option("--port", type=Port(), metavar="PORT", help="Port that the container listens on; 0 for none.")
@option("--instance-type", metavar="TYPE", help=f"Size of each instance; {edits.DEFAULT_INSTANCE_TYPE} unless given.")
@option("--env", multiple=True, metavar="KEY=VALUE", help="Set a variable, or remove it with KEY-; repeatable.")
@option(
    "-f",
    "--file",
    type=Manifest(),
    metavar="FILE",
    multiple=True,
    callback=_only_one,
    help="Manifest in YAML or JSON; - reads it from stdin.",
)
@option("-y", "--yes", is_flag=True, help="Do not ask.")
@option("--dry-run", is_flag=True, help="Let the server check it, and change nothing.")
@option("--diff", is_flag=True, help="Show everything that changes, as a diff; values of variables stay hidden.")
@option("--exit-code", is_flag=True, help="With --dry-run: exit with 8 when something would change.")
@option("--wait/--no-wait", default=None, help="Watch the rollout until it is complete; so unless told otherwise.")
@option("--detach", is_flag=True, help="The same as --no-wait.")
@option("--timeout", type=Duration(), metavar="DURATION", help="Longest wait; 0 is for ever.")
@option("--fail-fast", is_flag=True, help="Give up when an instance has failed for a minute.")
@option(
    "--save",
    "save_to",
    is_flag=False,
    flag_value=DEFAULT_FILE,
    metavar="[=PATH]",
    help=f"Save the manifest, in {DEFAULT_FILE} unless given; so in a terminal unless told otherwise.",
)
@option("--no-save", is_flag=True, help="Save no manifest.")
@message_option
def command(
    run: Run,
    workload: str | None,
    image: str | None,
    city: Sequence[Sequence[str]],
    min_: int | None,
    port: int | None,
    instance_type: str | None,
    env: Sequence[str],
    file: Json | None,
    yes: bool,
    dry_run: bool,
    diff: bool,
    exit_code: bool,
    wait: bool | None,
    detach: bool,
    timeout: float | None,
    fail_fast: bool,
    save_to: str | None,
    no_save: bool,
    message: str,
) -> Exit:
    """Create or update a workload and watch its rollout.

    From flags, from a manifest with -f, or, in a terminal without either, from questions. On an update by flags
    everything that no flag names stays as it is. Waits for ever in a terminal and 15 minutes elsewhere, unless
    --timeout is given. Values of variables are readable by everyone who may read the workload, its history and the
    saved manifest: refer to a Secret for what is sensitive.
    """
    try:
        if file is not None:
            plan = from_manifest(run, file)
        elif workload:
            wanted = asked(image=image, city=city, min_=min_, port=port, instance_type=instance_type, env=env)
            plan = from_flags(run, workload, wanted)
        else:
            plan = from_questions(run)
    except Ended:
        run.terminal.show(ABORTED)
        return Exit.OK
    outcome = apply(run, plan, How(yes, dry_run, diff, exit_code, message))
    if outcome.live is None:
        return outcome.code
    if save_to is None and outcome.changed and run.terminal.live and file is None and not no_save:
        save_to = DEFAULT_FILE
    if save_to is not None:
        save(run, outcome.live.body(), save_to)
    if not dry_run:
        _accompany(run, outcome, None if detach or wait is False else patience(run, timeout, fail_fast=fail_fast))
    return outcome.code


def _accompany(run: Run, outcome: Outcome, patience: Patience | None) -> None:
    """Watches the rollout, or tells how; without patience nobody waits.

    A deploy that changes nothing waits as well: what it asks for may still be on its way, or fail.
    """
    assert outcome.live is not None
    workload = outcome.live.object
    if is_paused(workload):
        run.terminal.note(f'Rollout of workload "{workload.name}" is paused.')
        run.terminal.hint(f"Run '{run.try_next(f'rollout resume {workload.name}')}' to let it go on.")
    elif patience is None:
        if outcome.changed:
            run.terminal.hint(f"Run '{run.try_next(f'rollout status {workload.name}')}' to watch progress.")
    elif not outcome.changed:
        follow(run, workload, patience, earlier=earlier_change(run, outcome.live), quietly=True)
    else:
        run.terminal.note("Waiting for rollout. Ctrl-C to detach (rollout continues in background).")
        if follow(run, workload, patience):
            _show_instances(run, workload, can_undo=outcome.revision > 1)


def _show_instances(run: Run, workload: Workload, *, can_undo: bool) -> None:
    instances = run.project.list(INSTANCE, f"{WORKLOAD_UID}={workload.metadata.uid}").items
    rows = _by_city(instances)
    if rows:
        run.terminal.note("", "  Instances:", Table((Column(""), Column(""), Column("")), rows, indent=4))
    run.terminal.hint(
        "",
        "  Next steps:",
        f"    Status:      {run.try_next(f'status {workload.name}')}",
        f"    Instances:   {run.try_next(f'instances --workload={workload.name}')}",
        *([f"    Roll back:   {run.try_next(f'rollout undo {workload.name}')}"] if can_undo else []),
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
