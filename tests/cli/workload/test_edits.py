from datetime import timedelta
from typing import Any

import pytest

from datum_compute.api.labels import RESTARTED_AT
from datum_compute.cli.workload.edits import (
    EnvChange,
    SpecChange,
    edited_spec,
    networks,
    new_spec,
    with_min_replicas,
    with_restart,
)
from datum_compute.kube.meta import Json
from tests.cli.conftest import NOW, placement, template


def live(**container: Any) -> Json:
    """A spec with things in it that no flag knows."""
    spec: Json = {"template": template(**container), "placements": [placement("default", ["DFW"], 2)]}
    spec["template"]["metadata"] = {"labels": {"app": "shop"}, "annotations": {"team": "red"}}
    spec["template"]["spec"]["volumes"] = [{"name": "data", "configMap": {"name": "settings"}}]
    spec["template"]["spec"]["runtime"]["sandbox"]["containers"].append({"name": "sidecar", "image": "side:1"})
    spec["placements"][0]["scaleSettings"]["metrics"] = [{"resource": {"name": "cpu"}}]
    return spec


def container(spec: Json) -> Json:
    found: Json = spec["template"]["spec"]["runtime"]["sandbox"]["containers"][0]
    return found


def test_a_new_workload_is_one_container_in_one_placement_on_the_default_network() -> None:
    assert new_spec(SpecChange(image="shop:1", cities=("DFW", "AMS"), min_replicas=3, port=8080)) == {
        "template": {
            "spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {
                        "containers": [
                            {
                                "name": "app",
                                "image": "shop:1",
                                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                            }
                        ]
                    },
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            }
        },
        "placements": [
            {
                "name": "default",
                "cityCodes": ["DFW", "AMS"],
                "scaleSettings": {"minReplicas": 3, "instanceManagementPolicy": "OrderedReady"},
            }
        ],
    }


def test_a_new_workload_has_one_instance_and_no_port_by_default() -> None:
    spec = new_spec(SpecChange(image="shop:1", cities=("DFW",)))
    assert spec["placements"][0]["scaleSettings"]["minReplicas"] == 1
    assert "ports" not in container(spec)


def test_only_what_a_flag_names_changes() -> None:
    before = live(env=[{"name": "LOG_LEVEL", "value": "debug"}], ports=[{"name": "http", "port": 80}])
    after = edited_spec(before, SpecChange(image="shop:2"))
    assert container(after) == container(before) | {"image": "shop:2"}
    container(after)["image"] = container(before)["image"]
    assert after == before


def test_arguments_are_never_modified() -> None:
    before = live()
    edited_spec(before, SpecChange("shop:2", ("SIN",), 5, 99, "big", (EnvChange("A", "b"),)))
    with_restart(before, NOW)
    assert before == live()


@pytest.mark.parametrize(
    ("ports", "number", "result"),
    [
        ([], 8080, [{"name": "http", "port": 8080, "protocol": "TCP"}]),
        (
            [{"name": "http", "port": 80, "protocol": "SCTP"}],
            8080,
            [{"name": "http", "port": 8080, "protocol": "SCTP"}],
        ),
        ([{"name": "http", "port": 80}, {"name": "admin", "port": 9}], 0, [{"name": "admin", "port": 9}]),
        ([{"name": "http", "port": 80}], 0, None),
    ],
)
def test_the_port_flag_sets_or_removes_the_port_named_http(ports: list[Json], number: int, result: list[Json]) -> None:
    after = edited_spec(live(ports=ports), SpecChange(port=number))
    assert container(after).get("ports") == result


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ([("B", "2")], [{"name": "A", "value": "1"}, {"name": "S", "valueFrom": {}}, {"name": "B", "value": "2"}]),
        ([("A", "x=y")], [{"name": "A", "value": "x=y"}, {"name": "S", "valueFrom": {}}]),
        ([("A", None)], [{"name": "S", "valueFrom": {}}]),
        ([("S", "now plain")], [{"name": "A", "value": "1"}, {"name": "S", "value": "now plain"}]),
        ([("A", "first"), ("A", "last")], [{"name": "A", "value": "last"}, {"name": "S", "valueFrom": {}}]),
        ([("GONE", None)], [{"name": "A", "value": "1"}, {"name": "S", "valueFrom": {}}]),
    ],
)
def test_variables_are_set_and_removed_in_their_place(
    changes: list[tuple[str, str | None]], result: list[Json]
) -> None:
    before = live(env=[{"name": "A", "value": "1"}, {"name": "S", "valueFrom": {}}])
    after = edited_spec(before, SpecChange(env=tuple(EnvChange(*change) for change in changes)))
    assert container(after)["env"] == result


def test_the_last_variable_takes_the_list_with_it() -> None:
    after = edited_spec(live(env=[{"name": "A", "value": "1"}]), SpecChange(env=(EnvChange("A", None),)))
    assert "env" not in container(after)


def test_scaling_touches_the_number_and_nothing_else() -> None:
    spec = {"placements": [placement("us", ["DFW"], 1) | {"x": 1}, placement("eu", ["AMS"], 1)]}
    everywhere = [placement["scaleSettings"]["minReplicas"] for placement in with_min_replicas(spec, 4)["placements"]]
    assert everywhere == [4, 4]
    only = with_min_replicas(spec, 4, "eu")["placements"]
    assert only == [spec["placements"][0], placement("eu", ["AMS"], 4)]


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        (None, "2026-11-02T12:00:00Z"),
        ("2026-11-02T11:00:00Z", "2026-11-02T12:00:00Z"),
        ("2026-11-02T12:00:00Z", "2026-11-02T12:00:01Z"),
        ("2026-11-02T12:00:30Z", "2026-11-02T12:00:31Z"),  # somebody's clock is ahead: it must still be newer
        ("yesterday", "2026-11-02T12:00:00Z"),
        ("2026-11-02T12:00:00", "2026-11-02T12:00:00Z"),  # without a zone, not from us
    ],
)
def test_a_restart_is_dated_to_the_second_and_always_later_than_the_last(stored: str | None, written: str) -> None:
    spec = live()
    if stored is not None:
        spec["template"]["metadata"]["annotations"][RESTARTED_AT] = stored
    after = with_restart(spec, NOW + timedelta(microseconds=700))
    assert after["template"]["metadata"]["annotations"] == {"team": "red", RESTARTED_AT: written}
    assert after["template"]["spec"] == spec["template"]["spec"]


def test_each_network_counts_once() -> None:
    spec = live()
    spec["template"]["spec"]["networkInterfaces"] = [{"network": {"name": name}} for name in ("b", "a", "b")]
    assert networks(spec) == ["b", "a"]
