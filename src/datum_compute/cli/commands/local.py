"""The local federation. Entry point: `command`."""

from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from datum_compute.cli.commands.local_backups import backup, restore
from datum_compute.cli.shell.failures import Failure, usage
from datum_compute.cli.shell.flags import Choice, Count, Port, one_of, option, verb, yes_option
from datum_compute.cli.shell.local_directory import adapted, call, directory_flag, directory_option, state_directory
from datum_compute.cli.shell.tree import Verbs

if TYPE_CHECKING:
    from datum_compute.cli.shell.run import Run
    from datum_compute.cli.show.views import View
    from datum_compute.local.census import Census
    from datum_compute.local.choice import Wish
    from datum_compute.local.settings import Settings
    from datum_compute.local.state import Running

_POLL_SECONDS = 0.5
_MOST_NAMES = 10
_ANSWER_SECONDS = 5.0  # longer than a local federation ever needs
_INSTANCES = ("auto", "containers", "simulated")
_PUBLIC_IMAGE = "docker.io/library/nginx:alpine"


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
    behave: with :crashing, :out-of-memory, :image-unavailable and :configuration-error they never become ready, with
    :slow-stop they take a minute to stop, and with any other tag they run.
    """
    from datum_compute.local import daemon
    from datum_compute.local.settings import limits_in_words

    settings, wish = _settings(cities, limits), _wish(run, instances, engine, leave=leave)
    running = call(run, directory, daemon.up, state_directory(directory), port or 0, settings, wish)
    run.terminal.show(
        f"The local federation is running at {running.url} (process {running.pid}).",
        f"  Project:    {running.project}",
        f"  Cities:     {_few(running.cities)}",
        f"  Limits:     {limits_in_words(running.limits)}",
        f"  Instances:  {running.summary}",
        *_workloads(running),
        f"  State:      {running.directory}",
        *(f"  {adapted(run, directory, note)}" for note in running.notes),
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
        f"    Stop:      {run.program} local down{directory_flag(directory)}",
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

    stopped = call(run, directory, daemon.down, state_directory(directory), run.terminal.aside)
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
    found = call(run, directory, projects, running, seconds)
    names = [
        project.name if project.state == "Ready" else f"{project.name} ({project.state.lower()})" for project in found
    ]
    counted = call(run, directory, census, running, seconds)
    page = Page(
        [
            f"The local federation is running at {running.url} (process {running.pid}).",
            f"  Projects:   {_few(names) or 'none'}",
            f"  Cities:     {_few(running.cities)}",
            f"  Limits:     {limits_in_words(running.limits)}",
            f"  Instances:  {counted.summary}",
            *([f"  Engine:     {_engine(counted)}"] if counted.engine is not None else []),
            *_workloads(running),
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


def _workloads(running: "Running") -> list[str]:
    """Where workloads answer."""
    from datum_compute.local.routing import url

    return [f"  Workloads:  {url('NAME', running.proxy)}"] if running.proxy else []


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
    run.terminal.name(str(state.kubeconfig_path(state_directory(directory))))


@verb("reset")
@directory_option
@yes_option
@option("--leave-containers", "leave", is_flag=True, help="Leave containers behind, if their engine does not answer.")
def reset(run: "Run", directory: Path | None, yes: bool, leave: bool) -> None:
    """Stop the federation and remove its containers and everything that it stored, except backups.

    Images stay.
    """
    from datum_compute.local import backups, daemon

    where = state_directory(directory)
    if not yes:
        if not run.terminal.asks:
            raise usage(
                f"removing the state in {where} has to be confirmed: pass -y to confirm",
                f"local reset -y{directory_flag(directory)}",
            )
        containers = "" if leave or not call(run, directory, _has_containers, where) else " and all its containers"
        question = f"This will remove everything in {where} except backups{containers}. Continue? (y/N): "
        if not run.terminal.confirm(question, default=False):
            run.terminal.show("Aborted.")
            return
    removed = call(run, directory, partial(daemon.reset, leave=leave), where, run.terminal.aside)
    run.terminal.show("The local federation was removed." if removed else "There is no local federation to remove.")
    if backups.backups(where):
        run.terminal.note(
            f"Its backups are kept. Run '{run.program} local restore{directory_flag(directory)}' to list them."
        )


def _has_containers(where: Path) -> bool:
    from datum_compute.local.containers import recall
    from datum_compute.local.state import Paths

    return bool(recall(Paths(where)).record.address)


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

    path = state.Paths(state_directory(directory)).output
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
            "the local federation has logged nothing yet", next_command=f"local up{directory_flag(directory)}"
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

    running = state.running(state_directory(directory))
    if running is None:
        raise Failure("the local federation is not running", next_command=f"local up{directory_flag(directory)}")
    return running


command = Verbs(
    "local", "Run the whole federation on this machine.", [up, down, status, kubeconfig, logs, backup, restore, reset]
)
