"""The log keeps what was committed, and nothing else."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from datum_compute.embedded.log import Log, Row


def row(revision: int, value: bytes = b"{}") -> Row:
    return Row(revision, "demo", "workloads.compute.datumapis.com", "default", "web", "MODIFIED", value, b"{}")


def revisions(log: Log) -> list[int]:
    return [row.revision for row in log.rows()]


def test_rows_come_back_as_they_were_appended_in_order() -> None:
    log = Log()
    rows = [row(1, b'{"a":1}'), row(2, b""), row(3, "{…}".encode())]
    log.append(rows[:1])
    log.append(rows[1:])
    assert list(log.rows()) == rows


def test_rows_between_two_revisions() -> None:
    log = Log()
    log.append([row(revision) for revision in range(1, 6)])
    assert [row.revision for row in log.rows(after=1, up_to=4)] == [2, 3, 4]


def test_appending_nothing_changes_nothing() -> None:
    log = Log()
    log.append([])
    assert revisions(log) == []


def test_rows_survive_close_and_reopen(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    log.append([row(1), row(2)])
    log.close()

    reopened = Log(tmp_path / "log.db")
    assert list(reopened.rows()) == [row(1), row(2)]
    reopened.append([row(3)])
    assert revisions(reopened) == [1, 2, 3]
    reopened.close()


def test_rows_survive_the_death_of_the_process(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    log.append([row(1), row(2)])
    left = tmp_path / "left"
    left.mkdir()
    for file in tmp_path.glob("log.db*"):
        shutil.copy(file, left)  # what a process that is killed leaves behind: never closed, never checkpointed
    log.close()

    reopened = Log(left / "log.db")
    assert revisions(reopened) == [1, 2]
    reopened.close()


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = Log(tmp_path / "log.db")
        log.append([row(1)])
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        log.close()
    finally:
        os.umask(before)
    assert modes["log.db"] == 0o600
    assert set(modes.values()) == {0o600}


def test_an_append_that_fails_leaves_nothing() -> None:
    log = Log()
    log.append([row(1)])
    with pytest.raises(sqlite3.IntegrityError):
        log.append([row(2), row(1)])
    assert revisions(log) == [1]
    log.append([row(2)])
    assert revisions(log) == [1, 2]


def test_a_full_disk_leaves_nothing_and_the_log_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    log.append([row(1)])
    log._database.execute("pragma max_page_count = 8")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        log.append([row(2), row(3, bytes(100_000))])
    log._database.execute("pragma max_page_count = 1000000")
    assert revisions(log) == [1]
    log.append([row(2)])
    assert revisions(log) == [1, 2]
    log.close()


class _FailsToCommit:
    """A database that finds out only at the end that it cannot write."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def execute(self, statement: str) -> sqlite3.Cursor:
        if statement == "commit":
            raise sqlite3.OperationalError("disk I/O error")
        return self._database.execute(statement)


def test_a_commit_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    with monkeypatch.context() as patched:
        patched.setattr(log, "_database", _FailsToCommit(log._database))
        with pytest.raises(sqlite3.OperationalError):
            log.append([row(1)])
    assert revisions(log) == []
    log.append([row(1)])
    assert revisions(log) == [1]
