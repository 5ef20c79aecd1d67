"""The whole federation on this machine. Entry point: `command`."""

import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import Count, option
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.tree import Verbs

if TYPE_CHECKING:
    from datum_compute.cli.shell.run import Run
    from datum_compute.local.backups import Backup
    from datum_compute.local.settings import Settings
    from datum_compute.local.state import Running

_LOOK_SECONDS = 0.5
_MOST_NAMES = 10
_ANSWER_SECONDS = 5.0  # longer than a federation on this machine ever needs

directory_option = option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="PATH",
    help="Where its state is kept (DATUM_COMPUTE_LOCAL_DIR).",
)


@verb("up")
@directory_option
@option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Port to listen on; the last one unless given.")
@option(
    "--city",
    "cities",
    multiple=True,
    metavar="CODE[=NAME],...",
    help="Cities to have, all of them; those chosen last unless given, at first DFW, AMS and SIN.",
)
@option(
    "--limit",
    "limits",
    multiple=True,
    metavar="WHAT=AMOUNT,...",
    help="What a project may use: instances, vcpus or memory; at first 10 instances, 40 vCPUs and 80 GiB.",
)
def up(run: "Run", directory: Path | None, port: int | None, cities: tuple[str, ...], limits: tuple[str, ...]) -> None:
    """Start the federation in the background and return when it is ready.

    Cities and limits are kept for the next start. A city can be removed when nothing runs there any more.

    Instances are simulated: no image is pulled and no container runs. The tag of an image decides what becomes of its
    instances: :crashing, :image-unavailable and :configuration-error never get ready, :slow-stop takes a minute to
    stop; with any other tag they run.
    """
    from datum_compute.local import daemon
    from datum_compute.local.settings import limits_in_words

    running = _said(run, directory, daemon.up, _directory(directory), port or 0, _wanted(cities, limits))
    deploy = f"deploy hello --image=registry.example/hello:1 --city={','.join(running.cities[:2])} --min=2"
    run.terminal.show(
        f"The local federation is running at {running.url} (process {running.pid}).",
        f"  Project:  {running.project}",
        f"  Cities:   {_few(running.cities)}",
        f"  Limits:   {limits_in_words(running.limits)}",
        f"  State:    {running.directory}",
    )
    run.terminal.note(
        "",
        "  Instances are simulated: no container runs, and the tag of an image decides whether it works",
        f"  (:crashing does not; see '{run.program} local up --help').",
        "",
        "  Next steps:",
        f"    Deploy:    {run.program} {deploy}{_way(run, running)}",
        f"    kubectl:   export KUBECONFIG={quote(str(_kubeconfig(running)))}",
        f"    Stop:      {run.program} local down{_flag(directory)}",
    )


def _way(run: "Run", running: "Running") -> str:
    """The flag by which a command reaches this federation, where it would not without."""
    from datum_compute.local import state

    environ, path = run.environment.environ, str(_kubeconfig(running))
    usual = not environ.get("KUBECONFIG") and Path(running.directory) == state.default_directory()
    project = environ.get("DATUM_PROJECT") or running.project
    if (
        project == running.project
        and not environ.get("DATUM_API_HOST")
        and (usual or environ.get("KUBECONFIG") == path)
    ):
        return ""
    return f" --kubeconfig={quote(path)}"


def _kubeconfig(running: "Running") -> Path:
    from datum_compute.local import state

    return state.kubeconfig_path(Path(running.directory))


def _wanted(cities: tuple[str, ...], limits: tuple[str, ...]) -> "Settings":
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
    """Stop the federation; its state is kept."""
    from datum_compute.local import daemon

    stopped = _said(run, directory, daemon.down, _directory(directory), run.terminal.aside)
    run.terminal.show("The local federation was stopped." if stopped else "The local federation is not running.")


@verb("status", outputs=("table", "json", "yaml"))
@directory_option
def status(run: "Run", directory: Path | None) -> None:
    """Show whether the federation runs, and where; exit code 1 when it does not."""
    from msgspec import to_builtins

    from datum_compute.local import projects
    from datum_compute.local.settings import limits_in_words

    running = _running(directory)
    found = _said(run, directory, projects.projects, running, min(run.settings.request_timeout, _ANSWER_SECONDS))
    if run.output != "table":
        run.terminal.data(to_builtins(running) | {"projects": [one.name for one in found]}, run.output)
        return
    names = [one.name if one.state == "Ready" else f"{one.name} ({one.state.lower()})" for one in found]
    run.terminal.show(
        f"The local federation is running at {running.url} (process {running.pid}).",
        f"  Projects:  {_few(names) or 'none'}",
        f"  Cities:    {_few(running.cities)}",
        f"  Limits:    {limits_in_words(running.limits)}",
        f"  State:     {running.directory}",
    )


@verb("kubeconfig")
@directory_option
def kubeconfig(run: "Run", directory: Path | None) -> None:
    """Print the path of its kubeconfig.

    Contexts: project-NAME (the default project's is current), root, hub and cell-CITY.
    """
    from datum_compute.local import state

    _running(directory)
    run.terminal.name(str(state.kubeconfig_path(_directory(directory))))


@verb("backup")
@click.argument("path", metavar="[PATH]", required=False, type=click.Path(path_type=Path))
@directory_option
def backup(run: "Run", path: Path | None, directory: Path | None) -> None:
    """Copy everything that it stored to a new file, while it runs or not.

    Without PATH the file goes to the backups in the state directory, named after the time.
    """
    from datum_compute.local import backups

    to = path.absolute() if path else None
    made = _said(run, directory, backups.backup, _directory(directory), to, run.clock.now())
    run.terminal.show(f"The local federation was copied to {path or made}.")
    kept = quote(str(path)) if path else made.stem
    run.terminal.note(f"Run '{run.program} local restore {kept}{_flag(directory)}' to go back to it.")


