"""The revisions of a workload. Entry points: `Entry`, `Revisions`, `spec_hash`.

Everything here is a value: `Revisions` is the content of the store, and each change returns its next content.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.labels import RESTARTED_AT
from datum_compute.kube.meta import Json

RETAINED = 20
LARGEST_BYTES = 900 * 1024

DEPLOY = "deploy"
SCALE = "scale"
RESTART = "restart"
ROLLBACK = "rollback"
EXTERNAL = "external"


class Entry(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One revision as it is stored. `spec` is the whole spec of the workload as JSON text."""

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
    generation: int = 0  # of the workload that was written; orders concurrent writes

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
        import json

        spec = json.loads(self.spec)
        if not isinstance(spec, dict):
            raise ValueError("it is not an object")
        return spec


class Revisions(Struct, frozen=True):
    """The content of a workload's store: its readable entries, oldest first, and the number of the active one.

    `damaged` are texts that cannot be decoded, by key; they are kept as they are.
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
        """A number that was never used, not even by damaged or pruned entries."""
        numbers = [int(key) for key in self.damaged if key.isdecimal()]
        return max(self.current, *(entry.rev for entry in self.entries), *numbers, 0) + 1

    def find(self, number: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.rev == number), None)

    def changed_outside(self, spec: Json) -> bool:
        """Whether the live spec differs from that of the active entry."""
        return self.active is not None and self.active.spec_hash != spec_hash(spec)

    def with_write(self, entry: Entry, earlier: Entry | None) -> "Revisions":
        """Adds an entry, and before it the spec that it replaced if that was never recorded.

        Concurrent writers may arrive here in either order. The later generation stays active. Whoever comes first
        records the other's spec as an external change, and the other one then completes that entry.
        """
        revisions = self
        if earlier is not None and not revisions._has(earlier):
            revisions = revisions._with(earlier)
        entries = revisions.entries
        unclaimed = next((other for other in entries if other.kind == EXTERNAL and other.same_write(entry)), None)
        if unclaimed is None:
            return revisions._with(entry)
        completed = replace(entry, rev=unclaimed.rev)
        return replace(revisions, entries=tuple(completed if other is unclaimed else other for other in entries))

    def _has(self, earlier: Entry) -> bool:
        same = self.active is not None and self.active.spec_hash == earlier.spec_hash
        return same or any(entry.same_write(earlier) for entry in self.entries)

    def _with(self, entry: Entry) -> "Revisions":
        entry = replace(entry, rev=self.next_number)
        overtaken = self.active is not None and entry.generation < self.active.generation
        return _pruned(replace(self, entries=(*self.entries, entry), current=self.current if overtaken else entry.rev))

    def data(self) -> dict[str, str]:
        """The content to store, by key."""
        readable = {str(entry.rev): msgspec.json.encode(entry).decode() for entry in self.entries}
        return {**self.damaged, **readable}

    def undo_target(self, live: Json) -> Entry | None:
        """The revision to go back to: after an external change the active one, else the newest older one that
        differs."""
        if self.changed_outside(live):
            return self.active
        live_hash = spec_hash(live)
        before = [entry for entry in self.entries if self.active is not None and entry.rev < self.active.rev]
        return next((entry for entry in reversed(before) if entry.spec_hash != live_hash), None)


def spec_hash(spec: Json) -> str:
    """A digest of the spec that ignores the order of keys and the time of the last restart."""
    import json
    from hashlib import sha256

    canonical = json.dumps(_without_restart(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(canonical.encode()).hexdigest()


def _without_restart(spec: Json) -> Json:
    """The spec without the time of the last restart, and without maps that contained nothing else."""
    without: Json = _without(spec, "template", "metadata", "annotations", RESTARTED_AT)
    return without


def _without(value: Any, key: str, *rest: str) -> Any:
    if not isinstance(value, dict) or key not in value:
        return value
    inner = _without(value[key], *rest) if rest else None
    others = {name: item for name, item in value.items() if name != key}
    return others if inner in (None, {}) else value | {key: inner}


def _pruned(revisions: Revisions) -> Revisions:
    """The newest entries that fit; the active one is always retained."""
    while len(revisions.entries) > 1 and (
        len(revisions.entries) > RETAINED
        or sum(len(text.encode()) for text in revisions.data().values()) > LARGEST_BYTES
    ):
        oldest = next(entry for entry in revisions.entries if entry.rev != revisions.current)
        revisions = replace(revisions, entries=tuple(entry for entry in revisions.entries if entry is not oldest))
    return revisions
