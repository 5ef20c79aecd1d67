"""The scripts that Karmada runs over our statuses do what the embedded hub does, and drop nothing they do not know."""

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
    """What Karmada hands to an aggregation: an item for each cluster."""
    named = [{"clusterName": f"cell-{number}", "applied": True} for number in range(len(statuses))]
    return [item | ({"status": one} if one is not None else {}) for item, one in zip(named, statuses, strict=True)]


def test_a_status_is_reflected_whole() -> None:
    assert reflect(ORIGINAL | {"status": WHOLE}) == WHOLE
    assert reflect(ORIGINAL) == {}  # nil would be taken for a failure


def test_the_status_of_one_cell_arrives_with_every_field_it_has() -> None:
    assert aggregated(ORIGINAL, items(WHOLE)) == ORIGINAL | {"status": WHOLE}
    assert aggregated(ORIGINAL | {"status": status(9)}, items(WHOLE)) == ORIGINAL | {"status": WHOLE}


def test_of_several_cells_the_fields_that_do_not_add_up_are_those_of_the_first() -> None:
    other = status(3, "False", observedGeneration=5) | {"future": {"kept": "no"}, "second": 1}
    (result,) = [aggregated(ORIGINAL, items(WHOLE, other))["status"]]
    assert {key: result[key] for key in UNKNOWN} == UNKNOWN
    assert (result["replicas"], result["observedGeneration"]) == (5, 5)


@pytest.mark.parametrize(
    "script", ["while true do end", "x = 1 .. 2", "return function() end", 'x = "double"', "local 1 = 2"]
)
def test_lua_that_is_not_known_here_is_refused_and_not_misread(script: str) -> None:
    with pytest.raises(SyntaxError):
        load(f"function f() {script} end", "f")


@pytest.mark.parametrize("statuses", [(), (None,), ({},), (None, {}, None)])
def test_without_an_answer_the_object_stays_as_it_is(statuses: tuple[Json | None, ...]) -> None:
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
def test_karmada_and_the_embedded_hub_come_to_the_same_status(statuses: list[Json]) -> None:
    before = deepcopy(statuses)
    assert aggregated(ORIGINAL, items(*statuses))["status"] == aggregate(statuses)
    assert statuses == before
