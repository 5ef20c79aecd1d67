"""`compute exec`, as its own process on a real server: streams, exit codes, Ctrl-C, and the terminal it is handed."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Compute, World
from tests.cli.exec_server import ExecServer
from tests.sessions import FakeRunner

CTRL_C = b"\x03"
GUARD_SECONDS = 50.0
PROGRAM = "import sys; from datum_compute.cli.main import main; sys.exit(main())"
# The terminal has to be the controlling one, else a Ctrl-C typed there interrupts nobody.
IN_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {PROGRAM}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecServer]:
    serving = ExecServer(tmp_path_factory.mktemp("exec"), runner=FakeRunner())
    yield serving
    serving.close()


def environ(server: ExecServer) -> dict[str, str]:
    return {"KUBECONFIG": str(server.kubeconfig), "PATH": os.environ["PATH"], "PYTHONUTF8": "1", "TERM": "xterm"}


class Done:
    def __init__(self, process: "subprocess.CompletedProcess[bytes]") -> None:
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr.decode()


def run(server: ExecServer, *words: str, typed: bytes | None = None) -> Done:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, "exec", *words],
        env=environ(server),
        input=typed,
        stdin=subprocess.DEVNULL if typed is None else None,
        capture_output=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    return Done(process)


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (("web-0", "--", "echo", "a", "b  c", "-v", "--help"), 0, b"a b  c -v --help\n", ""),
        (("web-0", "--", "complain"), 1, b"", "no such thing\n"),
        (("web-0", "--", "exit", "0"), 0, b"", ""),
        (("web-0", "--", "exit", "42"), 42, b"", ""),
        (("web-0", "--", "exit", "255"), 255, b"", ""),
        (("instance/two-0", "-c", "proxy", "--", "echo", "x"), 0, b"x\n", ""),
        (("web-0", "--", "echo", "--plugin-manifest"), 0, b"--plugin-manifest\n", ""),
        (("web-0", "--", "echo", "ä" * 8000), 0, "ä".encode() * 8000 + b"\n", ""),
    ],
)
def test_a_command_has_its_output_and_exit_code(
    server: ExecServer, words: Sequence[str], code: int, out: bytes, err: str
) -> None:
    done = run(server, *words)
    assert (done.code, done.out, done.err) == (code, out, err)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("web-0", "ls"), 2, "put -- before the command"),
        (("web-0", "--"), 2, "name the command to run"),
        (("web-0",), 2, "name the command to run"),
        (("--", "ls"), 2, "INSTANCE is required"),
        (("two-0", "--", "ls"), 2, "choose one with -c: app, proxy"),
        (("web-0", "--", *(["a"] * 513)), 2, "512 are the most"),
        (("web-0", "--", "echo", "x" * 16_384), 2, "16384 are the most"),
        (("two-0", "-c", "db", "--", "ls"), 3, 'has no container "db"; it has app, proxy'),
        (("nope", "--", "ls"), 3, 'instance "nope" not found'),
        (("off-0", "--", "ls"), 1, 'instance "off-0" is not running: '),
        (("vm-0", "--", "ls"), 13, "is a virtual machine"),
        (("web-0", "--", "broken"), 1, "the connection to the instance was lost"),
    ],
)
def test_what_cannot_be_run_says_why(server: ExecServer, words: Sequence[str], code: int, says: str) -> None:
    done = run(server, *words)
    assert (done.code, done.out) == (code, b"")
    assert says in done.err


def test_a_workload_is_answered_with_its_instances(compute: Compute, world: World) -> None:
    world.workload()
    assert compute("exec", "shop", "--", "ls").err.splitlines()[1:] == [
        "  it is a workload; its instances: none",
        "",
        "compute instances --workload=shop",
    ]
    for number in range(12):
        world.instance("AMS", number)
    result = compute("exec", "shop", "--", "ls")
    assert result.code == 3
    sentence, detail, *_ = result.err.splitlines()
    assert sentence == 'Error: instance "shop" not found in project demo'
    assert detail.startswith("  it is a workload; its instances: shop-default-ams-0, shop-default-ams-1, ")
    assert detail.endswith(" and 2 more")


def test_a_simulated_instance_has_nothing_to_run_a_command_in(tmp_path: Path) -> None:
    server = ExecServer(tmp_path, runner=None)
    try:
        done = run(server, "web-0", "--", "ls")
    finally:
        server.close()
    assert (done.code, done.out) == (13, b"")
    assert "runs only in simulation; there is nothing to run a command in" in done.err


def test_a_server_that_is_gone_is_named(tmp_path: Path) -> None:
    server = ExecServer(tmp_path, runner=None)
    server.close()
    done = run(server, "web-0", "--", "ls")
    assert done.code == 1
    assert "nothing listens on 127.0.0.1" in done.err


def test_piped_input_arrives_and_ends(server: ExecServer) -> None:
    done = run(server, "web-0", "-i", "--", "cat", typed=b"one\ntwo \xff\0\n")
    assert (done.code, done.out, done.err) == (0, b"one\ntwo \xff\0\n", "")


def test_ten_megabytes_go_each_way(server: ExecServer) -> None:
    assert run(server, "web-0", "-i", "--", "count", typed=b"x" * 10_000_000).out == b"10000000\n"
    assert run(server, "web-0", "--", "flood", "10000000").out == b"x" * 10_000_000


def test_without_a_terminal_t_warns_and_goes_on(server: ExecServer) -> None:
    done = run(server, "web-0", "-it", "--", "cat", typed=b"hello")
    assert (done.code, done.out) == (0, b"hello")
    assert done.err == "stdin is not a terminal; going on without -t\n"


def test_traces_and_events_hold_no_arguments(server: ExecServer) -> None:
    done = run(server, "-vv", "web-0", "--", "echo", "hunter2")
    assert done.out == b"hunter2\n"
    assert "/instances/web-0/exec 101" in done.err
    assert "hunter2" not in done.err
    assert 'user@example.com runs "echo" in container app' in server.events()
    assert not any("hunter2" in event for event in server.events())


def test_no_event_loop_and_no_server_is_loaded(server: ExecServer) -> None:
    program = f"{PROGRAM.replace('sys.exit(main())', 'main()')}; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, "exec", "web-0", "--", "echo"],
        env=environ(server),
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=True,
    )
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "wsproto" in loaded
    assert loaded.isdisjoint({"asyncio", "aiohttp", "uvicorn", "cryptography", "structlog"})


class Process:
    """The command with pipes, while it runs."""

    def __init__(self, server: ExecServer, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "exec", *words],
            env=environ(server),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.out = b""

    def until(self, text: bytes) -> None:
        assert self.process.stdout is not None
        while text not in self.out:
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, (self.out, self.process.stderr.read() if self.process.stderr else b"")
            self.out += piece

    def ended(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=GUARD_SECONDS)
        return self.process.returncode, err.decode()


def test_ctrl_c_without_a_terminal_ends_the_connection_and_says_that_the_command_may_go_on(server: ExecServer) -> None:
    process = Process(server, "web-0", "--", "sleep")
    process.until(b"sleeping")
    process.process.send_signal(signal.SIGINT)
    assert process.ended() == (130, "Interrupted. sleep may go on in web-0.\n")


def test_a_fourth_session_is_refused(server: ExecServer) -> None:
    three = [Process(server, "web-0", "--", "sleep") for _ in range(3)]
    for process in three:
        process.until(b"sleeping")
    done = run(server, "web-0", "--", "echo")
    assert done.code == 1
    assert 'instance "web-0" has 3 sessions already' in done.err
    for process in three:
        process.process.send_signal(signal.SIGINT)
        process.ended()


def test_a_closed_pipe_ends_it_without_a_word(server: ExecServer) -> None:
    process = Process(server, "web-0", "--", "flood", "10000000")
    process.until(b"x")
    with process.process as ending:
        assert ending.stdout is not None
        assert ending.stderr is not None
        ending.stdout.close()
        assert (ending.stderr.read(), ending.wait(GUARD_SECONDS)) == (b"", 0)


def test_a_server_that_stops_is_a_lost_connection(tmp_path: Path) -> None:
    server = ExecServer(tmp_path, runner=FakeRunner())
    try:
        process = Process(server, "web-0", "--", "sleep")
        process.until(b"sleeping")
        server.stop_serving()
        assert process.ended() == (1, "Error: the connection was lost; the command may go on\n")
    finally:
        server.close()


def test_an_instance_that_is_stopped_ends_the_session(tmp_path: Path) -> None:
    server = ExecServer(tmp_path, runner=FakeRunner())
    try:
        process = Process(server, "web-0", "--", "sleep")
        process.until(b"sleeping")
        server.stop("web-0")
        assert process.ended() == (1, 'Error: instance "web-0" was stopped or replaced, and the session with it\n')
    finally:
        server.close()


# In a terminal


class Terminal:
    """The command in a terminal of its own. A thread reads, as a terminal does."""

    def __init__(self, server: ExecServer, *words: str, size: tuple[int, int] = (80, 24)) -> None:
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, "exec", *words],
            env=environ(server),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        self.text = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def until(self, text: bytes) -> None:
        deadline = time.monotonic() + GUARD_SECONDS
        while text not in self.text:
            ready, _, _ = select.select([self.master], [], [], max(deadline - time.monotonic(), 0))
            assert ready, self.text
            self.text += os.read(self.master, 65536)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def ended(self) -> int:
        """The exit code; reads on until then, so that nothing waits for the terminal."""
        stopped = threading.Event()

        def read() -> None:
            while not stopped.is_set():
                if select.select([self.master], [], [], 0.05)[0]:
                    self.text += os.read(self.master, 65536)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            return self.process.wait(GUARD_SECONDS)
        finally:
            stopped.set()
            reader.join()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(server: ExecServer) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*words: str, **options: tuple[int, int]) -> Terminal:
        opened.append(Terminal(server, *words, **options))
        return opened[-1]

    yield start
    for session in opened:
        session.close()


def test_in_a_terminal_every_key_goes_to_the_command(terminal: Open) -> None:
    session = terminal("web-0", "-it", "--", "sh")
    session.until(b"$ ")
    assert not session.is_as_before()
    session.type(b"ls" + CTRL_C)
    session.until(b"ls^C\r\n$ ")
    session.type(b"q")
    assert session.ended() == 7
    assert session.is_as_before()
    assert b"bye\r\n" in session.text


def test_what_comes_after_the_command_begins_in_the_first_column(terminal: Open) -> None:
    session = terminal("web-0", "-it", "--", "echo", "not found")  # an engine's error has no carriage return
    session.until(b"not found\n\r")
    assert session.ended() == 0


def test_t_alone_passes_on_input_too(terminal: Open) -> None:
    session = terminal("web-0", "-t", "--", "sh")
    session.until(b"$ ")
    session.type(b"q")
    assert session.ended() == 7


def test_the_size_of_the_terminal_is_passed_on_and_followed(terminal: Open) -> None:
    session = terminal("web-0", "-it", "--", "size", "3", size=(100, 30))
    session.until(b"100x30")
    session.resize(120, 40)
    session.until(b"120x40")
    session.resize(60, 20)
    session.until(b"60x20")
    assert session.ended() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Open, number: signal.Signals, code: int) -> None:
    session = terminal("web-0", "-it", "--", "sh")
    session.until(b"$ ")
    session.process.send_signal(number)
    assert session.ended() == code
    assert session.is_as_before()


def test_a_lost_connection_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    server = ExecServer(tmp_path, runner=FakeRunner())
    session = Terminal(server, "web-0", "-it", "--", "sh")
    try:
        session.until(b"$ ")
        server.stop_serving()
        assert session.ended() == 1
        assert session.is_as_before()
        assert b"the connection was lost" in session.text
    finally:
        session.close()
        server.close()


def test_a_refused_session_leaves_the_terminal_as_it_was(terminal: Open) -> None:
    session = terminal("off-0", "-it", "--", "sh")
    assert session.ended() == 1
    assert session.is_as_before()


def test_ctrl_c_with_a_terminal_but_without_t_interrupts_only_this_side(terminal: Open) -> None:
    session = terminal("web-0", "-i", "--", "sleep")
    session.until(b"sleeping")
    session.type(CTRL_C)
    assert session.ended() == 130
    assert b"sleep may go on in web-0" in session.text


def test_ctrl_d_ends_typed_input(terminal: Open) -> None:
    session = terminal("web-0", "-i", "--", "count")
    session.type(b"four\n\x04")
    assert session.ended() == 0
    assert b"5\r\n" in session.text
