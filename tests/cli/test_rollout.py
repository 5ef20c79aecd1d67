"""The phases of the contract, section 2.7: the order of its rules, and when something counts as blocked."""

import pytest
from msgspec import Raw

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.workload import Workload
from datum_compute.cli.health import Block, Counts
from datum_compute.cli.rollout import Phase, Picture, Place, Seen, Tracker, phase, picture
from datum_compute.kube.meta import Json, ObjectMeta, encode
from tests.cli.conftest import condition, placement, template

HERE = Place("default", "DFW")
NO_QUOTA = Block("QuotaNotGranted", "no quota left")


def seen(
    desired: int, updated: int, ready: int, replicas: int, *, answered: bool = True, cause: Block | None = None
) -> Seen:
    return Seen(HERE, Counts(desired, updated, ready, replicas), answered, "shop-default-dfw", cause)


@pytest.mark.parametrize(
    ("row", "found", "expected"),
    [
        (1, seen(2, 2, 2, 2, answered=False), Phase.PENDING),
        (2, seen(0, 0, 0, 1), Phase.DONE),
        (3, seen(2, 2, 2, 2), Phase.DONE),
        (3, seen(2, 3, 3, 3), Phase.DONE),
        (4, seen(2, 0, 0, 0), Phase.PENDING),
        (4, seen(2, 0, 2, 2), Phase.PENDING),
        (5, seen(2, 1, 1, 2), Phase.UPDATING),
        (5, seen(2, 2, 1, 2), Phase.UPDATING),
        (5, seen(2, 2, 2, 3), Phase.UPDATING),  # an old one is still there
    ],
)
def test_phases_in_the_order_of_the_table(row: int, found: Seen, expected: Phase) -> None:
    assert phase(found, stalled=False) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (seen(2, 0, 0, 0), Phase.BLOCKED),
        (seen(2, 1, 1, 2), Phase.BLOCKED),
        (seen(2, 2, 2, 2), Phase.DONE),
        (seen(2, 0, 0, 0, answered=False), Phase.PENDING),
    ],
)
def test_row_6_only_rows_4_and_5_can_be_blocked(found: Seen, expected: Phase) -> None:
    assert phase(found, stalled=True) is expected


def one(found: Seen) -> Picture:
    return Picture((found,))


def test_a_row_stuck_from_the_start_is_blocked_after_thirty_seconds_although_no_number_changed() -> None:
    tracker = Tracker()
    stuck = one(seen(2, 0, 0, 0, cause=NO_QUOTA))
    phases = {}
    for second in range(0, 40, 2):
        for row in tracker.tick(float(second), stuck, {}):
            phases[second] = (row.phase, row.blocked)
    assert phases == {0: (Phase.PENDING, None), 32: (Phase.BLOCKED, NO_QUOTA)}


def test_a_cause_is_told_once_and_another_one_again() -> None:
    tracker = Tracker()
    other = Block("NetworkNotFound", "no network")
    told = [
        row.blocked
        for second, cause in enumerate([NO_QUOTA] * 40 + [other] * 10 + [NO_QUOTA] * 10)
        for row in tracker.tick(float(second), one(seen(2, 0, 0, 0, cause=cause)), {})
        if row.blocked
    ]
    assert told == [NO_QUOTA, other]


def test_a_cause_that_blocks_two_cities_is_told_once() -> None:
    tracker = Tracker()
    two = Picture(tuple(Seen(Place("default", city), Counts(2), True, city, NO_QUOTA) for city in ("AMS", "DFW")))
    tracker.tick(0, two, {})
    rows = tracker.tick(31, two, {})
    assert [(row.phase, row.blocked) for row in rows] == [(Phase.BLOCKED, NO_QUOTA), (Phase.BLOCKED, None)]


def test_a_number_that_moves_starts_the_wait_again() -> None:
    tracker = Tracker()
    tracker.tick(0, one(seen(2, 1, 0, 2, cause=NO_QUOTA)), {})
    tracker.tick(29, one(seen(2, 1, 1, 2, cause=NO_QUOTA)), {})
    assert tracker.tick(58, one(seen(2, 1, 1, 2, cause=NO_QUOTA)), {}) == []
    [row] = tracker.tick(60, one(seen(2, 1, 1, 2, cause=NO_QUOTA)), {})
    assert row.phase is Phase.BLOCKED


def test_the_wait_begins_when_the_server_has_seen_what_was_asked() -> None:
    tracker = Tracker()
    tracker.tick(0, one(seen(2, 0, 0, 0, answered=False, cause=NO_QUOTA)), {})
    tracker.tick(100, one(seen(2, 0, 0, 0, cause=NO_QUOTA)), {})
    assert tracker.tick(130, one(seen(2, 0, 0, 0, cause=NO_QUOTA)), {}) == []
    assert tracker.tick(131, one(seen(2, 0, 0, 0, cause=NO_QUOTA)), {})[0].phase is Phase.BLOCKED


def test_without_a_cause_nothing_is_blocked_and_the_instances_are_worth_a_look() -> None:
    tracker = Tracker()
    silent = one(seen(2, 1, 1, 2))
    tracker.tick(0, silent, {})
    assert not tracker.unexplained(30, silent)
    assert tracker.unexplained(31, silent)
    assert tracker.tick(31, silent, {}) == []
    [row] = tracker.tick(32, silent, {"shop-default-dfw": NO_QUOTA})
    assert (row.phase, row.blocked) == (Phase.BLOCKED, NO_QUOTA)


