"""The sessions in the README are what a reader gets: typed one after the other in a real terminal.

`REWRITE=1` writes what the commands show now.
"""

import fcntl
import os
import pty
import re
import select
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

from datum_compute.local import daemon

README = Path(__file__).parents[1] / "README.md"
COMPUTE = Path(sys.executable).with_name("compute")
COLUMNS, ROWS = 100, 50
HOME = "~/.local/state/datum-compute"
TIMED_OUT = 5  # the exit code of a command that says how long it waits
REWRITE = os.environ.get("REWRITE") == "1"

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_CONTROL = re.compile(r"(\x1b\[[0-9]*[A-Z]|\r|\n)")
_NUMBER = re.compile(r"(?:\d+(?:\.\d+)?[smhd]?)+\b")
_FIRST_CITY = re.compile(r"\bin [A-Z]{3} by\b")
_STOPPING = "is deleted; waiting for AMS, DFW to stop 4 instances."
_WAITING = re.compile(r"; waiting for .* to stop \d+ instances?\.$")
_SECONDS = 60.0


class Terminal:
    """Types commands and reads the screen that they leave behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(("DATUM", "KUBECONFIG"))}
        self.environ |= {"TERM": "xterm", "NO_COLOR": "1", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
        self.environ |= {"DATUM_COMPUTE_LOCAL_DIR": str(folder / "state")}

    def type(self, line: str) -> tuple[list[str], int]:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        process = subprocess.Popen(
            [COMPUTE, *shlex.split(line)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=self.environ,
            cwd=self._folder,
            start_new_session=True,
        )
        os.close(slave)
        text = _read(master)
        os.close(master)
        return [row.replace(str(self._folder / "state"), HOME) for row in screen(text)], process.wait()


class Engine:
    """A container engine on the machine of whoever types. It would wait for ever for an answer."""

    def __init__(self, terminal: Terminal) -> None:
        self._folder = tempfile.TemporaryDirectory()  # a socket needs a short path
        folder = self._folder.name
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(f"{folder}/engine.sock")
        self._socket.listen()
        self._socket.setblocking(False)
        terminal.environ["DOCKER_HOST"] = f"unix://{folder}/engine.sock"

    def touched(self) -> bool:
        """Whether anybody tried to reach it; it cannot be reached any more."""
        with self._folder, self._socket:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return False
            return True


def _read(master: int) -> str:
    deadline, found = time.monotonic() + _SECONDS, b""
    while select.select([master], [], [], max(deadline - time.monotonic(), 0))[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            piece = b""
        if not piece:
            return found.decode()
        found += piece
    raise AssertionError(f"still running after {_SECONDS:.0f} s: {found.decode()}")


def screen(text: str) -> list[str]:
    """The lines that are left when everything that is drawn again has been drawn."""
    lines, row, column = [""], 0, 0
    for part in _CONTROL.split(text):
        match part:
            case "\r":
                column = 0
            case "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            case str() if part.endswith("A") and part.startswith("\x1b["):
                row -= int(part[2:-1])
            case "\x1b[J":
                lines[row:] = [lines[row][:column]]
            case _:
                lines[row] = lines[row][:column] + part + lines[row][column + len(part) :]
                column += len(part)
    return lines[:-1] if not lines[-1] else lines


def test_a_redrawn_screen_is_read_in_its_final_state() -> None:
    assert screen("one\r\ntwo\r\nthree\r\n\r\x1b[2A\x1b[Jfour\r\n\r\x1b[Jfive\r\n") == ["one", "four", "five"]


def sessions(text: str) -> list[list[tuple[str, list[str]]]]:
    """The blocks of a text; of each its commands, with the lines they show."""
    return [
        [(step[0], step[1:]) for step in (step.splitlines() for step in block.split("$ compute ")[1:])]
        for block in _BLOCK.findall(text)
    ]


def settled(lines: list[str]) -> list[str]:
    """The lines without what differs from one run to the next: times, ports, process numbers, the spaces they take,
    which city is blocked first and has the reason below it, and lines that only a slow run prints while it waits."""
    lasting = [line for line in lines if not _WAITING.search(line)]
    placeless = (_FIRST_CITY.sub("in # by", line) for line in lasting)
    return sorted(re.sub(r"\s+", " ", _NUMBER.sub("#", line)).strip() for line in placeless)


def test_durations_make_no_difference() -> None:
    quick = ["workload/hello deleted.", "workload/hello is gone.", "#1    8s ago"]
    slow = ["workload/hello deleted.", f"workload/hello {_STOPPING}", "workload/hello is gone.", "#1   1m08s ago"]
    assert settled(quick) == settled(slow)


def patient(line: str) -> str:
    """The command with time enough on a busy machine for what the README shows."""
    return line.replace("--timeout=5s", "--timeout=20s")


@pytest.mark.timeout(300)
def test_every_command_of_the_readme_shows_what_it_says(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    terminal, printed, promised = Terminal(tmp_path), [], []
    engine = Engine(terminal)
    try:
        for block in sessions(text):
            printed.append([(line, *terminal.type(line if REWRITE else patient(line))) for line, _ in block])
            promised += [settled([line, *rest]) for line, rest in block]
    finally:
        daemon.down(tmp_path / "state")
    assert not engine.touched()
    wrong = [(line, code) for block in printed for line, _, code in block if code != TIMED_OUT * ("--timeout" in line)]
    assert wrong == []
    if REWRITE:
        written = iter("".join(f"$ compute {line}\n{_text(lines)}" for line, lines, _ in block) for block in printed)
        README.write_text(_BLOCK.sub(lambda _: f"```console\n{next(written)}```", text), "utf-8")
    else:
        for given, (line, lines, _) in zip(promised, (step for block in printed for step in block), strict=True):
            assert settled([line, *lines]) == given


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_every_way_to_install_it_is_explained_and_brings_both_programs() -> None:
    install = README.read_text("utf-8").partition("\n## Install\n")[2].partition("\n## ")[0]
    for command in ("uv tool install .", "pipx install .", "datumctl plugin trust compute"):
        assert command in install
    targets = re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {target for target in re.findall(r"`make ([a-z]+)`", install) if target in targets} == {"plugin", "demo"}
    for program, name in (("compute", "compute"), ("datumctl-compute", "datumctl compute")):
        assert f"`{program}`" in install
        done = subprocess.run([COMPUTE.with_name(program), "version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{name} ")


def test_every_tag_that_fails_on_purpose_is_explained() -> None:
    from datum_compute.providers.simulated import Failure

    text = README.read_text("utf-8")
    help_ = subprocess.run([COMPUTE, "local", "up", "--help"], capture_output=True, text=True, check=True).stdout
    for failure in Failure:
        assert f"| `:{failure.value}` |" in text
        assert f":{failure.value}" in re.sub(r"-\n\s+", "-", help_)


@pytest.mark.timeout(180)
def test_the_demo_says_how_the_command_gets_on_the_path_and_what_is_simulated(tmp_path: Path) -> None:
    repository = README.parent
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("DATUM", "KUBECONFIG"))}
    environ["DATUM_COMPUTE_LOCAL_DIR"] = str(tmp_path)
    try:
        done = subprocess.run([repository / "demo" / "run"], env=environ, capture_output=True, text=True, check=True)
        *_, rest = done.stdout.partition("The federation keeps running in the background.")
        assert "Its instances are simulated: no container runs." in rest
        assert "uv tool install ." in rest
        assert "pipx install ." in rest
        (path,) = re.findall(r'export PATH="(.*):\$PATH"', rest)
        environ["PATH"] = f"{path}:{environ['PATH']}"
        shell = ["bash", "-c", "compute local status && compute workloads -o name"]
        printed = subprocess.run(shell, env=environ, capture_output=True, text=True, check=True).stdout
        assert printed.endswith("\nworkload/hello\n")
    finally:
        daemon.down(tmp_path)
