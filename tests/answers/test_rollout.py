"""The progress of a rollout: its phases, and when it counts as blocked."""

from typing import Any

import pytest
from msgspec import Raw

from datum_compute.answers.health import Block
from datum_compute.answers.places import Counts, Place
from datum_compute.answers.rollout import Phase, Progress, RowState, Tracker, phase, rollout_progress
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.template_hash import template_hash
from datum_compute.api.workload import Workload
from datum_compute.kube.meta import Json, ObjectMeta, encode
from tests.cli.conftest import IMAGE, NOW, condition, placement, template

HERE = Place("default", "DFW")
NO_QUOTA = Block("QuotaNotGranted", "no quota left")


def state_of(
    desired: int, updated: int, ready: int, replicas: int, *, answered: bool = True, cause: Block | None = None
) -> RowState:
    return RowState(HERE, Counts(desired, updated, ready, replicas), answered, "shop-default-dfw", cause)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (state_of(2, 2, 2, 2, answered=False), Phase.PENDING),
        (state_of(0, 0, 0, 1), Phase.DONE),
        (state_of(2, 2, 2, 2), Phase.DONE),
        (state_of(2, 3, 3, 3), Phase.DONE),
        (state_of(2, 0, 0, 0), Phase.PENDING),
        (state_of(2, 0, 2, 2), Phase.PENDING),
        (state_of(2, 1, 1, 2), Phase.UPDATING),
        (state_of(2, 2, 1, 2), Phase.UPDATING),
        (state_of(2, 2, 2, 3), Phase.UPDATING),  # one of an earlier version is left
    ],
)
def test_the_phase_of_a_row(state: RowState, expected: Phase) -> None:
    assert phase(state, stalled=False) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (state_of(2, 0, 0, 0), Phase.BLOCKED),
        (state_of(2, 1, 1, 2), Phase.BLOCKED),
        (state_of(2, 2, 2, 2), Phase.DONE),
        (state_of(2, 0, 0, 0, answered=False), Phase.PENDING),
    ],
)
def test_only_rows_that_are_pending_or_updating_can_be_blocked(state: RowState, expected: Phase) -> None:
    assert phase(state, stalled=True) is expected


def only(state: RowState) -> Progress:
    return Progress((state,))


def test_a_row_stuck_from_the_start_is_blocked_after_thirty_seconds_although_no_number_changed() -> None:
    tracker = Tracker()
    stuck = only(state_of(2, 0, 0, 0, cause=NO_QUOTA))
    phases = {}
    for second in range(0, 40, 2):
        for row in tracker.tick(float(second), stuck):
            phases[second] = (row.phase, row.blocked)
    assert phases == {0: (Phase.PENDING, None), 32: (Phase.BLOCKED, NO_QUOTA)}


def test_each_cause_is_reported_once() -> None:
    tracker = Tracker()
    other = Block("NetworkNotFound", "no network")
    causes = [
        row.blocked
        for second, cause in enumerate([NO_QUOTA] * 40 + [other] * 10 + [NO_QUOTA] * 10)
        for row in tracker.tick(float(second), only(state_of(2, 0, 0, 0, cause=cause)))
        if row.blocked
    ]
    assert causes == [NO_QUOTA, other]


def test_a_cause_that_blocks_two_cities_is_reported_once() -> None:
    tracker = Tracker()
    two = Progress(tuple(RowState(Place("default", city), Counts(2), True, city, NO_QUOTA) for city in ("AMS", "DFW")))
    tracker.tick(0, two)
    rows = tracker.tick(31, two)
    assert [(row.phase, row.blocked) for row in rows] == [(Phase.BLOCKED, NO_QUOTA), (Phase.BLOCKED, None)]


def test_a_changed_number_restarts_the_wait() -> None:
    tracker = Tracker()
    tracker.tick(0, only(state_of(2, 1, 0, 2, cause=NO_QUOTA)))
    tracker.tick(29, only(state_of(2, 1, 1, 2, cause=NO_QUOTA)))
    assert tracker.tick(58, only(state_of(2, 1, 1, 2, cause=NO_QUOTA))) == []
    [row] = tracker.tick(60, only(state_of(2, 1, 1, 2, cause=NO_QUOTA)))
    assert row.phase is Phase.BLOCKED


