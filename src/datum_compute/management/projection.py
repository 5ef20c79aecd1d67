"""The status of an Instance as its project sees it. Entry point: `projected_status`."""

from typing import Any

from datum_compute.api.instance import Instance
from datum_compute.api.labels import UPSTREAM_GENERATION
from datum_compute.kube.meta import Json, as_dict

_OBSERVED = "observedGeneration"


def projected_status(original: Instance, generation: int) -> Json:
    """The status of a hub Instance, with observed generations translated for a projection of this `generation`.

    Readers compare `observedGeneration` with the generation beside it, and a projection counts its own generations:
    every repaired edit counts twice. The translated value equals the generation where the cell has answered its newest
    spec, and is one less where it has not.
    """
    status = as_dict(original.status_json)
    newest = _newest(original, status)
    observed = {key: _translated(value, newest, generation) for key, value in status.items() if key == _OBSERVED}
    conditions = [
        condition | {_OBSERVED: _translated(condition[_OBSERVED], newest, generation)}
        if _OBSERVED in condition
        else condition
        for condition in status.get("conditions") or ()
    ]
    return status | observed | ({"conditions": conditions} if conditions else {})


def _newest(original: Instance, status: Json) -> int:
    """The generation in the cell; without the annotation, the newest that any part of the status has observed."""
    stamped = original.metadata.annotations.get(UPSTREAM_GENERATION, "")
    if stamped.isdecimal():
        return int(stamped)
    by_conditions: list[int] = [condition.get(_OBSERVED, 0) for condition in status.get("conditions") or ()]
    by_status: int = status.get(_OBSERVED, 0)
    return max([by_status, *by_conditions])


def _translated(observed: Any, newest: int, generation: int) -> int:
    return generation if observed >= newest else generation - 1
