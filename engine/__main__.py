"""`python -m engine`: builds, runs and breaks the real engine. Entry point: `main`."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from datum_compute.api.permissions import When, Who
from engine import EngineError, build
from engine.harness import DEFAULT_FOLDER, Engine
from engine.pins import TOOLS
from engine.processes import State
from engine.settings import RESTORABLE

_TAIL = 40
_OPTIONAL = [when for when in When if when is not When.ALWAYS]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options, Engine(options.folder, _say))
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _run(options: Namespace, engine: Engine) -> int:
    match options.command:
        case "build":
            build.build([tool for tool in TOOLS if (tool.name in options.tools if options.tools else tool.standard)])
        case "up":
            engine.up(dict(options.cell), options.kwok, empty=options.empty)
            _show_planes(engine)
        case "down":
            engine.remove() if options.remove else engine.down()
        case "status":
            return _show_status(engine)
        case "logs":
            _show_logs(engine, options)
        case "kubeconfig":
            _show_kubeconfigs(engine, options)
        case "stop":
            engine.stop(options.name)
        case "kill":
            engine.kill(options.name)
        case "start":
            engine.start(options.name)
        case "pause":
            engine.pause(options.name)
        case "resume":
            engine.resume(options.name)
        case "snapshot":
            engine.snapshot(options.plane, options.name)
        case "restore":
            engine.restore(options.plane, options.name)
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m engine", description="Kubernetes and Karmada as processes on loopback.")
    parser.add_argument(
        "--folder", type=Path, default=DEFAULT_FOLDER, help="where its state is (default: $ENGINE_FOLDER, else .engine)"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    building = commands.add_parser("build", help="build what is not built from the current pins")
    building.add_argument("tools", nargs="*", choices=[[], *(tool.name for tool in TOOLS)], metavar="TOOL")

    up = commands.add_parser("up", help="bring up what is not up, and wait until it is ready")
    up.add_argument("--cell", type=_cell, action="append", default=[], metavar="NAME=CITY", help="one more cell")
    up.add_argument("--kwok", action="append", default=[], metavar="CELL", help="give a cell nodes that run Pods")
    up.add_argument("--empty", action="store_true", help="Kubernetes and Karmada alone, to install on; a new engine")

    down = commands.add_parser("down", help="stop every process of this engine, and no other")
    down.add_argument("--remove", action="store_true", help="and forget all objects, certificates and logs")

    commands.add_parser("status", help="list the processes; fails when one does not run")
    logs = commands.add_parser("logs", help="print the end of a process's log, or of all that ended by themselves")
    logs.add_argument("name", nargs="?", metavar="NAME")
    logs.add_argument("--lines", type=int, default=_TAIL)
    kubeconfig = commands.add_parser("kubeconfig", help="print where kubeconfigs are: of one plane, or all of them")
    kubeconfig.add_argument("plane", nargs="?", metavar="PLANE")
    kubeconfig.add_argument(
        "--as",
        dest="who",
        metavar="WHO",
        default="",
        help=f"not the administrator's: {', '.join(who.value for who in Who)}, cell-NAME, user-city-restart",
    )
    kubeconfig.add_argument(
        "--with",
        dest="switches",
        action="append",
        type=When,
        metavar="SWITCH",
        help=f"first give exactly these optional rights to all: {', '.join(when.value for when in _OPTIONAL)}",
    )
    for command, help_ in (
        ("stop", "stop one process"),
        ("kill", "end one process as a crash would"),
        ("start", "start one process again and wait until it is ready"),
        ("pause", "freeze one process"),
        ("resume", "let a frozen process go on"),
    ):
        commands.add_parser(command, help=help_).add_argument("name", metavar="NAME")
    for command, help_ in (
        ("snapshot", "keep what a plane with an etcd of its own knows now"),
        ("restore", "take such a plane back to a snapshot"),
    ):
        of_plane = commands.add_parser(command, help=help_)
        of_plane.add_argument("plane", choices=RESTORABLE, metavar="PLANE", help=" or ".join(RESTORABLE))
        of_plane.add_argument("name", metavar="NAME")
    return parser


def _cell(text: str) -> tuple[str, str]:
    name, _, city = text.partition("=")
    if not name or not city:
        raise ArgumentTypeError(f'"{text}" is not NAME=CITY, such as pop-ams=AMS')
    return name, city


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show_planes(engine: Engine) -> None:
    for plane in engine.planes():
        print(f"{plane.name:<16} {plane.role:<8} {plane.city or '-':<5} {engine.kubeconfig(plane.name)}")


def _show_kubeconfigs(engine: Engine, options: Namespace) -> None:
    if options.switches:
        engine.admit(options.switches)
    if options.plane:
        print(engine.kubeconfig(options.plane, options.who))
        return
    for path in sorted((engine.folder.kubeconfigs / options.who).rglob("*.yaml")):
        print(path)


def _show_status(engine: Engine) -> int:
    rows = engine.status()
    if not rows:
        print("not up")
        return 1
    for row in rows:
        print(f"{row.name:<32} {row.state:<8} {row.memory / 1e6:6.0f} MB  {row.log}")
    print(f"{'all':<41} {sum(row.memory for row in rows) / 1e6:6.0f} MB")
    return 0 if all(row.state is State.RUNNING for row in rows) else 1


def _show_logs(engine: Engine, options: Namespace) -> None:
    if options.name:
        _show_log(engine.log(options.name), options.lines)
        return
    for row in engine.status():
        if row.state is State.EXITED:
            print(f"{row.name} ended by itself; the end of {row.log}:")
            _show_log(row.log, options.lines)


def _show_log(path: Path, lines: int) -> None:
    with open(path, encoding="utf-8", errors="replace") as log:
        sys.stdout.writelines(deque(log, maxlen=lines))


if __name__ == "__main__":
    sys.exit(main())
