"""How conditions are read and updated. Entry points: `of`, `find`, `is_true`, `updated`, `status_with`."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Raw

from datum_compute.kube.meta import Condition, Json, as_dict, timestamp


class _Status(Protocol):
    @property
    def conditions(self) -> tuple[Condition, ...]: ...


class _Reported(Protocol):
    @property
    def status(self) -> _Status | None: ...


class _Whole(_Reported, Protocol):
    @property
    def status_json(self) -> Raw: ...


def of(object_: _Reported) -> tuple[Condition, ...]:
    """What an object's status says; nothing while it has none."""
    return object_.status.conditions if object_.status is not None else ()


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    for condition in conditions:  # a plain loop, because nothing is called as often
        if condition.type == type_:
            return condition
    return None


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    condition = find(conditions, type_)
    return condition is not None and condition.status == "True"


def is_false(conditions: Iterable[Condition], type_: str) -> bool:
    condition = find(conditions, type_)
    return condition is not None and condition.status == "False"


def updated(conditions: Sequence[Condition], wanted: Sequence[Condition]) -> tuple[Condition, ...]:
    """`conditions` with each of `wanted` in the place of its type.

    The transition time moves only when the status does; an entry that says the same stays as it is, so that comparing
    the result with what was given tells whether there is anything to write.
    """
    by_type = {condition.type: condition for condition in wanted}
    kept = [_merged(condition, by_type.pop(condition.type, condition)) for condition in conditions]
    return (*kept, *by_type.values())


def status_with(object_: _Whole, wanted: Sequence[Condition], **fields: object) -> Json:
    """The whole status of an object, to be written back, with `wanted` among its conditions and these other fields."""
    return as_dict(object_.status_json) | fields | {"conditions": to_json(updated(of(object_), wanted))}


def _merged(before: Condition, after: Condition) -> Condition:
    moved = after.last_transition_time if after.status != before.status else before.last_transition_time
    return Condition(after.type, after.status, after.reason, after.message, moved, after.observed_generation)


def condition(
    type_: str, status: str | bool, reason: str, message: str, *, generation: int, now: datetime
) -> Condition:
    """A condition as it is decided now; `updated` keeps the older transition time where the status did not change."""
    text = str(status)
    return Condition(type_, text, reason, message, now.replace(microsecond=0), generation)


def to_json(conditions: Iterable[Condition]) -> list[Json]:
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": timestamp(condition.last_transition_time),
        }
        | ({"observedGeneration": condition.observed_generation} if condition.observed_generation else {})
        for condition in conditions
    ]
