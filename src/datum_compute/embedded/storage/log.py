"""The append-only log from which all state is derived. Entry point: `Log`."""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

FORMAT = 1  # written by this program, and the newest it can read


class LogError(Exception):
    """A file that cannot be used, and why, in one sentence. The file was not changed."""


class Row(Struct, frozen=True):
    """One change to one object. `revision` is its resourceVersion; deletions are rows too."""

    revision: int
    plane: str
    resource: str  # plural.group
    namespace: str
    name: str
    type: str  # ADDED, MODIFIED, DELETED
    value: bytes
    previous: bytes  # lets a watch with a selector tell "left the selection" from "changed"


_TABLES = (
    """
    create table if not exists log (
      id integer primary key autoincrement,
      plane text not null, resource text not null, namespace text not null, name text not null,
      type text not null, value blob not null, previous blob not null
    )
    """,
    "create table if not exists compaction (mark integer not null)",
    "insert into compaction (mark) select 0 where not exists (select 1 from compaction)",
)
_APPEND = (
    "insert into log (id, plane, resource, namespace, name, type, value, previous) values (?, ?, ?, ?, ?, ?, ?, ?)"
)
_READ = (
    "select id, plane, resource, namespace, name, type, value, previous from log where id > ? and id <= ? order by id"
)
_SPARE_PAGES = 1024  # kept for the next rows instead of being returned and allocated again
_VACUUM_PAGES = 2048  # returned at once, so that no write waits long


class Log:
    """One SQLite file, or memory without a path. Used by one thread at a time, not necessarily the one that opened it.

    The file is locked while the log is open, and only read until `begin`, so that a file that is damaged or was
    written by a newer program stays untouched. Raises `LogError`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock: int | None = None
        self._begun = False
        if path is None:
            self._database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self.mark = 0
            self.begin()
            return
        with _as_log_error(path):
            self._lock = _acquire_lock(path)
            try:
                self._database, self.mark = _open(path)
            except BaseException:
                os.close(self._lock)
                raise

    def begin(self) -> None:
        """Allows writes. Called by whoever has read all of the log and found it sound."""
        if self._begun:
            return
        if self.path is not None:
            with _as_log_error(self.path):
                reading, self._database = self._database, _connect_to_write(self.path)
                reading.close()
        else:
            _prepare(self._database)
        self._begun = True

    def append(self, rows: Sequence[Row]) -> None:
        """Commits all rows, or none."""
        self.begin()
        with _transaction(self._database):
            self._database.executemany(_APPEND, map(_fields, rows))

    def rows(self, after: int = 0, up_to: int = 2**62) -> Iterator[Row]:
        for fields in self._database.execute(_READ, (after, up_to)):
            yield Row(*fields)

    def compact(self, mark: int, dead: Iterable[int]) -> None:
        """Deletes the dead rows, and the previous values of the others up to the mark.

        Afterwards the rows up to the mark are the objects that have not changed since, and the rows after it are every
        change since.
        """
        with _transaction(self._database):
            self._database.executemany("delete from log where id = ?", ((revision,) for revision in dead))
            survivors = "update log set previous = x'' where id > ? and id <= ? and previous <> x''"
            self._database.execute(survivors, (self.mark, mark))
            self._database.execute("update compaction set mark = ?", (mark,))
        self.mark = mark
        (free,) = self._database.execute("pragma freelist_count").fetchone()
        if free > _SPARE_PAGES:
            pages = min(free - _SPARE_PAGES, _VACUUM_PAGES)
            # As a script: a single statement would be stepped once, and each step returns one page.
            self._database.executescript(f"pragma incremental_vacuum({pages})")

    def close(self) -> None:
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    if database.in_transaction:  # the rollback of the last one failed
        database.execute("rollback")
    database.execute("begin immediate")
    try:
        yield
        database.execute("commit")
    except BaseException:
        if database.in_transaction:  # a full disk may have ended it already
            database.execute("rollback")
        raise


def copy(path: Path, to: Path) -> None:
    """Copies a consistent snapshot of a log, even while it is being written. Raises `LogError`; `to` must not exist."""
    with _as_log_error(path), closing(_connect_to_read(path)) as database:
        _check(path, database)
        with closing(sqlite3.connect(to, isolation_level=None)) as target:
            database.backup(target)
            target.execute("pragma journal_mode = delete")  # a single file, without a write-ahead log beside it


def _acquire_lock(path: Path) -> int:
    """A lock that is held until its descriptor is closed.

    It is a file beside the log, because closing a descriptor of the log itself would drop SQLite's locks.
    """
    beside = path.with_name(f"{path.name}.lock")
    lock = os.open(beside, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace")
        os.close(lock)
        raise LogError(f"{path} is in use by process {holder}; stop that one first, or use another file") from None
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _open(path: Path) -> tuple[sqlite3.Connection, int]:
    # Created here so that the mode is right from the first byte: the file holds every object of every plane.
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.fchmod(descriptor, 0o600)  # a file that was copied here may have another mode
    os.close(descriptor)
    database = _connect_to_read(path)
    try:
        if not _table_names(database):
            _connect_to_write(path).close()
        return database, _check(path, database)
    except BaseException:
        database.close()
        raise


def _connect_to_read(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _connect_to_write(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        _prepare(database)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection) -> None:
    database.execute("pragma auto_vacuum = incremental")
    database.execute("pragma journal_mode = wal")
    # With a write-ahead log this survives the death of the process at any point; only a power failure can lose the
    # last commits, and never part of one.
    database.execute("pragma synchronous = normal")
    if _format_version(database) != FORMAT:
        with _transaction(database):
            for statement in _TABLES:
                database.execute(statement)
            database.execute(f"pragma user_version = {FORMAT}")


def _check(path: Path, database: sqlite3.Connection) -> int:
    """The revision after which history is complete; raises when the file cannot be used."""
    version = _format_version(database)
    if version > FORMAT:
        raise LogError(
            f"{path} was written by a newer version of this program (format {version}, this one knows {FORMAT}); "
            "use that version, or another file"
        )
    (verdict,) = database.execute("pragma quick_check(1)").fetchone()
    if verdict != "ok":
        raise LogError(f"{path} is damaged: {' '.join(verdict.split())}")
    if "log" not in _table_names(database):
        raise LogError(f"{path} is a database of another program")
    if not version:  # written before formats were numbered
        return 0
    (mark,) = database.execute("select mark from compaction").fetchone()
    return int(mark)


def _table_names(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}


def _format_version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("pragma user_version").fetchone()
    return int(version)


@contextmanager
def _as_log_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LogError(f"{path} cannot be used: {reason}") from None


def _fields(row: Row) -> tuple[object, ...]:
    return (row.revision, row.plane, row.resource, row.namespace, row.name, row.type, row.value, row.previous)
