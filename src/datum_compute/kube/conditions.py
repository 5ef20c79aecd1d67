"""Reads and updates conditions. Entry points: `of`, `find`, `is_true`, `updated`, `status_with`."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Raw

from datum_compute.kube.meta import Condition, Json, as_dict, timestamp


class _Status(Protocol):
    @property
    def conditions(self) -> tuple[Condition, ...]: ...


class _WithStatus(Protocol):
    @property
    def status(self) -> _Status | None: ...


class _WithRawStatus(_WithStatus, Protocol):
    @property
    def status_json(self) -> Raw: ...


def of(object_: _WithStatus) -> tuple[Condition, ...]:
    """The conditions in an object's status; none while it has no status."""
    return object_.status.conditions if object_.status is not None else ()


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    for condition in conditions:  # a plain loop: this is called more often than anything else
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
    """`conditions` with each of `wanted` in place of the one of its type.

    The transition time changes only with the status. A condition that says the same as before stays equal, so comparing
    the result with `conditions` shows whether there is anything to write.
    """
    by_type = {condition.type: condition for condition in wanted}
    merged = [_merged(condition, by_type.pop(condition.type, condition)) for condition in conditions]
    return (*merged, *by_type.values())


def status_with(object_: _WithRawStatus, wanted: Sequence[Condition], **fields: object) -> Json:
    """The whole status of an object, to be written back, with the `wanted` conditions and these other fields."""
    return as_dict(object_.status_json) | fields | {"conditions": to_json(updated(of(object_), wanted))}


def _merged(before: Condition, after: Condition) -> Condition:
    transition = after.last_transition_time if after.status != before.status else before.last_transition_time
    return Condition(after.type, after.status, after.reason, after.message, transition, after.observed_generation)


def condition(
    type_: str, status: str | bool, reason: str, message: str, *, generation: int, now: datetime
) -> Condition:
    """A condition decided now; `updated` keeps the older transition time where the status did not change."""
    return Condition(type_, str(status), reason, message, now.replace(microsecond=0), generation)


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
