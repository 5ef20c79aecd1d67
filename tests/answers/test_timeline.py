"""One list of what happened, on all planes."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from datum_compute.answers.timeline import Occurrence, complete_since, of_conditions, of_events, timeline
from datum_compute.kube.kinds import EVENT, Event
from datum_compute.kube.meta import timestamp
from tests.answers.sightings import deployment, instance, read
from tests.cli.conftest import NOW, condition

CITIES = {"shop-default-dfw": "DFW", "shop-default-ams": "AMS"}


def event(kind: str, name: str, *, at: datetime = NOW, count: int = 1) -> Event:
    found: Event = read(
        EVENT,
        {
            "metadata": {"name": f"{name}.1"},
            "involvedObject": {"kind": kind, "name": name},
            "reason": "Started",
            "message": "It runs",
            "lastTimestamp": timestamp(at),
            "count": count,
        },
    )
    return found


def occurrence(seconds: int = 0, city: str = "DFW", plane: str = "project", count: int = 1) -> Occurrence:
    return Occurrence(NOW + timedelta(seconds=seconds), city, "shop-default-dfw-0", plane, "Started", "It runs", count)


def test_events_of_a_workload_its_deployments_and_instances_belong_to_it() -> None:
    events = [
        event("Workload", "shop"),
        event("WorkloadDeployment", "shop-default-dfw"),
        event("Instance", "shop-default-dfw-0"),
        event("Instance", "shop-default-dfw-17"),  # exists no more
        event("Workload", "blog"),
        event("Instance", "blog-default-dfw-0"),
        event("WorkloadDeployment", "shop-default-dfw-0"),
    ]
    found = list(of_events(events, "cell", "shop", CITIES))
    assert [(row.subject, row.city) for row in found] == [
        ("shop", ""),
        ("shop-default-dfw", "DFW"),
        ("shop-default-dfw-0", "DFW"),
        ("shop-default-dfw-17", "DFW"),
    ]


def test_what_repeats_within_a_minute_is_one_row() -> None:
    [row] = timeline([occurrence(0), occurrence(30), occurrence(80, count=2)])
    assert (row.count, row.time) == (4, NOW + timedelta(seconds=80))
    assert len(timeline([occurrence(0), occurrence(61)])) == 2


def test_the_echo_of_a_sites_event_is_the_same_event() -> None:
    [row] = timeline([occurrence(0, plane="cell", count=3), occurrence(1, plane="project", count=3)])
    assert (row.count, row.plane) == (3, "cell")


def test_a_city_has_what_concerns_the_whole_workload_too() -> None:
    rows = [occurrence(0), occurrence(1, city="AMS"), occurrence(2, city="")]
    assert [row.city for row in timeline(rows, city="dfw")] == ["DFW", ""]
    assert [row.city for row in timeline(rows, since=NOW + timedelta(seconds=1))] == ["AMS", ""]


def test_conditions_are_listed_with_the_time_of_their_status() -> None:
    broken = instance("DFW", 0, condition("Ready", "False", "InstanceCrashing", "exit 1", since=NOW))
    rows = list(of_conditions([deployment("DFW")], [broken], CITIES))
    assert [(row.subject, row.reason, row.text) for row in rows] == [
        ("shop-default-dfw", "StableInstanceFound", "Available is True"),
        ("shop-default-dfw-0", "InstanceCrashing", "Ready is False: exit 1"),
    ]
    never = instance("DFW", 0, condition("Ready", "Unknown", "Pending", since=NOW.replace(year=1970)))
    assert list(of_conditions([], [never], CITIES)) == []


def test_the_list_is_complete_for_as_long_as_events_are_kept() -> None:
    assert complete_since(NOW, NOW - timedelta(days=1)) == NOW - timedelta(hours=1)
    assert complete_since(NOW, NOW - timedelta(minutes=5)) == NOW - timedelta(minutes=5)
    assert complete_since(NOW, None) == NOW - timedelta(hours=1)


rows = st.builds(
    occurrence,
    seconds=st.integers(0, 600),
    city=st.sampled_from(["", "DFW", "AMS"]),
    plane=st.sampled_from(["project", "hub", "cell"]),
    count=st.integers(1, 5),
)


@given(st.lists(rows, max_size=12))
def test_the_order_in_which_planes_were_read_makes_no_difference_to_what_is_listed(found: list[Occurrence]) -> None:
    merged = timeline(found)
    assert [row.time for row in merged] == sorted(row.time for row in merged)
    assert {(row.city, row.reason) for row in merged} == {(row.city, row.reason) for row in found}
    assert sum(row.count for row in merged) <= sum(row.count for row in found)
