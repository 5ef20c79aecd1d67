"""`python -m engine` before anything is built or up."""

import fcntl
from pathlib import Path

import pytest

from engine.__main__ import main


def engine(folder: Path, *arguments: str) -> int:
    return main(["--folder", str(folder), *arguments])


def test_status_before_up_shows_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(tmp_path, "status") == 1
    assert capsys.readouterr().out == "not up\n"


def test_down_before_up_succeeds(tmp_path: Path) -> None:
    assert engine(tmp_path, "down") == 0
    assert engine(tmp_path, "down", "--remove") == 0


@pytest.mark.parametrize("command", ["stop", "start", "pause", "resume", "kill"])
def test_an_unknown_process_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert engine(tmp_path, command, "etcd") == 1
    assert 'there is no process "etcd"' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["snapshot", "restore"])
def test_only_planes_with_an_etcd_of_their_own_are_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit):
        engine(tmp_path, command, "pop-dfw", "before")
    assert "choose from" in capsys.readouterr().err
    assert engine(tmp_path, command, "downstream", "before") == 1
    reasons = {"snapshot": "downstream-etcd does not run", "restore": 'there is no snapshot "before" of downstream'}
    assert capsys.readouterr().err.startswith(reasons[command])


def test_an_unknown_plane_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(tmp_path, "kubeconfig", "pop-ams") == 1
    assert capsys.readouterr().err == 'the administrator has no plane "pop-ams"; known: none yet\n'
    assert engine(tmp_path, "kubeconfig", "pop-ams", "--as", "user") == 1
    assert capsys.readouterr().err == 'user has no plane "pop-ams"; known: none yet\n'


def test_before_up_there_is_no_kubeconfig_and_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(tmp_path, "kubeconfig") == 0
    assert engine(tmp_path, "logs") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("cell", ["pop-ams", "=AMS", "pop-ams="])
def test_a_cell_needs_a_name_and_a_city(tmp_path: Path, capsys: pytest.CaptureFixture[str], cell: str) -> None:
    with pytest.raises(SystemExit):
        engine(tmp_path, "up", "--cell", cell)
    assert "is not NAME=CITY, such as pop-ams=AMS" in capsys.readouterr().err


def test_nodes_are_for_a_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(tmp_path, "up", "--kwok", "pop-ams") == 1
    assert capsys.readouterr().err == '"pop-ams" is no cell; add it with --cell pop-ams=CITY\n'


def test_concurrent_commands_do_not_interfere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert engine(tmp_path, "down") == 1
    assert "another call is at work on" in capsys.readouterr().err
