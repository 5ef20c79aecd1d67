"""Creates or updates a workload and watches its rollout. Entry point: `command`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from datum_compute.answers.health import is_paused
from datum_compute.answers.owners import Owners
from datum_compute.answers.rollout import version
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.workload import Workload
from datum_compute.cli.commands.instances import first_addresses
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import (
    MIN_REPLICAS,
    WORKLOAD_NAME,
    Cities,
    Image,
    Port,
    dry_run_option,
    fail_fast_option,
    message_option,
    option,
    timeout_option,
    verb,
    yes_option,
)
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.fragments import next_steps
from datum_compute.cli.show.lines import NONE, Line, Piece, hints, table
from datum_compute.cli.show.specs import has_web_port
from datum_compute.cli.show.terminal import Style, Terminal
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.local import find_overview
from datum_compute.cli.talk.log_api import is_served
from datum_compute.cli.talk.project import of_workload
from datum_compute.cli.workload import edits, manifest
from datum_compute.cli.workload.applying import ApplyFlags, Outcome, apply
from datum_compute.cli.workload.edits import EnvChange, SpecChange
from datum_compute.cli.workload.follow import Patience, earlier_change, follow, patience
from datum_compute.cli.workload.plan import Plan, from_flags, from_manifest
from datum_compute.cli.workload.questions import EndOfInput, from_questions
from datum_compute.cli.workload.saving import DEFAULT_FILE, save
from datum_compute.cli.workload.writing import ABORTED, WRITE_OUTPUTS, hint_progress, hint_resume
from datum_compute.kube.meta import Json

_VARIABLE = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
_EXAMPLE = "deploy hello --image=IMAGE --city=CITY"


class DeployFlags(ApplyFlags, frozen=True):
    workload: str | None
    image: str | None
    city: Sequence[Sequence[str]]
    min_: int | None
    port: int | None
    instance_type: str | None
    env: Sequence[str]
    file: Json | None
    wait: bool | None
    detach: bool
    timeout: float | None
    fail_fast: bool
    save_to: str | None
    no_save: bool

    @property
    def waits(self) -> bool:
        return not self.detach and self.wait is not False

    @property
    def change(self) -> SpecChange:
        """The changes that flags name; each city once, in upper or lower case."""
        cities = {code.lower(): code for codes in self.city for code in codes}
        env = tuple(map(variable, self.env))
        return SpecChange(self.image, tuple(cities.values()), self.min_, self.port, self.instance_type, env)

    @property
    def change_flags(self) -> list[str]:
        """The flags that were given and change the spec."""
        values = {
            "--image": self.image,
            "--city": self.city or None,
            "--min": self.min_,
            "--port": self.port,
            "--instance-type": self.instance_type,
            "--env": self.env or None,
        }
        return [flag for flag, value in values.items() if value is not None]


class Manifest(click.ParamType[Json]):
    """A file with a workload, or - for stdin; read while flags are parsed, so that errors come before any call."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Json:
        if isinstance(value, dict):
            return value
        assert ctx is not None
        return manifest.parsed(_text(ctx.find_root().obj, value), "stdin" if value == "-" else value)


