"""Stored objects, their keys, and the events that change them. Entry points: `Key`, `Record`, `Event`, `Uids`."""

import hashlib
import uuid
from typing import Protocol

import msgspec
from msgspec import Struct

from datum_compute.kube.meta import Json, ObjectMeta


class Key(Struct, frozen=True, order=True):
    plane: str
    resource: str
    namespace: str
    name: str


class Record(Struct, frozen=True):
    """One stored object: its JSON, and its metadata, which the server reads without decoding the rest."""

    value: bytes
    metadata: ObjectMeta

    @property
    def revision(self) -> int:
        return self.metadata.revision

    def object(self) -> Json:
        """A new copy, decoded."""
        value: Json = msgspec.json.decode(self.value)
        return value


class Event(Struct, frozen=True):
    type: str
    key: Key
    record: Record
    previous: Record | None

    @property
    def revision(self) -> int:
        return self.record.revision


class Uids(Protocol):
    """Assigns uids to new objects. `loaded` is called for every creation in the log, new ones included."""

    def assign(self, key: Key, uncommitted: int) -> str:
        """`uncommitted` counts how many times the current batch has created the key already."""
        ...

    def loaded(self, key: Key) -> None: ...


class RandomUids:
    def assign(self, key: Key, uncommitted: int) -> str:
        return str(uuid.uuid4())

    def loaded(self, key: Key) -> None:
        pass


class CountedUids:
    """Uids that depend only on the key and how many times it was created, so that runs can be compared."""

    def __init__(self) -> None:
        self._incarnations: dict[Key, int] = {}

    def loaded(self, key: Key) -> None:
        self._incarnations[key] = self._incarnations.get(key, 0) + 1

    def assign(self, key: Key, uncommitted: int) -> str:
        incarnation = self._incarnations.get(key, 0) + uncommitted + 1
        text = "\0".join((key.plane, key.resource, key.namespace, key.name, str(incarnation)))
        return str(uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=4))


class _WithMetadata(Struct, frozen=True):
    metadata: ObjectMeta


_decode_metadata = msgspec.json.Decoder(_WithMetadata).decode


def record_of(value: bytes) -> Record:
    return Record(value, _decode_metadata(value).metadata)