def test_the_wait_begins_when_the_server_has_seen_the_change() -> None:
    tracker = Tracker()
    tracker.tick(0, only(state_of(2, 0, 0, 0, answered=False, cause=NO_QUOTA)))
    tracker.tick(100, only(state_of(2, 0, 0, 0, cause=NO_QUOTA)))
    assert tracker.tick(130, only(state_of(2, 0, 0, 0, cause=NO_QUOTA))) == []
    assert tracker.tick(131, only(state_of(2, 0, 0, 0, cause=NO_QUOTA)))[0].phase is Phase.BLOCKED


def test_a_site_that_waits_for_an_earlier_deployment_to_stop_says_so_before_it_answers() -> None:
    tracker = Tracker()
    stopping = Block("Stopping", "2 instances are still stopping")
    unanswered = only(state_of(2, 0, 0, 2, answered=False, cause=stopping))
    tracker.tick(0, unanswered)
    assert tracker.causes == {HERE: stopping}
    assert tracker.tick(31, unanswered)[0].blocked == stopping


def test_a_report_on_an_earlier_spec_is_not_a_cause() -> None:
    tracker = Tracker()
    tracker.tick(0, only(state_of(2, 0, 0, 0, answered=False, cause=NO_QUOTA)))
    assert tracker.causes == {}


def test_without_a_cause_nothing_is_blocked() -> None:
    tracker = Tracker()
    silent = only(state_of(2, 1, 1, 2))
    tracker.tick(0, silent)
    assert tracker.tick(31, silent) == []


def test_a_row_that_changes_again_is_no_longer_blocked() -> None:
    tracker = Tracker()
    tracker.tick(0, only(state_of(2, 0, 0, 0, cause=NO_QUOTA)))
    tracker.tick(31, only(state_of(2, 0, 0, 0, cause=NO_QUOTA)))
    [row] = tracker.tick(33, only(state_of(2, 1, 0, 1, cause=NO_QUOTA)))
    assert row.phase is Phase.UPDATING


def test_a_row_is_shown_only_when_a_number_or_its_phase_changes() -> None:
    tracker = Tracker()
    assert len(tracker.tick(0, only(state_of(2, 1, 1, 2)))) == 1
    assert tracker.tick(2, only(state_of(2, 1, 1, 2))) == []
    assert len(tracker.tick(4, only(state_of(2, 2, 1, 2)))) == 1


def test_it_is_complete_when_every_row_is_done_and_nothing_is_left_over() -> None:
    tracker = Tracker()
    tracker.tick(0, Progress((state_of(2, 2, 2, 2),), leftover=("shop-default-ams",)))
    assert not tracker.complete
    tracker.tick(1, only(state_of(2, 2, 2, 2)))
    assert tracker.complete


def workload(observed: int | None, *placements: Json, conditions: tuple[Json, ...] = ()) -> Workload:
    spec = {"template": template(), "placements": list(placements or [placement("default", ["DFW"], 2)])}
    counters = ("deployments", "replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")
    status = dict.fromkeys(counters, 0) | {"observedGeneration": observed, "conditions": list(conditions)}
    status_json = Raw(encode(status)) if observed is not None else Raw()
    return Workload(ObjectMeta(name="shop", generation=3), Raw(encode(spec)), status_json)


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
    requested = [placement("a", ["DFW"], 1), placement("b", ["DFW"], 1)]
    result = rollout_progress(
        workload(3, *requested), [deployment("DFW", name="a"), deployment("DFW", name="b")], [], 3
    )
    assert [row.place for row in result.rows] == [Place("a", "DFW"), Place("b", "DFW")]


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
def test_a_report_on_an_earlier_generation_does_not_count(
    observed: int | None, deployments: list[WorkloadDeployment], answered: bool
) -> None:
    [row] = rollout_progress(workload(observed), deployments, [], target=3).rows
    assert row.answered is answered


def test_a_city_without_a_deployment_has_the_requested_number_as_desired() -> None:
    [row] = rollout_progress(workload(3), [], [], 3).rows
    assert (row.numbers, row.deployment) == (Counts(desired=2), "")


def test_a_deployment_has_the_requested_number_as_desired_until_it_reports() -> None:
    [row] = rollout_progress(workload(3), [deployment("DFW", desired=0, ready=0)], [], 3).rows
    assert row.numbers.desired == 2


def test_a_deployment_that_is_not_requested_is_a_leftover() -> None:
    result = rollout_progress(workload(3), [deployment("DFW"), deployment("AMS")], [], 3)
    assert result.leftover == ("shop-default-ams",)


