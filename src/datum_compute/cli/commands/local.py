"""The local federation. Entry point: `command`."""

import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import Choice, Count, Port, one_of, option, verb, yes_option
from datum_compute.cli.shell.tree import Verbs

if TYPE_CHECKING:
    from datetime import datetime

    from datum_compute.cli.shell.run import Run
    from datum_compute.cli.show.views import Page, View
    from datum_compute.local.backups import Backup
    from datum_compute.local.census import Census
    from datum_compute.local.choice import Wish
    from datum_compute.local.settings import Settings
    from datum_compute.local.state import Running

_POLL_SECONDS = 0.5
_MOST_NAMES = 10
_ANSWER_SECONDS = 5.0  # longer than a local federation ever needs
_INSTANCES = ("auto", "containers", "simulated")
_PUBLIC_IMAGE = "docker.io/library/nginx:alpine"

directory_option = option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="PATH",
    help="Directory of its state (DATUM_COMPUTE_LOCAL_DIR).",
)


@verb("up")
@directory_option
@option("--port", type=Port(), metavar="PORT", help="Port to listen on; by default the last one.")
@option(
    "--city",
    "cities",
    multiple=True,
    metavar="CODE[=NAME],...",
    help="All cities to have; by default those of the last start, at first DFW, AMS and SIN.",
)
@option(
    "--limit",
    "limits",
    multiple=True,
    metavar="WHAT=AMOUNT,...",
    help="Limit of a project for instances, vcpus or memory; at first 10 instances, 40 vCPUs and 80 GiB.",
)
@option(
    "--instances",
    type=Choice(*_INSTANCES),
    help="Run instances in containers, or simulate them; auto, the default, uses a container engine if one answers "
    "(DATUM_COMPUTE_INSTANCES).",
)
@option("--engine", metavar="unix://PATH", help="Socket of the container engine (DATUM_COMPUTE_ENGINE).")
@option("--leave-containers", "leave", is_flag=True, help="With --instances=simulated: leave containers behind.")
def up(
    run: "Run",
    directory: Path | None,
    port: int | None,
    cities: tuple[str, ...],
    limits: tuple[str, ...],
    instances: str | None,
    engine: str | None,
    leave: bool,
) -> None:
    """Start the federation in the background and return when it is ready.

    Cities, limits and what runs the instances are kept for the next start. A city can be removed when nothing runs
    there any more.

    In containers, an image runs with the rights of the engine, so prefer one that runs without root: whoever reaches
    the socket of an engine that runs as root is root. Cities are separate networks; projects in the same city are not
    separated. Containers reach the internet and the local network. Their ports are published on the loopback interface.

    If instances are simulated, no image is pulled and no container runs. The tag of an image decides how its instances
    behave: with :crashing, :image-unavailable and :configuration-error they never become ready, with :slow-stop they
    take a minute to stop, and with any other tag they run.
    """
    from datum_compute.local import daemon
    from datum_compute.local.settings import limits_in_words

    settings, wish = _settings(cities, limits), _wish(run, instances, engine, leave=leave)
    running = _call(run, directory, daemon.up, _directory(directory), port or 0, settings, wish)
    run.terminal.show(
        f"The local federation is running at {running.url} (process {running.pid}).",
        f"  Project:    {running.project}",
        f"  Cities:     {_few(running.cities)}",
        f"  Limits:     {limits_in_words(running.limits)}",
        f"  Instances:  {running.summary}",
        f"  State:      {running.directory}",
        *(f"  {_adapted(run, directory, note)}" for note in running.notes),
    )
    simulated = (
        "",
        "  Instances are simulated: no container runs, and the tag of an image decides whether it works",
        f"  (:crashing does not; see '{run.program} local up --help').",
    )
    run.terminal.note(
        *(simulated if running.instances == "simulated" else ()),
        "",
        "  Next steps:",
        f"    Deploy:    {run.program} {_deploy(running)}{_target_flag(run, running)}",
        f"    kubectl:   export KUBECONFIG={quote(str(_kubeconfig(running)))}",
        f"    Stop:      {run.program} local down{_flag(directory)}",
    )


