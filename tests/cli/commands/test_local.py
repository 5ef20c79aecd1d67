"""The local verbs around a daemon that only pretends; the real one has tests of its own."""

import json
from pathlib import Path

import pytest

from datum_compute.local import daemon, state
from datum_compute.local.daemon import LocalError
from datum_compute.local.state import Running
from tests.cli.conftest import Compute, FakeClock


class Pretended:
    """Remembers what it was asked to do."""

    def __init__(self) -> None:
        self.running: Running | None = None
        self.calls: list[tuple[object, ...]] = []
        self.error = ""

    def up(self, directory: Path, port: int = 0) -> Running:
        self.calls.append(("up", directory, port))
        if self.error:
            raise LocalError(self.error)
        self.running = Running(
            77, 6443, "https://127.0.0.1:6443", str(directory), "demo", ["DFW", "AMS", "SIN"], ["demo", "other"]
        )
        return self.running

    def down(self, directory: Path) -> bool:
        self.calls.append(("down", directory))
        found, self.running = self.running, None
        return found is not None

    def reset(self, directory: Path) -> None:
        self.calls.append(("reset", directory))

    def backup(self, directory: Path, path: Path) -> None:
        self.calls.append(("backup", directory, path))

    def find(self, directory: Path) -> Running | None:
        return self.running


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    fake = Pretended()
    for name in ("up", "down", "reset", "backup"):
        monkeypatch.setattr(daemon, name, getattr(fake, name))
    monkeypatch.setattr(state, "running", fake.find)
    return fake


@pytest.fixture
def compute(clock: FakeClock, pretended: Pretended) -> Compute:
    return Compute(clock, {})


def test_up_says_what_runs_and_what_to_type_next(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    where = tmp_path / "local"
    result = compute("local", "up")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "The local federation is running at https://127.0.0.1:6443 (process 77).\n"
        "  Project:  demo\n"
        "  Cities:   DFW, AMS, SIN\n"
        f"  State:    {where}\n"
        "\n"
        "  Next steps:\n"
        "    Deploy:    compute deploy hello --image=registry.example/hello:1 --city=DFW,AMS --min=2\n"
        f"    kubectl:   export KUBECONFIG={state.kubeconfig_path(where)}\n"
        "    Stop:      compute local down\n"
    )
    assert pretended.calls == [("up", where, 0)]


def test_another_directory_and_port(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    result = compute("local", "up", "--dir", str(tmp_path / "x"), "--port=7000")
    assert pretended.calls == [("up", tmp_path / "x", 7000)]
    assert f"    Stop:      compute local down --dir={tmp_path}/x" in result.lines


def test_what_the_daemon_cannot_do_is_told_in_its_words(compute: Compute, pretended: Pretended) -> None:
    pretended.error = "port 7000 is in use; choose another one with --port"
    result = compute("local", "up", "--port=7000")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Error: port 7000 is in use; choose another one with --port\n"


def test_down_once_and_again(compute: Compute, pretended: Pretended) -> None:
    compute("local", "up")
    assert compute("local", "down").out == "The local federation was stopped.\n"
    again = compute("local", "down")
    assert (again.code, again.out) == (0, "The local federation is not running.\n")


def test_status(compute: Compute, pretended: Pretended) -> None:
    compute("local", "up")
    assert "  Projects:  demo, other" in compute("local", "status").lines
    assert json.loads(compute("local", "status", "-o", "json").out)["port"] == 6443


def test_kubeconfig_is_one_path_and_nothing_else(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    compute("local", "up")
    assert compute("local", "kubeconfig").out == f"{state.kubeconfig_path(tmp_path / 'local')}\n"


@pytest.mark.parametrize("verb", ["status", "kubeconfig"])
def test_not_running_is_an_error_with_the_way_out(compute: Compute, pretended: Pretended, verb: str) -> None:
    result = compute("local", verb, "--dir=/some/where")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Error: the local federation is not running\n\ncompute local up --dir=/some/where\n"


def test_reset_asks_first(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    assert compute("local", "reset").code == 2
    assert compute("local", "reset", tty=True, stdin="n\n").out == "Aborted.\n"
    assert pretended.calls == []
    assert compute("local", "reset", tty=True, stdin="y\n").code == 0
    assert compute("local", "reset", "-y").out == "The local federation was removed.\n"
    assert pretended.calls == [("reset", tmp_path / "local")] * 2


def test_a_backup_goes_to_the_file_that_is_named(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    file = tmp_path / "monday.db"
    result = compute("local", "backup", str(file))
    assert (result.code, result.out) == (0, f"The local federation was copied to {file}.\n")
    assert pretended.calls == [("backup", tmp_path / "local", file)]


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    path = state.Paths(tmp_path / "local").output
    path.parent.mkdir()
    path.write_text("one\ntwo\nthree\n")
    return path


@pytest.mark.parametrize(("flags", "shown"), [([], "one\ntwo\nthree\n"), (["--tail=2"], "two\nthree\n")])
def test_logs_are_shown_also_when_it_does_not_run(compute: Compute, logged: Path, flags: list[str], shown: str) -> None:
    result = compute("local", "logs", *flags)
    assert (result.code, result.out, result.err) == (0, shown, "")


def test_logs_can_be_followed_until_ctrl_c(
    compute: Compute, logged: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = iter(["four\n", "five\n"])

    def sleep(seconds: float) -> None:
        line = next(more, None)
        if line is None:
            raise KeyboardInterrupt
        with logged.open("a") as file:
            file.write(line)

    monkeypatch.setattr(clock, "sleep", sleep)
    result = compute("local", "logs", "-f", "--tail=1")
    assert (result.code, result.out) == (0, "three\nfour\nfive\n")


def test_without_logs_there_is_nothing_to_show(compute: Compute) -> None:
    result = compute("local", "logs")
    assert (result.code, result.err) == (
        1,
        "Error: the local federation has logged nothing yet\n\ncompute local up\n",
    )