def test_a_city_without_a_deployment_is_blocked_by_the_condition_of_the_workload() -> None:
    why = condition("Available", "False", "NoMatchingLocation", "DFW is not offered")
    tracker = Tracker()
    [row] = tracker.tick(0, rollout_progress(workload(3, conditions=(why,)), [], [], 3))
    assert (row.phase, row.blocked) == (Phase.BLOCKED, Block("NoMatchingLocation", "DFW is not offered"))
    assert tracker.tick(40, rollout_progress(workload(3, conditions=(why,)), [], [], 3)) == []


def test_a_condition_of_an_earlier_spec_blocks_nothing() -> None:
    why = condition("Available", "False", "NoMatchingLocation", "DFW is not offered")
    [row] = rollout_progress(workload(2, conditions=(why,)), [], [], 3).rows
    assert row.cause is None


def instance(ordinal: int, *conditions: Json, image: str = IMAGE, **metadata: Any) -> Instance:
    """An instance of the deployment in DFW, of its template or of one with another image."""
    spec = template(image)["spec"] | {"controller": {"templateHash": template_hash(encode(template(image)))}}
    meta = ObjectMeta(name=f"shop-default-dfw-{ordinal}", **metadata)
    return Instance(meta, Raw(encode(spec)), Raw(encode({"conditions": list(conditions)})))


FINE = condition("Ready", "True", "Available")
BROKEN = condition("Programmed", "False", "ImageUnavailable", "no such tag")


def row_of(*instances: Instance, of: Workload | None = None, generation: int = 1) -> RowState:
    [row] = rollout_progress(of or workload(3), [deployment("DFW", generation=generation, ready=1)], instances, 3).rows
    return row


def test_old_counts_the_instances_of_earlier_versions() -> None:
    assert row_of(instance(0, FINE), instance(1, FINE)).old == 0
    assert row_of(instance(0, FINE), instance(1, FINE, image="shop:1")).old == 1


def test_a_new_instance_that_is_not_ready_is_not_an_old_one() -> None:
    assert row_of(instance(0), instance(1)).old == 0


def test_old_instances_are_unknown_until_the_site_has_seen_the_change() -> None:
    assert row_of(instance(0, FINE), generation=2).old is None


def test_a_cause_that_somebody_has_to_act_on_is_shown_at_once() -> None:
    tracker = Tracker()
    [row] = tracker.tick(0, Progress((row_of(instance(0, FINE), instance(1, BROKEN)),)))
    assert (row.phase, row.blocked) == (Phase.BLOCKED, Block("ImageUnavailable", "no such tag"))
    assert tracker.causes == {HERE: Block("ImageUnavailable", "no such tag")}


def test_trouble_of_an_instance_of_an_earlier_version_blocks_nothing() -> None:
    row = row_of(instance(0, FINE), instance(1, BROKEN, image="shop:1"))
    assert not row.certain
    assert phase(row, stalled=False) is Phase.UPDATING


def test_an_instance_that_takes_long_to_stop_is_the_cause() -> None:
    row = row_of(instance(0, FINE), instance(1, FINE, image="shop:1", deletion_timestamp=NOW))
    assert row.cause == Block("Stopping", "shop-default-dfw-1 is stopping")
    assert not row.certain


def _paused(image: str, updated: int) -> Workload:
    spec = {"template": template(image), "placements": [placement("default", ["DFW"], 2)]}
    numbers = {"deployments": 1, "replicas": 2, "currentReplicas": updated, "updatedReplicas": updated}
    status = numbers | {"desiredReplicas": 2, "readyReplicas": 2, "observedGeneration": 3}
    meta = ObjectMeta(name="shop", generation=3, annotations={ROLLOUT_PAUSED: "true"})
    return Workload(meta, Raw(encode(spec)), Raw(encode(status)))


def test_instances_created_while_paused_are_not_old() -> None:
    result = rollout_progress(_paused(IMAGE, 1), [deployment("DFW")], [instance(0, FINE), instance(1, FINE)], 3)
    assert (result.held, result.rows[0].old) == ("1 of 2 instances on the newest version", 0)


def test_a_pause_that_holds_back_the_newest_version_is_not_complete() -> None:
    paused = _paused("shop:2", 0)
    result = rollout_progress(paused, [deployment("DFW")], [instance(0, FINE), instance(1, FINE)], 3)
    assert (result.held, result.rows[0].old) == ("0 of 2 instances on the newest version", 2)
    tracker = Tracker()
    tracker.tick(0, result)
    assert (tracker.settled, tracker.complete) == (True, False)