def _deploy(running: "Running") -> str:
    """A first deploy that works: in containers, of a small web server that anybody may pull."""
    cities = ",".join(running.cities[:2])
    if running.instances == "simulated":
        return f"deploy hello --image=registry.example/hello:1 --city={cities} --min=2"
    return f"deploy hello --image={_PUBLIC_IMAGE} --port=80 --city={cities}"


def _wish(run: "Run", instances: str | None, engine: str | None, *, leave: bool) -> "Wish":
    from datum_compute.local.choice import ENGINE_VARIABLE, SIMULATED, VARIABLE, Wish

    environ = run.environment.environ
    word = instances or environ.get(VARIABLE, "").lower()
    if word not in ("", *_INSTANCES):
        raise usage(f'{VARIABLE}: unknown value "{environ[VARIABLE]}"; use {one_of(_INSTANCES)}')
    for name, address in (("--engine", engine), (ENGINE_VARIABLE, environ.get(ENGINE_VARIABLE))):
        if address and not address.startswith("unix:///"):
            raise usage(f'{name}: "{address}" is not the address of an engine; write it like unix:///run/docker.sock')
    if leave and word != SIMULATED:
        raise usage("--leave-containers needs --instances=simulated: otherwise the containers are needed")
    if engine and word == SIMULATED:
        raise usage("--engine cannot be combined with --instances=simulated")
    return Wish(word, engine or environ.get(ENGINE_VARIABLE, ""), leave)


def _target_flag(run: "Run", running: "Running") -> str:
    """The flag that a command needs to reach this federation; empty if it needs none."""
    from datum_compute.local import state

    environ, path = run.environment.environ, str(_kubeconfig(running))
    is_default = not environ.get("KUBECONFIG") and Path(running.directory) == state.default_directory()
    project = environ.get("DATUM_PROJECT") or running.project
    if (
        project == running.project
        and not environ.get("DATUM_API_HOST")
        and (is_default or environ.get("KUBECONFIG") == path)
    ):
        return ""
    return f" --kubeconfig={quote(path)}"


def _kubeconfig(running: "Running") -> Path:
    from datum_compute.local import state

    return state.kubeconfig_path(Path(running.directory))


def _settings(cities: tuple[str, ...], limits: tuple[str, ...]) -> "Settings":
    from datum_compute.local.settings import Settings, read_cities, read_limits

    flag = "--city"
    try:
        chosen = read_cities(cities)
        if cities and not chosen:
            raise ValueError("name at least one city, like --city=DFW,FRA=Frankfurt")
        flag = "--limit"
        return Settings(chosen, read_limits(limits))
    except ValueError as error:
        raise usage(f"{flag}: {error}") from None


@verb("down")
@directory_option
def down(run: "Run", directory: Path | None) -> None:
    """Stop the federation and its containers, and keep its state."""
    from datum_compute.local import daemon

    stopped = _call(run, directory, daemon.down, _directory(directory), run.terminal.aside)
    run.terminal.show("The local federation was stopped." if stopped else "The local federation is not running.")


@verb("status", outputs=("table", "json", "yaml"))
@directory_option
def status(run: "Run", directory: Path | None) -> "View":
    """Show whether the federation is running, and where; exits with 1 if it is not."""
    from msgspec import to_builtins

    from datum_compute.cli.show.views import Page, View
    from datum_compute.local.census import census
    from datum_compute.local.projects import projects
    from datum_compute.local.settings import limits_in_words

    running = _running(directory)
    seconds = min(run.settings.request_timeout, _ANSWER_SECONDS)
    found = _call(run, directory, projects, running, seconds)
    names = [
        project.name if project.state == "Ready" else f"{project.name} ({project.state.lower()})" for project in found
    ]
    counted = _call(run, directory, census, running, seconds)
    page = Page(
        [
            f"The local federation is running at {running.url} (process {running.pid}).",
            f"  Projects:   {_few(names) or 'none'}",
            f"  Cities:     {_few(running.cities)}",
            f"  Limits:     {limits_in_words(running.limits)}",
            f"  Instances:  {counted.summary}",
            *([f"  Engine:     {_engine(counted)}"] if counted.engine is not None else []),
            f"  State:      {running.directory}",
        ]
    )
    document = to_builtins(running) | {
        "projects": [project.name for project in found],
        "summary": counted.summary,
        "engine": to_builtins(counted.engine),
        "running": counted.running,
    }
    return View(lambda _now: page, document)


