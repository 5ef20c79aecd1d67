"""What a project is shown of an Instance's status. Entry point: `projected_status`."""

from typing import Any

from datum_compute.api.instance import Instance
from datum_compute.api.labels import UPSTREAM_GENERATION
from datum_compute.kube.meta import Json, as_dict

_OBSERVED = "observedGeneration"


def projected_status(original: Instance, generation: int) -> Json:
    """The status of a hub Instance, with what it answers said in terms of a projection of this `generation`.

    Readers hold `observedGeneration` against the generation beside it, and that of a projection goes its own way: every
    edit that is repaired counts twice. It reads the same as the generation where the cell has answered its newest spec,
    and one less where it has not.
    """
    status = as_dict(original.status_json)
    newest = _newest(original, status)
    answers = {key: _translated(value, newest, generation) for key, value in status.items() if key == _OBSERVED}
    conditions = [
        condition | {_OBSERVED: _translated(condition[_OBSERVED], newest, generation)}
        if _OBSERVED in condition
        else condition
        for condition in status.get("conditions") or ()
    ]
    return status | answers | ({"conditions": conditions} if conditions else {})


def _newest(original: Instance, status: Json) -> int:
    """The generation in the cell; a cell that does not tell is taken to have answered once something of it has."""
    stamped = original.metadata.annotations.get(UPSTREAM_GENERATION, "")
    if stamped.isdecimal():
        return int(stamped)
    observed: list[int] = [condition.get(_OBSERVED, 0) for condition in status.get("conditions") or ()]
    whole: int = status.get(_OBSERVED, 0)
    return max([whole, *observed])


def _translated(observed: Any, newest: int, generation: int) -> int:
    return generation if observed >= newest else generation - 1
