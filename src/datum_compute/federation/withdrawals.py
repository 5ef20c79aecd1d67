"""Which deployments were withdrawn from the hub, as noted on their hub namespace. Entry points: `Note`, `notes_of`.

A note is written before the hub deployment is deleted. It is the only proof that a copy in a cell may be removed: a hub
that was restored from a backup lacks deployments as well, and nobody withdrew those.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from datum_compute.api.karmada import ORIGINAL_UID
from datum_compute.api.labels import UPSTREAM_UID, WITHDRAWN
from datum_compute.kube.kinds import Namespace
from datum_compute.kube.meta import KubeObject, encode
from datum_compute.runtime import Change

KEPT = 100  # notes per namespace; the oldest are dropped, and the copies they named are held instead of removed


class Note(Struct, frozen=True, omit_defaults=True):
    """One withdrawn deployment, by the uids of the hub's object and of the project's.

    The hub's uid is empty if the hub no longer had the deployment. The project's still identifies a copy after the
    deployment was created again on a restored hub.
    """

    name: str
    uid: str = ""
    upstream: str = ""

    def names(self, copy: KubeObject) -> bool:
        """Whether this is the note of the deployment that `copy` was made from."""
        annotations = copy.metadata.annotations
        return copy.name == self.name and (
            (self.uid != "" and annotations.get(ORIGINAL_UID) == self.uid)
            or (self.upstream != "" and annotations.get(UPSTREAM_UID) == self.upstream)
        )


def notes_of(annotations: Mapping[str, str]) -> tuple[Note, ...]:
    """Oldest first; empty when the annotation is missing or malformed."""
    try:
        return tuple(msgspec.json.decode(annotations.get(WITHDRAWN, "[]"), type=list[Note]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def notes_changed(change: Change[Namespace]) -> bool:
    """Whether a namespace is new or its notes changed."""
    if change.before is None or change.after is None:
        return change.after is not None
    return change.before.metadata.annotations.get(WITHDRAWN) != change.after.metadata.annotations.get(WITHDRAWN)


def with_notes(notes: Sequence[Note], added: Iterable[Note]) -> tuple[Note, ...]:
    """The newest `KEPT` notes, without duplicates. One without the hub's uid adds nothing to one that has it."""
    known = {(note.name, note.upstream) for note in notes if note.upstream}
    new = [note for note in added if note.uid or (note.name, note.upstream) not in known]
    return tuple(dict.fromkeys((*notes, *new)))[-KEPT:]


def without_upstream(notes: Sequence[Note], upstream: str) -> tuple[Note, ...]:
    """The notes without those of a project deployment that exists again, as after its project was restored."""
    return tuple(note for note in notes if not upstream or note.upstream != upstream)


def annotation(notes: Sequence[Note]) -> dict[str, str | None]:
    """The notes as a merge patch of annotations."""
    return {WITHDRAWN: encode(notes).decode() if notes else None}
