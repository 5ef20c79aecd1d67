"""The status of an Instance as its project sees it: generations are those of the projection."""

import pytest

from datum_compute.api.instance import Instance
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.management.projection import projected_status


def original(stamped: str | None, status: Json) -> Instance:
    annotations = {} if stamped is None else {"compute.datumapis.com/upstream-generation": stamped}
    metadata = {"name": "web-0", "namespace": "ns", "generation": 9, "annotations": annotations}
    return decode(encode({"metadata": metadata, "spec": {}, "status": status}), Instance)


def condition(type_: str, observed: int | None = None) -> Json:
    condition = {"type": type_, "status": "True", "reason": "Available", "message": "ready", "later": [1]}
    return condition if observed is None else condition | {"observedGeneration": observed}


@pytest.mark.parametrize(
    ("stamped", "observed", "generation", "expected"),
    [
        ("2", [2, 2], 1, [1, 1]),  # shown for the first time
        ("2", [2, 2], 5, [5, 5]),  # edited and repaired
        ("3", [2, 2], 5, [4, 4]),  # the cell has not answered yet
        ("3", [3, 2], 5, [5, 4]),  # in part
        ("2", [3, 2], 5, [5, 5]),  # newer than its stamp
        ("1", [0, 1], 1, [0, 1]),
        (None, [2, 2], 5, [5, 5]),  # a cell that does not report its generation
        (None, [3, 2], 5, [5, 4]),
        ("soon", [2, 2], 5, [5, 5]),
    ],
)
def test_observed_generations_are_translated_for_the_projection(
    stamped: str | None, observed: list[int], generation: int, expected: list[int]
) -> None:
    status = {"conditions": [condition("Ready", observed[0]), condition("Available", observed[1])]}
    status_ = projected_status(original(stamped, status), generation)
    assert [condition["observedGeneration"] for condition in status_["conditions"]] == expected


def test_everything_else_is_copied_unchanged() -> None:
    status = {"conditions": [condition("Ready"), condition("Available", 2)], "later": {"more": 1}}
    status_ = projected_status(original("2", status), 7)
    assert status_ == status | {"conditions": [condition("Ready"), condition("Available", 7)]}


def test_the_observed_generation_of_the_whole_status_is_translated_too() -> None:
    assert projected_status(original("2", {"observedGeneration": 2}), 7) == {"observedGeneration": 7}
    assert projected_status(original("3", {"observedGeneration": 2}), 7) == {"observedGeneration": 6}


@pytest.mark.parametrize("status", [{}, {"conditions": []}, {"networkInterfaces": []}])
def test_conditions_without_an_observed_generation_stay_unchanged(status: Json) -> None:
    assert projected_status(original("2", status), 7) == status