def test_what_moves_again_is_no_longer_blocked() -> None:
    tracker = Tracker()
    tracker.tick(0, one(seen(2, 0, 0, 0, cause=NO_QUOTA)), {})
    tracker.tick(31, one(seen(2, 0, 0, 0, cause=NO_QUOTA)), {})
    [row] = tracker.tick(33, one(seen(2, 1, 0, 1, cause=NO_QUOTA)), {})
    assert row.phase is Phase.UPDATING


def test_a_row_is_shown_only_when_a_number_or_its_phase_changes() -> None:
    tracker = Tracker()
    assert len(tracker.tick(0, one(seen(2, 1, 1, 2)), {})) == 1
    assert tracker.tick(2, one(seen(2, 1, 1, 2)), {}) == []
    assert len(tracker.tick(4, one(seen(2, 2, 1, 2)), {})) == 1


def test_it_is_complete_when_every_row_is_done_and_nothing_is_left_over() -> None:
    tracker = Tracker()
    tracker.tick(0, Picture((seen(2, 2, 2, 2),), leftover=("shop-default-ams",)), {})
    assert not tracker.complete
    tracker.tick(1, one(seen(2, 2, 2, 2)), {})
    assert tracker.complete


def workload(observed: int | None, *placements: Json, conditions: tuple[Json, ...] = ()) -> Workload:
    spec = {"template": template(), "placements": list(placements or [placement("default", ["DFW"], 2)])}
    counters = ("deployments", "replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")
    status = dict.fromkeys(counters, 0) | {"observedGeneration": observed, "conditions": list(conditions)}
    said = Raw(encode(status)) if observed is not None else Raw()
    return Workload(ObjectMeta(name="shop", generation=3), Raw(encode(spec)), said)


def deployment(
    city: str, *, name: str = "default", generation: int = 1, observed: int = 1, desired: int = 2, ready: int = 2
) -> WorkloadDeployment:
    spec = {
        "workloadRef": {"name": "shop", "uid": "u"},
        "placementName": name,
        "cityCode": city,
        "template": template(),
        "scaleSettings": {"minReplicas": 2},
    }
    numbers = ("replicas", "currentReplicas", "updatedReplicas", "readyReplicas")
    status = dict.fromkeys(numbers, ready) | {"desiredReplicas": desired, "observedGeneration": observed}
    meta = ObjectMeta(name=f"shop-{name}-{city.lower()}", generation=generation)
    return WorkloadDeployment(meta, Raw(encode(spec)), Raw(encode(status)))


def test_two_placements_in_one_city_are_two_rows() -> None:
    asked = [placement("a", ["DFW"], 1), placement("b", ["DFW"], 1)]
    found = picture(workload(3, *asked), [deployment("DFW", name="a"), deployment("DFW", name="b")], 3)
    assert [row.place for row in found.rows] == [Place("a", "DFW"), Place("b", "DFW")]


@pytest.mark.parametrize(
    ("observed", "deployments", "answered"),
    [
        (None, [deployment("DFW")], False),
        (2, [deployment("DFW")], False),
        (3, [], False),
        (3, [deployment("DFW", generation=5, observed=4)], False),
        (3, [deployment("DFW")], True),
        (4, [deployment("DFW", generation=5, observed=5)], True),
    ],
)
def test_row_1_an_old_answer_never_counts(
    observed: int | None, deployments: list[WorkloadDeployment], answered: bool
) -> None:
    [row] = picture(workload(observed), deployments, target=3).rows
    assert row.answered is answered


def test_a_city_without_a_deployment_is_expected_with_what_was_asked() -> None:
    [row] = picture(workload(3), [], 3).rows
    assert (row.numbers, row.deployment) == (Counts(desired=2), "")


def test_until_it_reports_a_deployment_counts_with_what_was_asked() -> None:
    [row] = picture(workload(3), [deployment("DFW", desired=0, ready=0)], 3).rows
    assert row.numbers.desired == 2


def test_a_deployment_that_nobody_asks_for_is_left_over() -> None:
    found = picture(workload(3), [deployment("DFW"), deployment("AMS")], 3)
    assert found.leftover == ("shop-default-ams",)


def test_a_city_that_gets_no_deployment_is_blocked_by_what_the_workload_says() -> None:
    why = condition("Available", "False", "NoMatchingLocation", "DFW is not offered")
    tracker = Tracker()
    for second in range(0, 34, 2):
        rows = tracker.tick(float(second), picture(workload(3, conditions=(why,)), [], 3), {})
    assert tracker.tick(40, picture(workload(3, conditions=(why,)), [], 3), {}) == []
    assert rows[0].blocked == Block("NoMatchingLocation", "DFW is not offered")


def test_what_the_workload_said_of_an_older_spec_blocks_nothing() -> None:
    why = condition("Available", "False", "NoMatchingLocation", "DFW is not offered")
    [row] = picture(workload(2, conditions=(why,)), [], 3).rows
    assert row.cause is None