def _engine(census: "Census") -> str:
    assert census.engine is not None
    ignored = census.engine.unenforced
    return "; ".join(
        filter(
            None,
            (
                census.engine.address,
                f"{census.running} of {census.wanted} instances running",
                f"limits of {', '.join(ignored)} are not enforced" if ignored else "",
            ),
        )
    )


@verb("kubeconfig")
@directory_option
def kubeconfig(run: "Run", directory: Path | None) -> None:
    """Print the path of its kubeconfig.

    Contexts: project-NAME (that of the default project is current), root, hub and cell-CITY.
    """
    from datum_compute.local import state

    _running(directory)
    run.terminal.name(str(state.kubeconfig_path(_directory(directory))))


@verb("backup")
@click.argument("path", metavar="[PATH]", required=False, type=click.Path(path_type=Path))
@directory_option
def backup(run: "Run", path: Path | None, directory: Path | None) -> None:
    """Copy everything that is stored to a new file, whether the federation is running or not.

    Without PATH the file is added to the backups in the state directory, and named after the current time.
    """
    from datum_compute.local import backups

    to = path.absolute() if path else None
    created = _call(run, directory, backups.backup, _directory(directory), to, run.clock.now())
    run.terminal.show(f"The local federation was copied to {path or created}.")
    name = quote(str(path)) if path else created.stem
    run.terminal.note(f"Run '{run.program} local restore {name}{_flag(directory)}' to go back to it.")


@verb("restore", outputs=("table", "json", "yaml", "name"))
@click.argument("backup", metavar="[BACKUP]", required=False)
@directory_option
def restore(run: "Run", backup: str | None, directory: Path | None) -> "View | None":
    """Go back to a backup; without BACKUP, list those in the state directory.

    BACKUP is a file, a name from the list or the beginning of one, or `latest` for the newest that you made. The
    federation must be stopped. Its current state is kept as a backup too, so that a restore can be undone.
    """
    from datum_compute.local import backups

    state_directory = _directory(directory)
    if not backup:
        return _backups(run, backups.backups(state_directory), directory)
    restored = _call(run, directory, backups.restore, state_directory, backup, run.clock.now())
    run.terminal.show(f"The local federation was restored from {restored.source}.")
    if restored.aside is not None:
        run.terminal.show(f"The state before is kept as {restored.aside}.")
    run.terminal.note(f"Run '{run.program} local up{_flag(directory)}' to start it.")
    return None


def _backups(run: "Run", backups: "list[Backup]", directory: Path | None) -> "View":
    from datum_compute.cli.show.durations import age
    from datum_compute.cli.show.lines import table
    from datum_compute.cli.show.views import Page, View

    def page(now: "datetime") -> "Page":
        if not backups:
            hint = f"Run '{run.program} local backup{_flag(directory)}' to make one."
            return Page(["There are no backups yet."], [hint])
        rows = [
            (
                backup.name,
                age(backup.taken, now),
                f"{backup.size / 1024:.0f} KiB",
                "a restore" if backup.replaced else "backup",
            )
            for backup in backups
        ]
        hint = f"Run '{run.program} local restore NAME{_flag(directory)}' to go back to one."
        return Page([table(("NAME", "AGE", "SIZE", "MADE BY"), rows)], ["", hint])

    documents = {backup.name: _document(backup) for backup in backups}
    return View(page, list(documents.values()), documents)


def _document(backup: "Backup") -> dict[str, object]:
    return {
        "name": backup.name,
        "path": str(backup.path),
        "taken": backup.taken,
        "size": backup.size,
        "replaced": backup.replaced,
    }


