"""Processes are found again by whoever comes later, and only our own are touched."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import EngineError
from engine.processes import Processes, State

SLEEP = ("sleep", "60")
STUBBORN = ("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.01; done")
ENVIRONMENT = {"PATH": os.environ["PATH"]}


class Table:
    """Two harnesses over the same folder, as after a harness was killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = self.again()

    def again(self) -> Processes:
        return Processes(self.folder / "processes", self.folder / "logs")

    def start(self, name: str = "one", command: tuple[str, ...] = SLEEP) -> int:
        self.first.start(name, command, ENVIRONMENT)
        return int(self.record(name).read_text().split()[0])

    def record(self, name: str = "one") -> Path:
        return self.folder / "processes" / name


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    table = Table(tmp_path)
    yield table
    table.first.stop(table.first.names(), grace=0)


def wait_for(process: Processes, name: str, state: State) -> None:
    deadline = time.monotonic() + 10
    while process.state(name) is not state:
        assert time.monotonic() < deadline, f"{name} is {process.state(name)}, not {state}"
        time.sleep(0.005)


def test_a_process_runs_until_it_is_stopped(table: Table) -> None:
    assert table.first.state("one") is State.STOPPED
    table.start()
    assert table.first.state("one") is State.RUNNING
    assert table.first.names() == ["one"]

    assert table.first.stop(["one"], grace=10) == []

    assert table.first.state("one") is State.STOPPED
    assert table.first.names() == []


def test_another_harness_finds_and_stops_a_process(table: Table) -> None:
    pid = table.start()
    later = table.again()
    assert later.state("one") is State.RUNNING

    later.stop(["one"], grace=10)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_output_goes_to_the_log_of_the_process(table: Table) -> None:
    table.start("talker", ("sh", "-c", "echo out; echo err >&2"))
    wait_for(table.first, "talker", State.EXITED)
    assert table.first.log("talker").read_text() == "out\nerr\n"


def test_a_process_has_a_session_of_its_own(table: Table) -> None:
    assert os.getsid(table.start()) != os.getsid(0)


def test_the_command_of_a_process_is_known(table: Table) -> None:
    table.start()
    deadline = time.monotonic() + 10
    while table.first.command("one") != [*SLEEP]:  # for a moment it still is the shell that starts it
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_process_that_ended_by_itself_is_noticed_and_can_be_started_again(table: Table) -> None:
    table.start("one", ("true",))
    wait_for(table.first, "one", State.EXITED)
    table.start("one")
    assert table.first.state("one") is State.RUNNING


def test_a_running_process_is_not_started_twice(table: Table) -> None:
    table.start()
    with pytest.raises(EngineError, match="one runs already"):
        table.start()


def test_a_killed_process_looks_like_a_crash(table: Table) -> None:
    table.start()
    table.first.kill(["one"])
    assert table.first.state("one") is State.EXITED
    assert table.first.names() == ["one"]


def test_a_process_can_be_paused_and_resumed(table: Table) -> None:
    table.start()
    table.first.pause("one")
    wait_for(table.first, "one", State.PAUSED)
    table.first.resume("one")
    wait_for(table.first, "one", State.RUNNING)


def test_a_paused_process_stops_in_time(table: Table) -> None:
    table.start()
    table.first.pause("one")
    wait_for(table.first, "one", State.PAUSED)
    assert table.first.stop(["one"], grace=10) == []


def test_a_process_that_ignores_the_signal_is_killed(table: Table) -> None:
    table.start("deaf", STUBBORN)
    deadline = time.monotonic() + 10
    while not table.first.log("deaf").exists() or "deaf" not in table.first.log("deaf").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)

    assert table.first.stop(["deaf"], grace=0.1) == ["deaf"]

    assert table.first.state("deaf") is State.STOPPED


def test_a_process_that_does_not_run_cannot_be_paused(table: Table) -> None:
    with pytest.raises(EngineError, match="one does not run"):
        table.first.pause("one")


@pytest.mark.parametrize("changed", ["start", "boot"])
def test_a_later_process_with_the_same_pid_is_left_alone(table: Table, changed: str) -> None:
    with subprocess.Popen(SLEEP) as stranger:
        stat = Path(f"/proc/{stranger.pid}/stat").read_text().rstrip("\n")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        fields = stat.split(" ")
        if changed == "start":
            fields[21] = str(int(fields[21]) - 1)
        else:
            boot = "00000000-0000-0000-0000-000000000000\n"
        table.record().parent.mkdir()
        table.record().write_text(f"{' '.join(fields)}\n{boot}")

        assert table.first.state("one") is State.EXITED
        table.first.stop(["one"], grace=1)
        table.first.kill(["one"])

        assert stranger.poll() is None
        stranger.send_signal(signal.SIGKILL)


def test_a_half_written_record_is_ignored(table: Table) -> None:
    table.record().parent.mkdir()
    table.record().write_text("")
    assert table.first.state("one") is State.STOPPED


def test_memory_is_measured_while_a_process_runs(table: Table) -> None:
    table.start()
    assert table.first.memory("one") > 0
    assert table.first.memory("other") == 0
