"""The program in a real terminal: width, colours, and Ctrl-C."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, World
from tests.cli.server import ApiServer
from tests.cli.test_prompts import _PROGRAM, CTRL_C, Session

ESCAPE = "\x1b"
LONG_IMAGE = "registry.example/a-team/with-a-long-name/and-an-image-with-a-longer-one:2026-11-02"


class Sized(Session):
    """A terminal of this many columns."""

    def __init__(self, words: tuple[str, ...], environ: dict[str, str], directory: Path, columns: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            cwd=directory,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def lines(self) -> list[str]:
        return self.text.replace("\r\n", "\n").splitlines()

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        local_modes = termios.tcgetattr(self._master)[3]
        assert isinstance(local_modes, int)
        return bool(local_modes & termios.ECHO)


Open = Callable[..., Sized]


@pytest.fixture
def terminal(compute: Compute, tmp_path: Path) -> Iterator[Open]:
    sessions: list[Sized] = []
    base = {**compute.environ, "HOME": str(tmp_path), "DATUM_COMPUTE_LOCAL_DIR": str(tmp_path / "local")}

    def start(*words: str, columns: int = 80, **environ: str) -> Sized:
        usual = {"TERM": "xterm", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
        sessions.append(Sized(words, base | usual | environ, tmp_path, columns))
        return sessions[-1]

    yield start
    for session in sessions:
        session.__exit__()


@pytest.fixture
def shop(world: World) -> World:
    world.settled()
    return world


@pytest.fixture
def wide(shop: World) -> World:
    """What would make a table of more than 120 columns."""
    container = {"name": "app", "image": LONG_IMAGE}
    runtime = {"runtime": {"sandbox": {"containers": [container]}}}
    shop.api.patch(WORKLOAD, "shop", {"spec": {"template": {"spec": runtime}}})
    return shop


@pytest.mark.parametrize("columns", [70, 80, 100])
def test_a_table_is_as_wide_as_the_terminal(wide: World, terminal: Open, columns: int) -> None:
    session = terminal("workloads", columns=columns, NO_COLOR="1")
    assert session.ended() == 0
    assert columns - 6 < max(map(len, session.lines)) <= columns  # gaps are whole columns
    assert "…" in session.text


def test_a_wide_terminal_cuts_nothing(wide: World, terminal: Open) -> None:
    session = terminal("workloads", columns=200, NO_COLOR="1")
    assert session.ended() == 0
    assert LONG_IMAGE.removeprefix("registry.example/") in session.text


def test_a_pipe_has_no_width(wide: World, compute: Compute) -> None:
    assert LONG_IMAGE.removeprefix("registry.example/") in compute("workloads").out


@pytest.mark.parametrize(
    ("words", "environ", "coloured"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        (["--color=always"], {"NO_COLOR": "1"}, True),
        (["--color=never"], {"CLICOLOR_FORCE": "1"}, False),
    ],
)
def test_colour(shop: World, terminal: Open, words: list[str], environ: dict[str, str], coloured: bool) -> None:
    session = terminal("workloads", *words, **environ)
    assert session.ended() == 0
    assert (f"{ESCAPE}[32mAvailable{ESCAPE}[0m" in session.text) is coloured
    assert (ESCAPE in session.text) is coloured


def test_ctrl_c_at_a_question_ends_the_command_and_changes_nothing(shop: World, terminal: Open) -> None:
    session = terminal("destroy", "shop")
    session.answer("Continue? (y/N): ", CTRL_C)
    assert session.ended() == 130
    assert shop.api.writes() == []


def test_ctrl_c_detaches_from_a_watch_and_the_rollout_goes_on(world: World, terminal: Open) -> None:
    world.workload(["AMS"], 1)
    session = terminal("rollout", "status", "shop", TERM="dumb")
    session.answer("Pending", CTRL_C)
    assert session.ended() == 0
    assert session.lines[-2:] == [
        "^CDetached. Rollout continues in background.",  # the terminal echoes what was typed
        "Run 'compute rollout status shop' to watch progress.",
    ]
    assert "Traceback" not in session.text


def test_a_watch_is_drawn_in_place_where_the_terminal_can(world: World, terminal: Open) -> None:
    world.workload(["AMS"], 1)
    session = terminal("rollout", "status", "shop", NO_COLOR="1")
    session.answer("Pending", "")
    world.observe()
    world.deployment("AMS", replicas=1)
    world.report("AMS", 1, 1, desired=1)
    assert session.ended() == 0
    assert f"\r{ESCAPE}[4A{ESCAPE}[J" in session.text
    assert "Rollout complete in " in session.lines[-1]


def test_what_is_typed_during_a_watch_does_not_move_it(world: World, terminal: Open) -> None:
    world.workload(["AMS"], 1)
    session = terminal("rollout", "status", "shop", NO_COLOR="1")
    session.answer("Pending", "typed too early\n")
    world.observe()
    world.deployment("AMS", replicas=1)
    world.report("AMS", 1, 1, desired=1)
    assert session.ended() == 0
    assert "typed" not in session.text
    assert session.echoes


@pytest.mark.parametrize("words", [("rollout", "status", "shop"), ("status", "shop", "-w")], ids=" ".join)
def test_a_terminal_echoes_again_after_ctrl_c(world: World, terminal: Open, words: tuple[str, ...]) -> None:
    world.workload(["AMS"], 1)
    session = terminal(*words, NO_COLOR="1")
    session.answer("AMS" if words[0] == "rollout" else "Workload", CTRL_C)
    assert session.ended() == 0
    assert session.echoes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_echoes_again_after_a_signal(world: World, terminal: Open, number: signal.Signals) -> None:
    world.workload(["AMS"], 1)
    session = terminal("rollout", "status", "shop", NO_COLOR="1")
    session.answer("AMS", "")
    echoed = [session.echoes]
    session.send_signal(number)
    assert session.ended() == 128 + number
    echoed.append(session.echoes)
    assert echoed == [False, True]
    assert "Traceback" not in session.text


def test_a_terminal_that_cannot_gets_a_line_for_each_change(world: World, terminal: Open) -> None:
    world.workload(["AMS"], 1)
    session = terminal("rollout", "status", "shop", TERM="dumb")
    session.answer("Pending", "")
    world.observe()
    world.deployment("AMS", replicas=1)
    world.report("AMS", 1, 1, desired=1)
    assert session.ended() == 0
    assert ESCAPE not in session.text
    assert [line.split()[-1] for line in session.lines if line.startswith("  default")][-1] == "Done"


def test_ctrl_c_while_the_server_thinks_ends_the_command(api: ApiServer, world: World, terminal: Open) -> None:
    world.settled()
    held = threading.Event()
    called = threading.Event()

    def hold() -> None:
        called.set()
        held.wait(30)

    api.before("GET", "/workloads", hold)
    session = terminal("workloads")
    assert called.wait(30)
    session.answer("", CTRL_C)
    try:
        assert session.ended() == 130
    finally:
        held.set()
    assert "Traceback" not in session.text


def test_a_closed_pipe_is_not_an_error(shop: World, compute: Compute, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    environ = {**compute.environ, "HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-m", "datum_compute.cli.main", "workloads", "-o", "json"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=environ,
        check=False,
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (0, b"")