@verb("reset")
@directory_option
@yes_option
@option("--leave-containers", "leave", is_flag=True, help="Leave containers behind, if their engine does not answer.")
def reset(run: "Run", directory: Path | None, yes: bool, leave: bool) -> None:
    """Stop the federation and remove its containers and everything that it stored, except backups.

    Images stay.
    """
    from datum_compute.local import backups, daemon

    state_directory = _directory(directory)
    if not yes:
        if not run.terminal.asks:
            raise usage(
                f"removing the state in {state_directory} has to be confirmed: pass -y to confirm",
                f"local reset -y{_flag(directory)}",
            )
        question = f"This will remove everything in {state_directory} except backups. Continue? (y/N): "
        if not run.terminal.confirm(question, default=False):
            run.terminal.show("Aborted.")
            return
    removed = _call(run, directory, partial(daemon.reset, leave=leave), state_directory, run.terminal.aside)
    run.terminal.show("The local federation was removed." if removed else "There is no local federation to remove.")
    if backups.backups(state_directory):
        run.terminal.note(f"Its backups are kept. Run '{run.program} local restore{_flag(directory)}' to list them.")


@verb("logs", outputs=("table", "json"))
@directory_option
@option("--tail", type=Count(), default=200, metavar="N", help="Show at most this many lines; 200 by default.")
@option("-f", "--follow", is_flag=True, help="Continue with new lines until Ctrl-C.")
def logs(run: "Run", directory: Path | None, tail: int, follow: bool) -> None:
    """Show the last lines of the log, also when the federation is not running any more.

    A line has time, level, plane, controller and message, then the object and other fields. With -o json lines are
    shown as they were logged, with all fields and whole tracebacks.
    """
    from datum_compute.cli.show.log_lines import LogLines
    from datum_compute.local import state

    log = LogLines()

    def show(*texts: str) -> None:
        lines = [text.rstrip("\n") for text in texts]
        if not run.terminal.structured:
            run.terminal.show(*log.readable(lines))
            return
        for text in lines:
            run.terminal.name(text)

    path = state.Paths(_directory(directory)).output
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            show(*deque(file, maxlen=tail))
            while follow:
                text = file.readline()
                if text:
                    show(text)
                else:
                    run.clock.sleep(_POLL_SECONDS)
    except FileNotFoundError:
        raise Failure(
            "the local federation has logged nothing yet", next_command=f"local up{_flag(directory)}"
        ) from None
    except KeyboardInterrupt:
        if run.terminal.live:
            run.terminal.show("")  # ends the line on which the terminal echoed ^C


def _few(names: Sequence[str]) -> str:
    """The names, shortened to fit on a line; `cities` and `-o json` have all of them."""
    hidden = len(names) - _MOST_NAMES
    return ", ".join(names) if hidden <= 1 else f"{', '.join(names[:_MOST_NAMES])} and {hidden} more"


def _running(directory: Path | None) -> "Running":
    from datum_compute.local import state

    running = state.running(_directory(directory))
    if running is None:
        raise Failure("the local federation is not running", next_command=f"local up{_flag(directory)}")
    return running


def _directory(directory: Path | None) -> Path:
    from datum_compute.local import state

    return directory.absolute() if directory else state.default_directory()


def _flag(directory: Path | None) -> str:
    """The flag for printed commands; absolute, so that they work from any directory."""
    return f" --dir={quote(str(directory.absolute()))}" if directory else ""


def _call(run: "Run", directory: Path | None, action: Any, *arguments: Any) -> Any:
    """Calls a function of `local`, and adapts commands in its errors to the program and directory in use."""
    from datum_compute.local.state import LocalError

    try:
        return action(*arguments)
    except LocalError as error:
        sentence, *details = _adapted(run, directory, str(error)).split("\n")
        raise Failure(sentence, Exit.FAILED, details=[line.strip() for line in details]) from None


def _adapted(run: "Run", directory: Path | None, text: str) -> str:
    def command(match: "re.Match[str]") -> str:
        return f"'{run.program} {match[1]}{_flag(directory)}'"

    return re.sub(r"'compute (local \w+(?: --[\w=-]+)*)'", command, text)


command = Verbs(
    "local", "Run the whole federation on this machine.", [up, down, status, kubeconfig, logs, backup, restore, reset]
)
