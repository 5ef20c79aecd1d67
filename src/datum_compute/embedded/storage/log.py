"""The append-only log that everything else is derived from. Entry point: `Log`."""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

FORMAT = 1  # what this program writes, and the newest that it reads


class LogError(Exception):
    """One sentence: which file, and why it cannot be used. It was not changed."""


class Row(Struct, frozen=True):
    """One change of one object. `revision` is its resourceVersion; deletes are rows as well."""

    revision: int
    plane: str
    resource: str  # plural.group
    namespace: str
    name: str
    type: str  # ADDED, MODIFIED, DELETED
    value: bytes
    previous: bytes  # what watches with a selector need to tell "left the selection" from "changed"


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
_SPARE_PAGES = 1024  # kept for what comes next, instead of giving them back and asking again
_VACUUM_PAGES = 2048  # given back at once, so that nobody waits long


class Log:
    """One SQLite file, or memory when no path is given. Used by one thread at a time: who opens it may hand it on.

    A file is locked for as long as the log is open, and only read until `begin`, so that one that turns out to be
    damaged, or written by a newer program, stays as it is. Raises `LogError`.
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
        with _told(path):
            self._lock = _locked(path)
            try:
                self._database, self.mark = _opened(path)
            except BaseException:
                os.close(self._lock)
                raise

    def begin(self) -> None:
        """From now on it may be written. Whoever has read all of it and found it sound says so."""
        if self._begun:
            return
        if self.path is not None:
            with _told(self.path):
                reading, self._database = self._database, _writable(self.path)
                reading.close()
        else:
            _prepare(self._database)
        self._begun = True

    def append(self, rows: Sequence[Row]) -> None:
        """All rows or none; on return they are committed."""
        self.begin()
        with _transaction(self._database):
            self._database.executemany(_APPEND, map(_fields, rows))

    def rows(self, after: int = 0, up_to: int = 2**62) -> Iterator[Row]:
        for fields in self._database.execute(_READ, (after, up_to)):
            yield Row(*fields)

    def compact(self, mark: int, dead: Iterable[int]) -> None:
        """Drops rows that nothing needs any more; of the others up to the mark, what they replaced.

        From then on the rows up to the mark are the objects that have not changed since, and those after it all that
        has happened since.
        """
        with _transaction(self._database):
            self._database.executemany("delete from log where id = ?", ((revision,) for revision in dead))
            kept = "update log set previous = x'' where id > ? and id <= ? and previous <> x''"
            self._database.execute(kept, (self.mark, mark))
            self._database.execute("update compaction set mark = ?", (mark,))
        self.mark = mark
        (free,) = self._database.execute("pragma freelist_count").fetchone()
        if free > _SPARE_PAGES:
            pages = min(free - _SPARE_PAGES, _VACUUM_PAGES)
            # As a script, because one statement is stepped only once, and each step gives back one page.
            self._database.executescript(f"pragma incremental_vacuum({pages})")

    def close(self) -> None:
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    if database.in_transaction:  # the last one could not even be rolled back
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
    """Copies a log, also one that is being written, as it is at one moment. Raises `LogError`; `to` must be new."""
    with _told(path), closing(_readable(path)) as database:
        _check(path, database)
        with closing(sqlite3.connect(to, isolation_level=None)) as target:
            database.backup(target)
            target.execute("pragma journal_mode = delete")  # one file, whatever else is done with it


def _locked(path: Path) -> int:
    """Held until it is closed. A file beside the log, because closing that one would end the database's own locks."""
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


def _opened(path: Path) -> tuple[sqlite3.Connection, int]:
    # Created here so that the mode is right from the first byte; the file holds every object of every plane.
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.fchmod(descriptor, 0o600)  # one that was copied here may have another
    os.close(descriptor)
    database = _readable(path)
    try:
        if not _tables(database):
            _writable(path).close()
        return database, _check(path, database)
    except BaseException:
        database.close()
        raise


def _readable(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _writable(path: Path) -> sqlite3.Connection:
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
    # With a write-ahead log this survives the death of the process at any point; only a power cut may lose the
    # last commits, and then never half of one.
    database.execute("pragma synchronous = normal")
    if _format(database) != FORMAT:
        with _transaction(database):
            for statement in _TABLES:
                database.execute(statement)
            database.execute(f"pragma user_version = {FORMAT}")


def _check(path: Path, database: sqlite3.Connection) -> int:
    """Where its history begins; raises when it cannot be used."""
    found = _format(database)
    if found > FORMAT:
        raise LogError(
            f"{path} was written by a newer version of this program (format {found}, this one knows {FORMAT}); "
            "use that version, or another file"
        )
    (verdict,) = database.execute("pragma quick_check(1)").fetchone()
    if verdict != "ok":
        raise LogError(f"{path} is damaged: {' '.join(verdict.split())}")
    if "log" not in _tables(database):
        raise LogError(f"{path} is a database of another program")
    if not found:  # from before formats were counted
        return 0
    (mark,) = database.execute("select mark from compaction").fetchone()
    return int(mark)


def _tables(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}


def _format(database: sqlite3.Connection) -> int:
    (found,) = database.execute("pragma user_version").fetchone()
    return int(found)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LogError(f"{path} cannot be used: {reason}") from None


def _fields(row: Row) -> tuple[object, ...]:
    return (row.revision, row.plane, row.resource, row.namespace, row.name, row.type, row.value, row.previous)
