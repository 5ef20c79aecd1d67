"""Which changes of an Instance's conditions are worth a warning. Entry point: `new_warnings`."""

from datum_compute.api import reasons
from datum_compute.api.instance import GATES, QUOTA_GRANTED, READY, Instance
from datum_compute.cell.gates import gates
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition

COMPONENT = "instance-controller"  # the reporter of events about Instances
FEDERATED = "Federated"  # present only while an Instance cannot be copied to the hub


def new_warnings(before: Instance, after: Instance) -> list[tuple[str, str]]:
    """Reason and message of each warning; only new reasons count, because polling would repeat the others."""
    warnings: list[tuple[str, str]] = []
    for type_ in (QUOTA_GRANTED, READY, FEDERATED):
        was, now = _find(before, type_), _find(after, type_)
        is_new = now is not None and (was is None or was.reason != now.reason)
        if now is not None and is_new and (now.reason in reasons.WARNINGS or type_ == FEDERATED):
            warnings.append((now.reason, now.message))
    return warnings + _unknown_gates(before, after)


def _unknown_gates(before: Instance, after: Instance) -> list[tuple[str, str]]:
    """A warning once the only gates left are ones that no controller of the cell removes."""
    left = gates(after)
    was, now = _find(before, READY), _find(after, READY)
    if not left or set(left) & set(GATES) or now is None or (was is not None and was.message == now.message):
        return []
    return [(reasons.SCHEDULING_GATES_PRESENT, f"Nothing here removes the scheduling gates {', '.join(left)}")]


def _find(instance: Instance, type_: str) -> Condition | None:
    return conditions.find(conditions.of(instance), type_)
