"""Commands in the containers of a local federation, as its users run them."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.local import daemon
from tests.cli.commands.test_exec import IN_TERMINAL
from tests.containers.machine import COMPUTE, Machine
from tests.containers.podman import HELLO, Podman

PROGRAM = "/program"
INSTANCE = "web-default-dfw-0"
CTRL_C = b"\x03"
GUARD_SECONDS = 60.0


class User(Machine):
    """A user with one workload."""

    def run(self, *words: str, typed: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [str(COMPUTE), "exec", "-q", INSTANCE, *words]
        return subprocess.run(
            command, env=self.environ, input=typed, capture_output=True, timeout=GUARD_SECONDS, check=False
        )

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        command = [str(COMPUTE), "exec", "-q", INSTANCE, *words]
        return subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Screen:
    """`compute exec -it` in a terminal."""

    def __init__(self, user: User, *words: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(100, 30)
        command = [sys.executable, "-c", IN_TERMINAL, "exec", INSTANCE, "-it", "--", *words]
        self.process = subprocess.Popen(
            command, env=user.environ, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.text = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: bytes) -> None:
        deadline = time.monotonic() + GUARD_SECONDS
        while text not in self.text:
            assert select.select([self.master], [], [], max(deadline - time.monotonic(), 0))[0], self.text
            self.text += os.read(self.master, 65536)


@pytest.fixture(scope="module")
def user(podman_service: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    directory: Path = tmp_path_factory.mktemp("exec") / "state"
    user = User(podman_service, directory)
    user.up()
    user("deploy web --image=" + HELLO + " --city=DFW --min=1 --port=8080 --timeout=60s")
    yield user
    daemon.down(directory)
    podman_service.clear()


def test_exit_codes_and_streams_arrive(user: User) -> None:
    done = user.run("--", PROGRAM, "both")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"to stdout\n", b"to stderr\n")
    for code in (0, 1, 3, 42, 255):
        assert user.run("--", PROGRAM, "exit", str(code)).returncode == code
    assert user.run("--", "/no/such/program").returncode in (126, 127)


def test_ten_megabytes_go_each_way_and_input_ends(user: User) -> None:
    data = os.urandom(1000) * 10_000
    assert user.run("-i", "--", PROGRAM, "size", typed=data).stdout == b"10000000\n"
    assert len(user.run("--", PROGRAM, "produce", "10000000").stdout) == 10_000_000
    assert user.run("-i", "--", PROGRAM, "cat", typed=data).stdout == data


def test_a_terminal_follows_its_size_and_passes_on_ctrl_c(user: User) -> None:
    screen = Screen(user, PROGRAM, "terminal")
    try:
        screen.until(b"100x30")
        screen.resize(132, 43)
        screen.until(b"132x43")
        os.write(screen.master, CTRL_C)  # the program does not handle it
        assert screen.process.wait(GUARD_SECONDS) in (2, 130)
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.master)


def test_a_fourth_session_is_refused(user: User) -> None:
    three = [user.start("--", PROGRAM, "count", "1") for _ in range(3)]
    for process in three:
        assert process.stdout is not None
        assert process.stdout.readline() == b"line 1\n"
    refused = user.run("--", PROGRAM, "both")
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"has 3 sessions already" in refused.stderr
    for process in three:
        process.kill()
        process.communicate()


def test_a_session_is_in_the_events_of_the_instance_without_its_arguments(user: User) -> None:
    user.run("--", PROGRAM, "echo", "hunter2")
    described = user(f"instances describe {INSTANCE}")
    assert f'compute-local runs "{PROGRAM}" in container app' in described
    assert "hunter2" not in described
    assert "hunter2" not in user("local logs")


def test_a_restarted_instance_ends_its_sessions(user: User) -> None:
    process = user.start("--", PROGRAM, "count", "1")
    assert process.stdout is not None
    process.stdout.readline()
    user("restart web --wait --timeout=60s")
    _, err = process.communicate(timeout=GUARD_SECONDS)
    assert process.returncode == 1
    assert b"was stopped or replaced, and the session with it" in err
