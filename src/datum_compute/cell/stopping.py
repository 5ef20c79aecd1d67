"""Whether an Instance that is being deleted may still run. Entry point: `is_stopping`."""

from datum_compute.api.instance import Instance
from datum_compute.api.labels import CLAIM_FINALIZER, INSTANCE_FINALIZER

_OURS = frozenset((INSTANCE_FINALIZER, CLAIM_FINALIZER))


def is_stopping(instance: Instance) -> bool:
    """Providers hold what they run by finalizers of their own, so any that is not ours may stand for one of them.

    None can be added to an object that is being deleted: once it has stopped, it stays so.
    """
    return instance.metadata.deleting and not _OURS.issuperset(instance.metadata.finalizers)
