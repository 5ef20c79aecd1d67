"""Whether an Instance that is being deleted may still run. Entry point: `is_stopping`."""

from datum_compute.api.instance import Instance
from datum_compute.api.labels import CLAIM_FINALIZER, INSTANCE_FINALIZER

_OURS = frozenset((INSTANCE_FINALIZER, CLAIM_FINALIZER))


def is_stopping(instance: Instance) -> bool:
    """Providers hold what they run by their own finalizers, so any finalizer that is not ours may be a provider's.

    None can be added to an object that is being deleted, so an Instance that has stopped stays stopped.
    """
    return instance.metadata.deleting and not _OURS.issuperset(instance.metadata.finalizers)
