"""The lines that describe changes of a workload."""

from typing import Any

import pytest

from datum_compute.cli.workload.changes import change_lines
from datum_compute.kube.meta import Json
from tests.cli.conftest import placement, template


def spec(**container: Any) -> Json:
    base = {"image": "shop:1", "env": [{"name": "A", "value": "secret"}], "ports": [{"name": "http", "port": 8080}]}
    return {
        "template": template(**{**base, **container}),
        "placements": [placement("default", ["DFW"], 2)],
    }


def placed(*placements: Json) -> Json:
    return spec() | {"placements": list(placements)}


def with_type(name: str) -> Json:
    changed = spec()
    changed["template"]["spec"]["runtime"]["resources"]["instanceType"] = name
    return changed


def with_max(number: int) -> Json:
    changed = placement("default", ["DFW"], 2)
    changed["scaleSettings"]["maxReplicas"] = number
    return placed(changed)


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (spec(), []),
        (spec(image="shop:2"), ["image: shop:1 → shop:2"]),
        (with_type("big"), ["instance type: datumcloud/d1-standard-2 → big"]),
        (placed(placement("default", ["DFW"], 3)), ['placement "default" min replicas: 2 → 3']),
        (with_max(9), ['placement "default" max replicas: none → 9']),
        (placed(placement("default", ["DFW", "IAD"], 2)), ['placement "default" cities: DFW → DFW, IAD']),
        (
            placed(placement("default", ["DFW"], 2), placement("eu", ["FRA"], 1)),
            ['+ new placement "eu": cities=[FRA]'],
        ),
        (
            placed(placement("eu", ["FRA"], 1)),
            ['+ new placement "eu": cities=[FRA]', '- removed placement "default"'],
        ),
        (spec(ports=[{"name": "http", "port": 9090}]), ["port http: 8080 → 9090"]),
        (spec(ports=[]), ["port http: 8080 → none"]),
        (
            spec(ports=[{"name": "http", "port": 8080}, {"name": "admin", "port": 9, "protocol": "TCP"}]),
            ["port admin: none → 9"],
        ),
        (spec(ports=[{"name": "http", "port": 8080, "protocol": "UDP"}]), ["1 other field(s) changed"]),
        (spec(env=[{"name": "A", "value": "secret"}, {"name": "LOG_LEVEL", "value": "debug"}]), ["env LOG_LEVEL: set"]),
        (spec(env=[{"name": "A", "value": "other"}]), ["env A: changed"]),
        (spec(env=[]), ["env A: removed"]),
        (spec(image="shop:2", env=[]), ["image: shop:1 → shop:2", "env A: removed"]),
    ],
)
def test_each_change_has_its_line(after: Json, lines: list[str]) -> None:
    assert change_lines(spec(), after) == lines


def test_everything_else_is_counted() -> None:
    after = spec()
    after["template"]["metadata"] = {"annotations": {"a": "1", "b": "2"}}
    after["placements"][0]["scaleSettings"]["instanceManagementPolicy"] = "Other"
    assert change_lines(spec(), after) == ["3 other field(s) changed"]


def test_order_alone_is_no_change() -> None:
    two = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert change_lines(spec(env=two), spec(env=two[::-1])) == []


def test_changes_of_another_container_are_counted() -> None:
    after = spec()
    after["template"]["spec"]["runtime"]["sandbox"]["containers"].append({"name": "side", "image": "side:1"})
    assert change_lines(spec(), after) == ["2 other field(s) changed"]