@verb("restore", outputs=("table", "json", "yaml", "name"))
@click.argument("backup", metavar="[BACKUP]", required=False)
@directory_option
def restore(run: "Run", backup: str | None, directory: Path | None) -> None:
    """Go back to a backup; without BACKUP, list those in the state directory.

    BACKUP is a file, a name from the list or the beginning of one, or `latest`, the last that was asked for. The
    federation must be down. What it stored until now is kept as a backup too, so that a restore can be undone.
    """
    from datum_compute.local import backups

    where = _directory(directory)
    if not backup:
        _list(run, backups.backups(where), directory)
        return
    done = _said(run, directory, backups.restore, where, backup, run.clock.now())
    run.terminal.show(f"The local federation was restored from {done.source}.")
    if done.aside is not None:
        run.terminal.show(f"What was there before is kept as {done.aside}.")
    run.terminal.note(f"Run '{run.program} local up{_flag(directory)}' to start it.")


def _list(run: "Run", found: "list[Backup]", directory: Path | None) -> None:
    from datum_compute.cli.show.durations import age
    from datum_compute.cli.show.lines import Column, Table

    match run.output:
        case "json" | "yaml":
            run.terminal.data([_document(one) for one in found], run.output)
        case "name":
            for one in found:
                run.terminal.name(one.name)
        case _ if not found:
            run.terminal.show("There are no backups yet.")
            run.terminal.note(f"Run '{run.program} local backup{_flag(directory)}' to make one.")
        case _:
            now = run.clock.now()
            rows = [
                (one.name, age(one.taken, now), f"{one.size / 1024:.0f} KiB", "a restore" if one.replaced else "backup")
                for one in found
            ]
            run.terminal.show(Table(tuple(map(Column, ("NAME", "AGE", "SIZE", "MADE BY"))), rows))
            run.terminal.note("", f"Run '{run.program} local restore NAME{_flag(directory)}' to go back to one.")


def _document(one: "Backup") -> dict[str, object]:
    return {"name": one.name, "path": str(one.path), "taken": one.taken, "size": one.size, "replaced": one.replaced}


@verb("reset")
@directory_option
@option("-y", "--yes", is_flag=True, help="Do not ask.")
def reset(run: "Run", directory: Path | None, yes: bool) -> None:
    """Stop the federation and remove everything that it stored; backups are kept."""
    from datum_compute.local import daemon

    where = _directory(directory)
    if not yes:
        if not run.terminal.asks:
            raise usage(
                f"removing the state in {where} has to be confirmed: pass -y to confirm",
                f"local reset -y{_flag(directory)}",
            )
        question = f"This will remove everything in {where} but backups. Continue? (y/N): "
        if not run.terminal.confirm(question, default=False):
            run.terminal.show("Aborted.")
            return
    _said(run, directory, daemon.reset, where)
    run.terminal.show("The local federation was removed.")


@verb("logs", outputs=("table", "json"))
@directory_option
@option("--tail", type=Count(), default=200, metavar="N", help="Show at most this many lines; 200 unless given.")
@option("-f", "--follow", is_flag=True, help="Go on with what is logged from now on; Ctrl-C ends it.")
def logs(run: "Run", directory: Path | None, tail: int, follow: bool) -> None:
    """Show what the federation logged last, also when it does not run any more.

    A line is time, level, plane, controller and message, then the object and what else is known. With -o json lines
    are shown as they were logged, with all fields and whole tracebacks.
    """
    from datum_compute.cli.show.log_lines import readable
    from datum_compute.local import state

    def show(text: str) -> None:
        if run.output == "json":
            run.terminal.name(text)
        else:
            run.terminal.show(readable(text))

    path = state.Paths(_directory(directory)).output
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for text in deque(file, maxlen=tail):
                show(text.rstrip("\n"))
            while follow:
                text = file.readline()
                if text:
                    show(text.rstrip("\n"))
                else:
                    run.clock.sleep(_LOOK_SECONDS)
    except FileNotFoundError:
        raise Failure(
            "the local federation has logged nothing yet", next_command=f"local up{_flag(directory)}"
        ) from None
    except KeyboardInterrupt:
        return


def _few(names: Sequence[str]) -> str:
    """What fits on a line; `cities` and `-o json` have all of them."""
    hidden = len(names) - _MOST_NAMES
    return ", ".join(names) if hidden <= 1 else f"{', '.join(names[:_MOST_NAMES])} and {hidden} more"


def _running(directory: Path | None) -> "Running":
    from datum_compute.local import state

    running = state.running(_directory(directory))
    if running is None:
        raise Failure("the local federation is not running", next_command=f"local up{_flag(directory)}")
    return running


def _directory(given: Path | None) -> Path:
    from datum_compute.local import state

    return given.absolute() if given else state.default_directory()


def _flag(directory: Path | None) -> str:
    """Absolute, so that what is printed works from any directory."""
    return f" --dir={quote(str(directory.absolute()))}" if directory else ""


def _said(run: "Run", directory: Path | None, action: Any, *arguments: Any) -> Any:
    """What the daemon does; its own sentence when it cannot, with commands as they are typed for this directory."""
    from datum_compute.local.state import LocalError

    def typed(command: "re.Match[str]") -> str:
        return f"'{run.program} {command[1]}{_flag(directory)}'"

    try:
        return action(*arguments)
    except LocalError as error:
        raise Failure(re.sub(r"'compute (local \w+)'", typed, str(error)), Exit.FAILED) from None


command = Verbs(
    "local", "Run the whole federation on this machine.", [up, down, status, kubeconfig, logs, backup, restore, reset]
)
