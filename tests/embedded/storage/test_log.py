"""The log keeps committed rows, and nothing else."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from datum_compute.embedded.storage.log import Log, LogError, Row, copy


def row(revision: int, value: bytes = b"{}") -> Row:
    return Row(revision, "demo", "workloads.compute.datumapis.com", "default", "web", "MODIFIED", value, b"{}")


def revisions(log: Log) -> list[int]:
    return [row.revision for row in log.rows()]


def test_rows_are_read_as_they_were_appended() -> None:
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
        shutil.copy(file, left)  # as a killed process leaves it: never closed, never checkpointed
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


def test_a_full_disk_leaves_nothing_and_the_log_recovers(tmp_path: Path) -> None:
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
    """A database that fails only at the commit."""

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


# Files that cannot be used


OPEN = "import pathlib, sys; from datum_compute.embedded.storage.log import Log; Log(pathlib.Path(sys.argv[1]))"


def contents(directory: Path) -> dict[str, bytes]:
    """The files of a database, without empty ones and those that only coordinate processes."""
    files = [file for file in directory.iterdir() if not file.name.endswith(("-shm", ".lock"))]
    return {file.name: data for file in files if (data := file.read_bytes())}


def killed(directory: Path, *rows: Row) -> Path:
    """The files that a killed process leaves: never closed, most of the rows still in the write-ahead log."""
    alive = directory / "alive"
    alive.mkdir()
    log = Log(alive / "log.db")
    log.append(rows)
    left = directory / "left"
    left.mkdir()
    for file in alive.glob("log.db*"):
        shutil.copy(file, left)
    log.close()
    return left / "log.db"


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = Log(path)
    log.append([row(1)])
    before = contents(tmp_path)
    second = subprocess.run(
        [sys.executable, "-c", OPEN, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.stderr.splitlines()[-1].endswith(
        f"LogError: {path} is in use by process {os.getpid()}; stop that one first, or use another file"
    )
    assert contents(tmp_path) == before
    log.append([row(2)])
    log.close()
    again = Log(path)
    assert revisions(again) == [1, 2]
    again.close()


def test_a_file_of_a_newer_format_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = killed(tmp_path, row(1))
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma user_version = 7")
    before = contents(path.parent)
    with pytest.raises(LogError, match=r"log.db was written by a newer version of this program \(format 7, .* 1\)"):
        Log(path)
    assert contents(path.parent) == before


def test_a_file_without_a_format_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = Log(path)
    log.append([row(1)])
    log.close()
    with closing(sqlite3.connect(path)) as database:
        database.executescript("drop table compaction; pragma user_version = 0")
    log = Log(path)
    assert (log.mark, revisions(log)) == (0, [1])
    log.append([row(2)])
    log.compact(1, [1])
    log.close()
    log = Log(path)
    assert (log.mark, revisions(log)) == (1, [2])
    log.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"this is not a database, " * 100,
        lambda data: data[: len(data) // 2],
        lambda data: data[:4096] + bytes(len(data) - 4096),
        lambda data: data[:4100] + b"\xff" * 200 + data[4300:],
        lambda data: data[:30] + b"\xff" * 40 + data[70:],
    ],
    ids=["no database", "cut in half", "only zeros", "a torn page", "a torn head"],
)
def test_a_damaged_file_is_refused_and_left_unchanged(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "log.db"
    log = Log(path)
    log.append([row(revision, bytes(3000)) for revision in range(1, 40)])
    log.close()
    path.write_bytes(damage(path.read_bytes()))
    before = contents(tmp_path)
    with pytest.raises(LogError, match=r"log\.db (is damaged|cannot be used): .") as raised:
        Log(path)
    assert "\n" not in str(raised.value)
    assert contents(tmp_path) == before


def test_the_database_of_another_program_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table photos (id integer)")
    before = contents(tmp_path)
    with pytest.raises(LogError, match="is a database of another program"):
        Log(path)
    assert contents(tmp_path) == before


def test_nothing_is_written_before_everything_was_read(tmp_path: Path) -> None:
    path = killed(tmp_path, row(1), row(2))
    before = contents(path.parent)
    log = Log(path)
    assert revisions(log) == [1, 2]
    log.close()
    assert contents(path.parent) == before


def test_a_file_that_others_could_read_gets_a_private_mode(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    Log(path).close()
    path.chmod(0o644)
    Log(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


# Compaction


def test_compaction_drops_dead_rows_and_previous_values_and_is_persistent(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    log.append([row(revision) for revision in range(1, 7)])
    log.compact(4, [1, 2])
    assert [(row.revision, row.previous) for row in log.rows()] == [(3, b""), (4, b""), (5, b"{}"), (6, b"{}")]
    log.close()
    again = Log(tmp_path / "log.db")
    assert (again.mark, revisions(again)) == (4, [3, 4, 5, 6])
    again.close()


def test_compaction_returns_free_space(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = Log(path)
    for revision in range(1, 1001):
        log.append([row(revision, bytes(20_000))])
    log.close()
    full = path.stat().st_size
    log = Log(path)
    log.begin()
    for mark in range(100, 1001, 100):
        log.compact(mark, range(mark - 99, mark + 1))
    log.close()
    assert path.stat().st_size < full / 3


def test_a_compaction_that_fails_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    log.append([row(1), row(2)])

    def dead() -> Iterator[int]:
        yield 1
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        log.compact(1, dead())
    assert (log.mark, revisions(log)) == (0, [1, 2])
    log.append([row(3)])
    log.close()


# Copies


def test_a_copy_of_a_log_in_use_is_consistent(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.db")
    log.append([row(1), row(2)])
    copy(tmp_path / "log.db", tmp_path / "copy.db")
    log.append([row(3)])
    log.close()
    copied = Log(tmp_path / "copy.db")
    assert revisions(copied) == [1, 2]
    copied.append([row(3, b"other")])
    copied.close()


def test_an_unusable_log_cannot_be_copied(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"this is not a database, " * 100)
    with pytest.raises(LogError, match="cannot be used"):
        copy(tmp_path / "log.db", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
