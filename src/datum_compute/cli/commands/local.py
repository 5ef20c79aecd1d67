"""The whole federation on this machine. Entry point: `command`."""

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from datum_compute.cli.failures import Exit, Failure, usage
from datum_compute.cli.flags import Count, option
from datum_compute.cli.flags import command as verb
from datum_compute.cli.tree import Verbs

if TYPE_CHECKING:
    from datum_compute.cli.run import Run
    from datum_compute.local.state import Running

_LOOK_SECONDS = 0.5

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
def up(run: "Run", directory: Path | None, port: int | None) -> None:
    """Start the federation in the background and return when it is ready."""
    from datum_compute.local import daemon

    running = _said(daemon.up, _directory(directory), port or 0)
    first, *others = running.cities
    two = ",".join([first, *others[:1]])
    run.terminal.show(
        f"The local federation is running at {running.url} (process {running.pid}).",
        f"  Project:  {running.project}",
        f"  Cities:   {', '.join(running.cities)}",
        f"  State:    {running.directory}",
    )
    run.terminal.note(
        "",
        "  Next steps:",
        f"    Deploy:    {run.program} deploy hello --image=registry.example/hello:1 --city={two} --min=2",
        f"    kubectl:   export KUBECONFIG={daemon.kubeconfig_path(_directory(directory))}",
        f"    Stop:      {run.program} local down{_flag(directory)}",
    )


@verb("down")
@directory_option
def down(run: "Run", directory: Path | None) -> None:
    """Stop the federation; its state is kept."""
    from datum_compute.local import daemon

    stopped = _said(daemon.down, _directory(directory))
    run.terminal.show("The local federation was stopped." if stopped else "The local federation is not running.")


@verb("status", outputs=("table", "json", "yaml"))
@directory_option
def status(run: "Run", directory: Path | None) -> None:
    """Show whether the federation runs, and where; exit code 1 when it does not."""
    running = _running(directory)
    if run.output != "table":
        run.terminal.data(running, run.output)
        return
    run.terminal.show(
        f"The local federation is running at {running.url} (process {running.pid}).",
        f"  Projects:  {', '.join(running.projects)}",
        f"  Cities:    {', '.join(running.cities)}",
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
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@directory_option
def backup(run: "Run", path: Path, directory: Path | None) -> None:
    """Copy everything that it stored to a new file, while it runs or not.

    To go back to it: reset, copy the file to federation.db in the state directory, and start again.
    """
    from datum_compute.local import daemon

    _said(daemon.backup, _directory(directory), path.absolute())
    run.terminal.show(f"The local federation was copied to {path}.")


@verb("reset")
@directory_option
@option("-y", "--yes", is_flag=True, help="Do not ask.")
def reset(run: "Run", directory: Path | None, yes: bool) -> None:
    """Stop the federation and remove everything that it stored."""
    from datum_compute.local import daemon

    where = _directory(directory)
    if not yes:
        if not run.terminal.asks:
            raise usage(f"removing the state in {where} has to be confirmed: pass -y to confirm", "local reset -y")
        if not run.terminal.confirm(f"This will remove everything in {where}. Continue? (y/N): ", default=False):
            run.terminal.show("Aborted.")
            return
    _said(daemon.reset, where)
    run.terminal.show("The local federation was removed.")


@verb("logs")
@directory_option
@option("--tail", type=Count(), default=200, metavar="N", help="Show at most this many lines; 200 unless given.")
@option("-f", "--follow", is_flag=True, help="Go on with what is logged from now on; Ctrl-C ends it.")
def logs(run: "Run", directory: Path | None, tail: int, follow: bool) -> None:
    """Show what the federation logged last, also when it does not run any more."""
    from datum_compute.local import state

    path = state.Paths(_directory(directory)).output
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in deque(file, maxlen=tail):
                run.terminal.name(line.rstrip("\n"))
            while follow:
                line = file.readline()
                if line:
                    run.terminal.name(line.rstrip("\n"))
                else:
                    run.clock.sleep(_LOOK_SECONDS)
    except FileNotFoundError:
        raise Failure(
            "the local federation has logged nothing yet", next_command=f"local up{_flag(directory)}"
        ) from None
    except KeyboardInterrupt:
        return


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
    return f" --dir={directory}" if directory else ""


def _said(action: Any, *arguments: Any) -> Any:
    """What the daemon does; its own sentence when it cannot."""
    from datum_compute.local.daemon import LocalError

    try:
        return action(*arguments)
    except LocalError as error:
        raise Failure(str(error), Exit.FAILED) from None


command = Verbs(
    "local", "Run the whole federation on this machine.", [up, down, status, kubeconfig, logs, backup, reset]
)
