"""The scheduling gates that keep an Instance from starting. Entry points: `gates`, `closed_gates`, `without_gate`."""

from collections.abc import Sequence

from datum_compute.api import reasons
from datum_compute.api.instance import NETWORK_GATE, QUOTA_GATE, QUOTA_GRANTED, READY, Instance
from datum_compute.kube.meta import Json


def gates(instance: Instance) -> list[str]:
    """An Instance without a controller block is legal and has no gates."""
    return [gate.name for gate in instance.spec.controller.scheduling_gates] if instance.spec.controller else []


def closed_gates(names: Sequence[str], status: Json) -> list[tuple[str, str]]:
    """Each gate with the reason for which it is closed, as the status of the Instance gives it."""
    given = {condition["type"]: condition["reason"] for condition in status.get("conditions", ())}
    is_failed = given.get(READY) == reasons.NETWORK_FAILED_TO_CREATE
    why = {
        QUOTA_GATE: given.get(QUOTA_GRANTED, reasons.PENDING_EVALUATION),
        NETWORK_GATE: reasons.NETWORK_FAILED_TO_CREATE if is_failed else reasons.SCHEDULING_GATES_PRESENT,
    }
    return [(name, why.get(name, reasons.SCHEDULING_GATES_PRESENT)) for name in names]


def without_gate(instance: Instance, name: str) -> Json:
    """A patch for `patch_if_unchanged`, because it replaces the whole list."""
    left = [{"name": gate} for gate in gates(instance) if gate != name]
    return {"spec": {"controller": {"schedulingGates": left}}}
