"""What was withdrawn from the hub, kept in the project itself. Entry point: `WithdrawalJournal`.

A hub that is restored to a moment before a deletion has the deployment again, and has lost the note of its withdrawal
with everything else. What is written here outlives that. A project that is restored lacks deployments as well, but also
the entries that would say that it gave them up.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog

from datum_compute.api.labels import WITHDRAWN_UIDS
from datum_compute.kube.errors import ApiError, Forbidden
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import encode
from datum_compute.management.batched_writes import BatchedWrites
from datum_compute.runtime import Handle, Plane

HOME = "default"  # a namespace that every project has, and that nobody can delete
KEPT = 500  # entries; the oldest are dropped, and what they would have let go is held instead

_log = structlog.get_logger(__name__)


class WithdrawalJournal:
    """The uids of the deployments that a project gave up last, in an annotation of its default namespace."""

    def __init__(self) -> None:
        self._batches: BatchedWrites[str] = BatchedWrites()
        self._refused: set[str] = set()  # projects in which nothing may be written

    async def add(self, project: Handle, uid: str) -> None:
        """Returns when the entry is written, or can never be: a deletion does not wait for a right that is missing."""

        async def write_all(uids: list[str]) -> None:
            home = project.informer(NAMESPACE).get("", HOME) or await project.client.get(NAMESPACE, HOME)
            before = entries(home.metadata.annotations)
            after = with_entries(before, uids)
            if after != before:
                annotations = {WITHDRAWN_UIDS: encode(after).decode()}
                await project.write.patch_if_unchanged(home, {"metadata": {"annotations": annotations}})

        try:
            await self._batches.add(project.name, uid, write_all)
            self._refused.discard(project.name)
        except ApiError as error:
            if error.retryable and not isinstance(error, Forbidden):
                raise
            if project.name not in self._refused:
                self._refused.add(project.name)
                _log.warning("withdrawals cannot be recorded in the project", project=project.name, error=str(error))

    def forget(self, project: str) -> None:
        """A project that left; what was said of it may be said again."""
        self._refused.discard(project)

    async def has(self, project: Plane, uid: str) -> bool:
        """Whether the deployment of this uid was withdrawn, by what the project answers now."""
        home = await project.client.get(NAMESPACE, HOME)
        return uid in entries(home.metadata.annotations)


def entries(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Oldest first; none when the annotation is missing or was mangled by somebody."""
    try:
        return tuple(msgspec.json.decode(annotations.get(WITHDRAWN_UIDS, "[]"), type=list[str]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def with_entries(before: Sequence[str], added: Iterable[str]) -> tuple[str, ...]:
    """The newest `KEPT`, each once."""
    return tuple(dict.fromkeys((*before, *filter(None, added))))[-KEPT:]
