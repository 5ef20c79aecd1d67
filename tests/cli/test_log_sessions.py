"""`compute logs` as a program: in a terminal, in a pipe, and as the plugin's file would run it."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Compute, World
from tests.cli.log_store import LogStore, Step, frame
from tests.cli.test_prompts import CTRL_C
from tests.cli.test_pty import Open, terminal  # noqa: F401  (a fixture)

AMS = "shop-default-ams-0"


@pytest.fixture
def store(world: World) -> LogStore:
    world.settled()
    store = world.api.logs = LogStore()
    store.add(time.time_ns(), AMS, "\x1b[2Jhello \x1b[1mworld")
    return store


@pytest.fixture
def hold() -> Iterator[Callable[[], object]]:
    """A step that lasts until the test has ended."""
    ended = threading.Event()
    yield lambda: ended.wait(60)
    ended.set()


def test_ctrl_c_ends_following_without_an_error(store: LogStore, terminal: Open, hold: Step) -> None:  # noqa: F811
    store.tails = [[frame(*store.lines), hold]]
    session = terminal("logs", "shop", "-f", "--no-timestamps")
    session.answer("world", CTRL_C)
    assert session.ended() == 0
    assert session.lines == [
        'Following "shop"; Ctrl-C ends it.',
        "\x1b[36m[default-ams-0]\x1b[0m hello \x1b[1mworld\x1b[0m",
        "^C",
    ]


def test_ctrl_c_ends_the_wait_for_a_lost_server(store: LogStore, terminal: Open) -> None:  # noqa: F811
    store.tails = [[frame(*store.lines)]]
    session = terminal("logs", "shop", "-f")
    session.answer("still trying", CTRL_C)
    assert session.ended() == 0
    assert "Traceback" not in session.text


@pytest.mark.parametrize("columns", [60, 120])
def test_lines_are_never_cut(store: LogStore, terminal: Open, columns: int) -> None:  # noqa: F811
    store.add(time.time_ns(), AMS, "x" * 200)
    session = terminal("logs", "shop", columns=columns)
    assert session.ended() == 0
    assert "x" * 200 in session.text


class Piped:
    def __init__(self, compute: Compute, folder: Path, *words: str) -> None:
        environ = {**compute.environ, "HOME": str(folder), "DATUM_COMPUTE_LOCAL_DIR": str(folder / "local")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "datum_compute.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )

    def read_line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def hang_up(self) -> tuple[int, bytes]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        errors = self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait(30), errors


@pytest.mark.parametrize("next_", [b"{}\n", "line"])
def test_a_closed_pipe_ends_following_without_an_error(
    store: LogStore, compute: Compute, tmp_path: Path, hold: Step, next_: bytes | str
) -> None:
    """At the next line, or when the server next shows that it is alive."""
    closed = threading.Event()
    following = frame(*store.lines) if next_ == "line" else b"{}\n"
    store.tails = [[frame(*store.lines), lambda: closed.wait(60), following, hold]]
    piped = Piped(compute, tmp_path, "logs", "shop", "-f")
    assert piped.read_line().startswith(b"[default-ams-0]")
    assert piped.process.stdout is not None
    piped.process.stdout.close()
    closed.set()
    assert piped.hang_up() == (0, b'Following "shop"; Ctrl-C ends it.\n')


def test_lines_reach_a_pipe_as_they_come(store: LogStore, compute: Compute, tmp_path: Path, hold: Step) -> None:
    store.tails = [[frame(*store.lines), hold]]
    piped = Piped(compute, tmp_path, "logs", "shop", "-f", "-o", "json")
    assert b'"line":"\\u001b[2Jhello \\u001b[1mworld"' in piped.read_line()
    piped.process.send_signal(2)
    assert piped.hang_up()[0] == 0