def _text(environment: Environment, file: str) -> str:
    try:
        if file == "-":
            return environment.stdin.read()
        return Path(environment.directory, file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Failure(f"{file}: this is not UTF-8 text") from None
    except OSError as error:
        raise Failure(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _only_one(ctx: click.Context, param: click.Parameter, values: Sequence[Json]) -> Json | None:
    if len(values) > 1:
        raise usage("-f was given more than once; deploy one manifest after the other")
    return values[0] if values else None


def variable(token: str) -> EnvChange:
    """`KEY=VALUE` sets, `KEY-` removes. The value is never part of an error."""
    name, equals, value = token.partition("=")
    if not equals and name.endswith("-"):
        name = name[:-1]
    elif not equals:
        raise usage("--env needs KEY=VALUE to set a variable, or KEY- to remove it")
    if not _VARIABLE.fullmatch(name):
        raise usage(f'--env: "{name}" is not a valid name of a variable')
    return EnvChange(name, value if equals else None)


def _check(flags: DeployFlags) -> None:
    """Finds everything that is wrong with the flags alone."""
    if flags.file is not None:
        _check_beside_manifest(flags, flags.file)
    elif not flags.workload and flags.change_flags:
        raise usage("workload name is required", _EXAMPLE)
    elif not flags.workload and not _can_ask():
        raise usage("workload name and --image are required, or use -f to specify a manifest file", _EXAMPLE)
    for flag, value in (("--image", flags.image), ("--instance-type", flags.instance_type)):
        if value is not None and not value.strip():
            raise usage(f"{flag} is empty; leave it out to keep what is there")
    for token in flags.env:
        variable(token)
    _check_combinations(flags)


def _can_ask() -> bool:
    return Terminal(click.get_current_context().find_root().obj, Style()).asks


def _check_beside_manifest(flags: DeployFlags, file: Json) -> None:
    if flags.change_flags:
        raise usage(f"{flags.change_flags[0]} cannot be combined with -f: set it in the manifest instead")
    if flags.save_to is not None:
        raise usage("--save cannot be combined with -f: the manifest is in a file already")
    name = file["metadata"]["name"]
    if flags.workload and flags.workload != name:
        raise usage(
            f'the manifest is of workload "{name}", not "{flags.workload}": leave the name out, or change it there'
        )


def _check_combinations(flags: DeployFlags) -> None:
    if flags.exit_code and not flags.dry_run:
        raise usage("--exit-code needs --dry-run")
    if flags.detach and flags.wait:
        raise usage("--detach cannot be combined with --wait")
    if flags.save_to is not None and flags.no_save:
        raise usage("--save cannot be combined with --no-save")
    if flags.save_to is not None and flags.dry_run:
        raise usage("--save cannot be combined with --dry-run: there is nothing to save")
    if not flags.waits:
        off = "--detach" if flags.detach else "--no-wait"
        for flag, is_given in (("--timeout", flags.timeout is not None), ("--fail-fast", flags.fail_fast)):
            if is_given:
                raise usage(f"{flag} cannot be combined with {off}: there is no wait")


@verb("deploy", needs=ENTITLED_PROJECT, outputs=WRITE_OUTPUTS, flags=DeployFlags, check=_check)
@click.argument("workload", type=WORKLOAD_NAME, metavar="[WORKLOAD]", required=False)
@option("--image", type=Image(), metavar="IMAGE", help="Image of the container; required for a new workload.")
@option("--city", type=Cities(), multiple=True, help="Cities to run in, repeated or separated by commas.")
@option("--min", "min_", type=MIN_REPLICAS, metavar="N", help="Instances per city; 1 for a new workload.")
@option("--port", type=Port(optional=True), metavar="PORT", help="Port that the container listens on; 0 for none.")
@option("--instance-type", metavar="TYPE", help=f"Size of each instance; {edits.DEFAULT_INSTANCE_TYPE} by default.")
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
@yes_option
@dry_run_option
@option("--diff", is_flag=True, help="Show all changes as a diff; values of variables stay hidden.")
@option("--exit-code", is_flag=True, help="With --dry-run: exit with 8 if something would change.")
@option("--wait/--no-wait", default=None, help="Watch the rollout until it is complete; the default.")
@option("--detach", is_flag=True, help="The same as --no-wait.")
@timeout_option
@fail_fast_option
@option(
    "--save",
    "save_to",
    is_flag=False,
    flag_value=DEFAULT_FILE,
    metavar="[=PATH]",
    help=f"Save the manifest, to {DEFAULT_FILE} by default; done in a terminal unless --no-save is given.",
)
@option("--no-save", is_flag=True, help="Do not save the manifest.")
@message_option
def command(run: Run, flags: DeployFlags) -> Exit:
    """Create or update a workload and watch its rollout.

    From flags, from a manifest with -f, or, in a terminal without either, from questions. An update by flags keeps
    everything that no flag names. Without --timeout it waits forever in a terminal and 15 minutes elsewhere. Values of
    variables are readable by everyone who may read the workload, its history and the saved manifest: refer to a Secret
    for sensitive values.
    """
    try:
        plan = _plan(run, flags)
    except EndOfInput:
        run.terminal.show(ABORTED)
        return Exit.OK
    outcome = apply(run, plan, flags)
    if outcome.workload is None:
        return outcome.code
    save_to = flags.save_to
    if save_to is None and outcome.changed and run.terminal.live and flags.file is None and not flags.no_save:
        save_to = DEFAULT_FILE
    if save_to is not None:
        save(run, outcome.workload.body(), save_to)
    if not flags.dry_run:
        _wait(run, outcome, patience(run, flags.timeout, fail_fast=flags.fail_fast) if flags.waits else None)
    return outcome.code


def _plan(run: Run, flags: DeployFlags) -> Plan:
    if flags.file is not None:
        return from_manifest(run, flags.file)
    return from_flags(run, flags.workload, flags.change) if flags.workload else from_questions(run)


def _wait(run: Run, outcome: Outcome, patience: Patience | None) -> None:
    """Watches the rollout or, without patience, prints the command to do so.

    Also after a deploy that changes nothing: the rollout of an earlier one may still be under way, or failing.
    """
    assert outcome.workload is not None
    workload = outcome.workload.object
    if is_paused(workload):
        run.terminal.note(f'Rollout of workload "{workload.name}" is paused.')
        hint_resume(run, workload.name)
    elif patience is None:
        if outcome.changed:
            hint_progress(run, workload.name)
    elif not outcome.changed:
        earlier = earlier_change(run, outcome.workload)
        follow(run, workload, patience, earlier=earlier, quietly=True, only=version(workload))
    else:
        run.terminal.note("Waiting for rollout. Ctrl-C to detach (rollout continues in background).")
        if follow(run, workload, patience, only=version(workload)):
            _show_instances(run, workload, can_undo=outcome.revision > 1)


def _show_instances(run: Run, workload: Workload, *, can_undo: bool) -> None:
    rows = _by_city(run.project.list(INSTANCE, of_workload(workload)).items)
    if rows:
        run.terminal.note("", "  Instances:", table(("", "", ""), rows, indent=4))
    steps = {"Status:": f"status {workload.name}", "Instances:": f"instances --workload={workload.name}"}
    if is_served(run.target.logs):
        steps["Logs:"] = f"logs {workload.name} --follow"
    if can_undo:
        steps["Roll back:"] = f"rollout undo {workload.name}"
    run.terminal.note(*next_steps(run, steps, indent=2), *_address(run, workload))


def _address(run: Run, workload: Workload) -> list[Line]:
    """Where it answers on this machine, if it is one of a local federation and has a port."""
    overview = find_overview(run) if has_web_port(workload.spec.template.spec) else None
    if overview is None or overview.project != run.project.name:
        return []
    return hints(f"    {'Open:':<12} {overview.url(workload.name)}")


def _by_city(instances: Iterable[Instance]) -> list[tuple[Piece, ...]]:
    """Rows of city, name and address; the city only on its first row."""
    rows: list[tuple[Piece, ...]] = []
    previous = ""
    for city, name, instance in sorted((Owners().of(instance).city, instance.name, instance) for instance in instances):
        addresses = first_addresses(instance)
        rows.append((city if city != previous else "", name, addresses.external_ip or addresses.network_ip or NONE))
        previous = city
    return rows
