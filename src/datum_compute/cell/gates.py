"""The scheduling gates that keep an Instance from starting. Entry points: `gates`, `without_gate`."""

from datum_compute.api.instance import NETWORK_GATE, QUOTA_GATE, Instance
from datum_compute.kube.meta import Json

REFERENCED_DATA_GATE = "ReferencedData"
KNOWN = (NETWORK_GATE, QUOTA_GATE, REFERENCED_DATA_GATE)


def gates(instance: Instance) -> list[str]:
    """An Instance without a controller block is legal and has no gates."""
    return [gate.name for gate in instance.spec.controller.scheduling_gates] if instance.spec.controller else []


def without_gate(instance: Instance, name: str) -> Json:
    """A patch for `patch_if_unchanged`, because it replaces the whole list."""
    left = [{"name": gate} for gate in gates(instance) if gate != name]
    return {"spec": {"controller": {"schedulingGates": left}}}
