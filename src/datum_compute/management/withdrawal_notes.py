"""Notes of withdrawn deployments on their hub namespaces, where cells look for them, and policies nobody uses any more.

Entry points: `WithdrawalNotes`, `remove_note`, `release_policy`.
"""

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import TOPOLOGY_CITY, WITHDRAWN
from datum_compute.api.names import is_name, policy_name
from datum_compute.federation.withdrawals import Note, annotation, notes_of, with_notes, without_upstream
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.management.batched_writes import BatchedWrites
from datum_compute.runtime import Handle, Writer


class WithdrawalNotes:
    """Passes that withdraw from one namespace at the same time share a write, because Karmada copies every change of a
    namespace to every cell.
    """

    def __init__(self) -> None:
        self._batches: BatchedWrites[Note] = BatchedWrites()

    async def add(self, hub: Handle, namespace: str, note: Note) -> None:
        """Returns once the note is on the namespace. Without a namespace there is nothing to withdraw."""

        async def write_all(notes: list[Note]) -> None:
            home = hub.informer(NAMESPACE).get("", namespace) or await hub.client.find(NAMESPACE, namespace)
            if home is not None:
                before = notes_of(home.metadata.annotations)
                await _replace(hub.write, home, before, with_notes(before, notes))

        await self._batches.add(namespace, note, write_all)


async def remove_note(write: Writer, home: Namespace, upstream: str) -> None:
    """Removes the note of a deployment that its project has again: cells would remove what is requested."""
    if upstream not in home.metadata.annotations.get(WITHDRAWN, ""):
        return  # nearly always the case, and cheap to check on every pass
    before = notes_of(home.metadata.annotations)
    await _replace(write, home, before, without_upstream(before, upstream))


async def release_policy(hub: Handle, namespace: str, city: str, *, leaving: str) -> None:
    """Deletes the policy of a city that no live deployment uses. A deployment created meanwhile ensures it again."""
    if not is_name(policy_name(city)):
        return  # such a policy cannot exist
    if not any(
        user.metadata.labels.get(TOPOLOGY_CITY) == city and user.name != leaving
        for user in hub.informer(WORKLOAD_DEPLOYMENT).all(namespace)
        if not user.metadata.deleting
    ):
        await hub.write.delete_named(PROPAGATION_POLICY, policy_name(city), namespace)


async def _replace(write: Writer, home: Namespace, before: tuple[Note, ...], after: tuple[Note, ...]) -> None:
    if after != before:
        await write.patch_if_unchanged(home, {"metadata": {"annotations": annotation(after)}})
