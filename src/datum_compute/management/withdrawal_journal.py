"""A record in each project of what was withdrawn from the hub. Entry point: `WithdrawalJournal`.

A hub that is restored to a moment before a deletion has the deployment again and has lost the note of its withdrawal.
The journal survives that because it is stored in the project. A project that was restored itself lacks the journal
entries as well as the deployments, so nothing shows that it gave them up.
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

HOME = "default"  # a namespace that every project has and nobody can delete
KEPT = 500  # entries; the oldest are dropped, and the deployments they named are held instead of removed

_log = structlog.get_logger(__name__)


class WithdrawalJournal:
    """The uids of the deployments that a project withdrew last, in an annotation of its default namespace."""

    def __init__(self) -> None:
        self._batches: BatchedWrites[str] = BatchedWrites()
        self._refused: set[str] = set()  # projects that refuse the write

    async def add(self, project: Handle, uid: str) -> None:
        """Returns once the entry is written, or never can be: a deletion does not wait for a missing permission."""

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
        self._refused.discard(project)

    async def has(self, project: Plane, uid: str) -> bool:
        """Whether the deployment with this uid was withdrawn, read from the project's server."""
        home = await project.client.get(NAMESPACE, HOME)
        return uid in entries(home.metadata.annotations)


def entries(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Oldest first; empty when the annotation is missing or malformed."""
    try:
        return tuple(msgspec.json.decode(annotations.get(WITHDRAWN_UIDS, "[]"), type=list[str]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def with_entries(before: Sequence[str], added: Iterable[str]) -> tuple[str, ...]:
    """The newest `KEPT`, without duplicates."""
    return tuple(dict.fromkeys((*before, *filter(None, added))))[-KEPT:]
