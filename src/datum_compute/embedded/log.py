"""The append-only log that everything else is derived from. Entry point: `Log`."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct


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


_TABLE = """
create table if not exists log (
  id integer primary key autoincrement,
  plane text not null, resource text not null, namespace text not null, name text not null,
  type text not null, value blob not null, previous blob not null
)
"""
_APPEND = (
    "insert into log (id, plane, resource, namespace, name, type, value, previous) values (?, ?, ?, ?, ?, ?, ?, ?)"
)
_READ = (
    "select id, plane, resource, namespace, name, type, value, previous from log where id > ? and id <= ? order by id"
)


class Log:
    """One SQLite file, or memory when no path is given. Used by one thread at a time: who opens it may hand it on."""

    def __init__(self, path: Path | None = None) -> None:
        if path is not None:
            # Created here so that the mode is right from the first byte; the file holds every object of every tenant.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._database = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        self._database.execute("pragma journal_mode = wal")
        # With a write-ahead log this survives the death of the process at any point; only a power cut may lose the
        # last commits, and then never half of one.
        self._database.execute("pragma synchronous = normal")
        self._database.execute(_TABLE)

    def append(self, rows: Sequence[Row]) -> None:
        """All rows or none; on return they are committed."""
        self._database.execute("begin immediate")
        try:
            self._database.executemany(_APPEND, map(_fields, rows))
            self._database.execute("commit")
        except BaseException:
            if self._database.in_transaction:  # a full disk may have ended it already
                self._database.execute("rollback")
            raise

    def rows(self, after: int = 0, up_to: int = 2**62) -> Iterator[Row]:
        for fields in self._database.execute(_READ, (after, up_to)):
            yield Row(*fields)

    def close(self) -> None:
        self._database.close()


def _fields(row: Row) -> tuple[object, ...]:
    return (row.revision, row.plane, row.resource, row.namespace, row.name, row.type, row.value, row.previous)
