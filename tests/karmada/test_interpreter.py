"""The scripts that Karmada runs on our statuses do what the embedded hub does, and keep unknown fields."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from datum_compute.karmada.propagation import aggregate
from datum_compute.kube.meta import Json
from tests.karmada.test_propagation import condition, status
from tests.lua import load

FILE = Path(__file__).parents[2] / "deploy" / "hub" / "workloaddeployment-interpreter.yaml"
SCRIPTS: dict[str, Any] = yaml.safe_load(FILE.read_text())["spec"]["customizations"]

reflect = load(SCRIPTS["statusReflection"]["luaScript"], "ReflectStatus")
aggregated = load(SCRIPTS["statusAggregation"]["luaScript"], "AggregateStatus")

UNKNOWN: Json = {"future": {"kept": [1, {"deep": "yes"}]}, "location": {"name": "dfw", "namespace": "x"}, "flag": True}
WHOLE: Json = status(2, "True", observedGeneration=7) | UNKNOWN
ORIGINAL: Json = {"metadata": {"name": "web", "labels": {"a": "b"}}, "spec": {"cityCode": "DFW", "more": [1, 2]}}


def items(*statuses: Json | None) -> list[Json]:
    """The input of an aggregation in Karmada: one item per cluster."""
    named = [{"clusterName": f"cell-{number}", "applied": True} for number in range(len(statuses))]
    return [
        item | ({"status": status} if status is not None else {}) for item, status in zip(named, statuses, strict=True)
    ]


def test_the_whole_status_is_reflected() -> None:
    assert reflect(ORIGINAL | {"status": WHOLE}) == WHOLE
    assert reflect(ORIGINAL) == {}  # nil would count as a failure


def test_the_status_of_one_cell_arrives_with_every_field_it_has() -> None:
    assert aggregated(ORIGINAL, items(WHOLE)) == ORIGINAL | {"status": WHOLE}
    assert aggregated(ORIGINAL | {"status": status(9)}, items(WHOLE)) == ORIGINAL | {"status": WHOLE}


def test_fields_that_cannot_be_summed_come_from_the_first_cell() -> None:
    other = status(3, "False", observedGeneration=5) | {"future": {"kept": "no"}, "second": 1}
    (result,) = [aggregated(ORIGINAL, items(WHOLE, other))["status"]]
    assert {key: result[key] for key in UNKNOWN} == UNKNOWN
    assert (result["replicas"], result["observedGeneration"]) == (5, 5)


@pytest.mark.parametrize(
    "script", ["while true do end", "x = 1 .. 2", "return function() end", 'x = "double"', "local 1 = 2"]
)
def test_unsupported_lua_is_refused(script: str) -> None:
    with pytest.raises(SyntaxError):
        load(f"function f() {script} end", "f")


@pytest.mark.parametrize("statuses", [(), (None,), ({},), (None, {}, None)])
def test_without_a_status_the_object_stays_unchanged(statuses: tuple[Json | None, ...]) -> None:
    before = ORIGINAL | {"status": WHOLE}
    assert aggregated(before, items(*statuses)) == before


@pytest.mark.parametrize(
    "statuses",
    [
        [WHOLE],
        [WHOLE, status(1, "False", observedGeneration=3)],
        [status(1, "False", observedGeneration=3), WHOLE],
        [WHOLE, {"replicas": 4}],
        [{"replicas": 4}, WHOLE, status(1, "True", observedGeneration=9)],
        [
            {"conditions": [condition("ReplicasReady", "False"), condition("Available", "False", "First")]},
            {"conditions": [condition("ReplicasReady", "True"), condition("Available", "False", "Second")]},
        ],
        [
            {"conditions": [condition("ReplicasReady", "False")]},
            {"conditions": [condition("Available", "Unknown", "Second")]},
        ],
        [
            {"conditions": [condition("Available", "False", "First")]},
            {"conditions": [condition("Available", "True", "Second")]},
            {"conditions": [condition("Available", "True", "Third")]},
        ],
    ],
)
def test_karmada_and_the_embedded_hub_aggregate_to_the_same_status(statuses: list[Json]) -> None:
    before = deepcopy(statuses)
    assert aggregated(ORIGINAL, items(*statuses))["status"] == aggregate(statuses)
    assert statuses == before
