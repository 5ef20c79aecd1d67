"""The newest lines of each instance, within all bounds."""

import pytest

from datum_compute.federation.lines import STDERR
from datum_compute.telemetry.memory import ring as ring_module
from datum_compute.telemetry.memory.ring import KEEP_NANOSECONDS, Ring
from tests.telemetry.origins import START, line, origin


class Time:
    now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def ring(time: Time) -> Ring:
    return Ring(time)


def texts(ring: Ring, project: str = "demo") -> list[str]:
    return [entry.text for entry in ring.entries(project)]


def test_lines_keep_the_labels_of_their_container(ring: Ring) -> None:
    ring.started(origin(), START)
    ring.add(origin(), [line(1, stream=STDERR)])
    [entry] = ring.entries("demo")
    assert entry.labels.values() == {
        "datum_workload_name": "api",
        "datum_instance_name": "api-default-dfw-0",
        "k8s_container_name": "app",
        "log_iostream": "stderr",
        "k8s_pod_uid": "uid-1",
        "datum_namespace_name": "default",
        "datum_placement_name": "default",
        "datum_city_code": "DFW",
    }


def test_an_instance_keeps_its_newest_thousand_lines_over_generations(ring: Ring) -> None:
    for number in range(700):
        ring.add(origin(generation="uid-1"), [line(number)])
    ring.add(origin(generation="uid-2"), [line(number) for number in range(700, 1400)])
    assert texts(ring) == [f"line {number}" for number in range(400, 1400)]


def test_an_instance_keeps_no_more_than_its_bytes(ring: Ring) -> None:
    for number in range(40):
        ring.add(origin(), [line(number, "x" * 16_000)])
    assert 10 < len(texts(ring)) <= 16
    assert ring.bytes <= ring_module.MOST_BYTES


def test_instances_of_equal_names_in_other_projects_and_namespaces_are_others(ring: Ring) -> None:
    for of in (origin(), origin(project="other"), origin(namespace="web")):
        ring.add(of, [line(1, f"{of.project}/{of.namespace}")])
    assert texts(ring) == ["demo/default", "demo/web"]
    assert texts(ring, "other") == ["other/default"]


def test_the_largest_instance_gives_up_lines_when_all_together_have_too_many(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "MOST_BYTES_TOGETHER", 300_000)
    ring.add(origin("small"), [line(number) for number in range(10)])
    ring.add(origin("large"), [line(number, "x" * 1000) for number in range(200)])
    assert ring.bytes > 200_000
    ring.add(origin("other"), [line(number, "y" * 1000) for number in range(100)])
    assert ring.bytes <= 300_000
    found = texts(ring)
    assert found[:10] == [f"line {number}" for number in range(10)]
    assert sum(text.startswith("y") for text in found) == 100
    assert 100 < sum(text.startswith("x") for text in found) < 200


def test_an_instance_that_ended_is_forgotten_after_a_day(ring: Ring, time: Time) -> None:
    ring.started(origin(), START)
    ring.add(origin(), [line(1)])
    ring.started(origin("other"), START)
    ring.add(origin("other"), [line(2)])
    ring.ended(origin(), START)
    time.now = START + KEEP_NANOSECONDS - 1
    assert texts(ring) == ["line 1", "line 2"]
    time.now += 1
    assert texts(ring) == ["line 2"]
    assert ring.bytes == pytest.approx(150, abs=60)


def test_an_instance_that_came_back_is_not_forgotten(ring: Ring, time: Time) -> None:
    ring.started(origin(), START)
    ring.add(origin(), [line(1)])
    ring.ended(origin(), START)
    ring.started(origin(generation="uid-2"), START)
    time.now = START + 2 * KEEP_NANOSECONDS
    assert texts(ring) == ["line 1"]


def test_only_the_last_names_that_ended_are_remembered(ring: Ring) -> None:
    for number in range(ring_module.MOST_ENDED + 20):
        of = origin(f"web-{number}")
        ring.started(of, START)
        ring.add(of, [line(number)])
        ring.ended(of, START)
    assert texts(ring) == [f"line {number}" for number in range(20, ring_module.MOST_ENDED + 20)]


def test_lines_that_come_without_a_start_are_forgotten_as_well(ring: Ring, time: Time) -> None:
    ring.add(origin(), [line(1)])
    time.now = START + KEEP_NANOSECONDS
    assert texts(ring) == []


def test_the_latest_lines_of_a_container_are_found(ring: Ring) -> None:
    ring.add(origin(), [line(number) for number in range(5)])
    ring.add(origin(container="sidecar"), [line(9)])
    ring.add(origin(generation="uid-2"), [line(10)])
    assert list(ring.latest(origin(), 2)) == [line(3), line(4)]
    assert list(ring.latest(origin(container="sidecar"), 10)) == [line(9)]
    assert list(ring.latest(origin("unknown"), 10)) == []


def test_a_container_runs_until_it_ended(ring: Ring) -> None:
    ring.started(origin(), START)
    ring.started(origin(), START + 5)  # started again in place
    assert list(ring.running("demo")) == [(origin(), START)]
    assert list(ring.running("other")) == []
    ring.ended(origin(), START + 9)
    assert list(ring.running("demo")) == []
