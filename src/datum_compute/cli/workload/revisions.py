"""The revisions of a workload, and what may be said of them. Entry points: `Entry`, `Revisions`, `spec_hash`.

Everything here is a value: `Revisions` is what the store held, and each change gives the store's next content.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.labels import RESTARTED_AT
from datum_compute.kube.meta import Json

KEPT = 20
LARGEST_BYTES = 900 * 1024

DEPLOY = "deploy"
SCALE = "scale"
RESTART = "restart"
ROLLBACK = "rollback"
EXTERNAL = "external"


class Entry(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One revision, as it is stored. `spec` is the JSON text of the whole spec of the workload."""

    rev: int
    timestamp: str
    image: str
    changes: str
    actor: str
    template_hash: str
    spec: str
    kind: str = ""
    spec_hash: str = ""
    source_rev: int = 0
    generation: int = 0  # of the workload that was written: tells the order of writers who met

    @property
    def time(self) -> datetime | None:
        try:
            return datetime.fromisoformat(self.timestamp)
        except ValueError:
            return None

    def same_write(self, other: "Entry") -> bool:
        return self.generation == other.generation and self.spec_hash == other.spec_hash

    def spec_json(self) -> Json:
        """Raises `ValueError` when the text is damaged."""
        spec = json.loads(self.spec)
        if not isinstance(spec, dict):
            raise ValueError("it is no object")
        return spec


class Revisions(Struct, frozen=True):
    """What a workload's store holds: the entries that can be read, oldest first, and the number that is active.

    `damaged` are the texts that cannot be read, by their keys; they are left where they are.
    """

    entries: tuple[Entry, ...] = ()
    current: int = 0
    damaged: Mapping[str, str] = {}

    @classmethod
    def of(cls, data: Mapping[str, str], current: str) -> "Revisions":
        entries: list[Entry] = []
        damaged: dict[str, str] = {}
        for key, text in data.items():
            try:
                entry = msgspec.json.decode(text, type=Entry)
            except msgspec.MsgspecError:
                damaged[key] = text
                continue
            if key == str(entry.rev) and entry.rev > 0:
                entries.append(entry)
            else:
                damaged[key] = text
        entries.sort(key=lambda entry: entry.rev)
        return cls(tuple(entries), int(current) if current.isdecimal() else 0, damaged)

    @property
    def active(self) -> Entry | None:
        return self.find(self.current) or (self.entries[-1] if self.entries else None)

    @property
    def next_number(self) -> int:
        """One that was never used: numbers of damaged entries and of pruned ones count as well."""
        numbers = [int(key) for key in self.damaged if key.isdecimal()]
        return max(self.current, *(entry.rev for entry in self.entries), *numbers, 0) + 1

    def find(self, number: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.rev == number), None)

    def changed_outside(self, spec: Json) -> bool:
        """Whether the live spec is not the one that was last written with an entry."""
        return self.active is not None and self.active.spec_hash != spec_hash(spec)

    def with_write(self, entry: Entry, earlier: Entry | None) -> "Revisions":
        """With what was written, and before it what it replaced when nobody had put that here.

        Two who write at once may come here in either order. The later workload stays active; and whoever came first
        found the other's spec without knowing whose it was, so the other one completes that entry.
        """
        known = self
        if earlier is not None and not known._has(earlier):
            known = known._with(earlier)
        unclaimed = next((one for one in known.entries if one.kind == EXTERNAL and one.same_write(entry)), None)
        if unclaimed is None:
            return known._with(entry)
        completed = replace(entry, rev=unclaimed.rev)
        return replace(known, entries=tuple(completed if one is unclaimed else one for one in known.entries))

    def _has(self, earlier: Entry) -> bool:
        same = self.active is not None and self.active.spec_hash == earlier.spec_hash
        return same or any(one.same_write(earlier) for one in self.entries)

    def _with(self, entry: Entry) -> "Revisions":
        entry = replace(entry, rev=self.next_number)
        overtaken = self.active is not None and entry.generation < self.active.generation
        return _pruned(replace(self, entries=(*self.entries, entry), current=self.current if overtaken else entry.rev))

    def data(self) -> dict[str, str]:
        """The content to store, as texts by key."""
        readable = {str(entry.rev): msgspec.json.encode(entry).decode() for entry in self.entries}
        return {**self.damaged, **readable}

    def undo_target(self, live: Json) -> Entry | None:
        """What was asked before: after an outside change the active entry, else the newest before it that differs."""
        if self.changed_outside(live):
            return self.active
        now = spec_hash(live)
        before = [entry for entry in self.entries if self.active is not None and entry.rev < self.active.rev]
        return next((entry for entry in reversed(before) if entry.spec_hash != now), None)


def spec_hash(spec: Json) -> str:
    """The same for specs that ask for the same: key order does not count, nor does a restart."""
    canonical = json.dumps(_without_restart(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(canonical.encode()).hexdigest()


def _without_restart(spec: Json) -> Json:
    """Maps that held nothing but the time of the restart go with it, as if there had never been one."""
    without: Json = _without(spec, "template", "metadata", "annotations", RESTARTED_AT)
    return without


def _without(value: Any, key: str, *rest: str) -> Any:
    if not isinstance(value, dict) or key not in value:
        return value
    inner = _without(value[key], *rest) if rest else None
    others = {name: item for name, item in value.items() if name != key}
    return others if inner in (None, {}) else value | {key: inner}


def _pruned(revisions: Revisions) -> Revisions:
    """The newest that fit; the active one always stays."""
    while len(revisions.entries) > 1 and (
        len(revisions.entries) > KEPT or sum(len(text.encode()) for text in revisions.data().values()) > LARGEST_BYTES
    ):
        oldest = next(entry for entry in revisions.entries if entry.rev != revisions.current)
        revisions = replace(revisions, entries=tuple(one for one in revisions.entries if one is not oldest))
    return revisions
