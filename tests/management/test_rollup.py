"""The status of a workload, from its deployments."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from itertools import permutations

import pytest

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.workload import Workload
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.management.rollup import Blocker, is_rolled_out, without_networks, workload_status

NOW = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
EARLIER = "2026-06-01T11:00:00Z"
COUNTERS = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")

YES = ("True", "StableInstanceFound")
NO_PLACEMENT = ("False", "NoAvailablePlacements", "No available placements were found for the workload")
NO_DEPLOYMENT = ("False", "NoAvailableDeployments", "No available deployments were found for the placement")


def workload(*, generation: int = 1, status: Json | None = None, paused: bool = False) -> Workload:
    metadata: Json = {"name": "web", "namespace": "default", "uid": "uid-of-web", "generation": generation}
    if paused:
        metadata["annotations"] = {"compute.datumapis.com/rollout-paused": "true"}
    body = {"metadata": metadata, "spec": {"template": {}, "placements": []}} | ({"status": status} if status else {})
    return decode(encode(body), Workload)


def deployment(
    place: str,
    available: tuple[str, str] | None = None,
    counters: Sequence[int] | None = (0, 0, 0, 0, 0),
    *,
    generation: int = 1,
    observed: int = 1,
    deleting: bool = False,
    more: Sequence[Json] = (),
) -> WorkloadDeployment:
    """`place` is placement/city; `more` are further conditions. A deployment without counters has no status yet."""
    placement, city = place.split("/")
    name = f"web-{placement}-{city.lower()}"
    metadata: Json = {"name": name, "namespace": "default", "generation": generation}
    if deleting:
        metadata["deletionTimestamp"] = EARLIER
    spec = {
        "workloadRef": {"name": "web", "uid": "uid-of-web"},
        "placementName": placement,
        "cityCode": city,
        "template": {},
        "scaleSettings": {"minReplicas": 1},
    }
    body = {"metadata": metadata, "spec": spec}
    if counters is not None:
        conditions = [condition("Available", *available, f"{name}: {available[1]}")] if available else []
        conditions += more
        status = dict(zip(COUNTERS, counters, strict=True)) | {"observedGeneration": observed, "conditions": conditions}
        body["status"] = status
    return decode(encode(body), WorkloadDeployment)


def condition(type_: str, status: str, reason: str, message: str) -> Json:
    fields = {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": EARLIER}
    return fields | {"observedGeneration": 1}


def unoffered(place: str) -> Blocker:
    placement, city = place.split("/")
    return Blocker(f"web-{placement}-{city.lower()}", placement, "NoMatchingLocation", f"no {city}")


def rolled_up(deployments: Collection[WorkloadDeployment], missing: Collection[Blocker] = ()) -> Json:
    return workload_status(workload(), deployments, missing, NOW)


def available(status: Json) -> tuple[str, str, str]:
    (found,) = [condition for condition in status["conditions"] if condition["type"] == "Available"]
    return found["status"], found["reason"], found["message"]


def counters(status: Json) -> tuple[int, ...]:
    return tuple(status[counter] for counter in COUNTERS)


# Sums


def test_the_counters_are_sums_over_all_deployments() -> None:
    status = rolled_up(
        [
            deployment("b/DFW", YES, (3, 1, 2, 3, 2)),
            deployment("a/DFW", YES, (1, 1, 1, 1, 1)),
            deployment("b/AMS", YES, (10, 20, 30, 40, 50)),
        ]
    )
    assert counters(status) == (14, 22, 33, 44, 53)
    assert status["deployments"] == 3
    assert [(entry["name"], counters(entry)) for entry in status["placements"]] == [
        ("a", (1, 1, 1, 1, 1)),
        ("b", (13, 21, 32, 43, 52)),
    ]


def test_terminating_deployments_count_until_they_are_gone() -> None:
    status = rolled_up([deployment("a/DFW", YES, (2, 2, 2, 2, 2), deleting=True)])
    assert status["deployments"] == 1
    assert counters(status) == (2, 2, 2, 2, 2)


def test_a_deployment_without_status_counts_nothing() -> None:
    status = rolled_up([deployment("a/DFW", counters=None), deployment("a/AMS", YES, (1, 1, 1, 1, 1))])
    assert status["deployments"] == 2
    assert counters(status) == (1, 1, 1, 1, 1)


def test_a_status_for_an_older_generation_counts_neither_updated_nor_current() -> None:
    behind = deployment("a/DFW", YES, (50, 10, 20, 40, 30), generation=3, observed=2)
    status = rolled_up([behind, deployment("a/AMS", YES, (5, 1, 2, 4, 3), generation=3, observed=3)])
    assert counters(status) == (55, 1, 2, 44, 33)
    assert counters(status["placements"][0]) == (55, 1, 2, 44, 33)


def test_zero_deployments_is_a_full_status() -> None:
    status = rolled_up([])
    assert counters(status) == (0, 0, 0, 0, 0)
    assert status["deployments"] == 0
    assert status["placements"] == []
    assert available(status) == NO_PLACEMENT


def test_the_status_answers_the_newest_generation_of_the_workload() -> None:
    earlier = workload_status(workload(generation=6), [deployment("a/DFW", YES)], [], NOW)
    status = workload_status(workload(generation=7, status=earlier), [deployment("a/DFW", YES)], [], NOW)
    assert status["observedGeneration"] == 7
    conditions = [*status["conditions"], *status["placements"][0]["conditions"]]
    assert {condition["observedGeneration"] for condition in conditions} == {7}


# Available

NO_LOCATION = ("False", "NoMatchingLocation")
NO_IMAGE = ("False", "ImageUnavailable")


def test_one_available_deployment_is_enough_for_its_placement_and_the_workload() -> None:
    status = rolled_up(
        [deployment("a/AMS", NO_IMAGE), deployment("a/DFW", YES), deployment("b/DFW", NO_IMAGE)],
        [unoffered("a/SIN")],
    )
    assert available(status) == ("True", "AvailablePlacementFound", "At least one available placement was found")
    a, b = status["placements"]
    assert available(a) == ("True", "AvailableDeploymentFound", "At least one available deployment was found")
    assert available(b) == NO_DEPLOYMENT


RANKS: dict[str, tuple[str, str]] = {  # of two reasons, the one that is reported
    "7 over 6": ("NetworkFailedToCreate", "NetworkNotFound"),
    "6 over 5": ("NetworkNotFound", "ImageUnavailable"),
    "5 over 4": ("InstanceCrashing", "AwaitingPropagation"),
    "5 over 3": ("ConfigurationError", "QuotaNotGranted"),
    "4 over 3": ("ReferencedDataNotReady", "PendingQuota"),
    "3 over 2": ("QuotaNotGranted", "NetworkProvisioning"),
    "2 over 1": ("NoMatchingLocation", "InstancesProvisioning"),
    "2 over 1, network": ("NetworkProvisioning", "InstancesProvisioning"),
    "1 over 0": ("InstancesProvisioning", "SomethingNew"),
    "7 over 1": ("RuntimeClassNotServed", "InstancesProvisioning"),
}


@pytest.mark.parametrize(("higher", "lower"), RANKS.values(), ids=RANKS.keys())
def test_the_blocker_of_the_highest_rank_is_reported(higher: str, lower: str) -> None:
    for first, second in ((higher, lower), (lower, higher)):
        status = rolled_up([deployment("a/DFW", ("False", first)), deployment("b/DFW", ("False", second))])
        name = "web-a-dfw" if first == higher else "web-b-dfw"
        assert available(status) == ("False", higher, f"{name}: {higher}")


def test_equal_blockers_go_by_placement_then_by_name_whatever_the_order() -> None:
    tied = [
        deployment("a/LHR", ("False", "InstanceCrashing")),
        deployment("b/AMS", NO_IMAGE),
        deployment("a/DFW", ("False", "ConfigurationError")),
    ]
    for order in permutations(tied):
        assert available(rolled_up(order)) == ("False", "ConfigurationError", "web-a-dfw: ConfigurationError")


@pytest.mark.parametrize("reason", ["SomethingNew", "NoAvailableDeployments"])
def test_a_reason_without_a_rank_never_replaces_the_default(reason: str) -> None:
    assert available(rolled_up([deployment("a/DFW", ("False", reason))])) == NO_PLACEMENT


def test_unknown_blocks_as_well() -> None:
    status = rolled_up([deployment("a/DFW", ("Unknown", "ImageUnavailable"))])
    assert available(status) == ("False", "ImageUnavailable", "web-a-dfw: ImageUnavailable")


def test_a_deployment_without_conditions_blocks_nothing() -> None:
    status = rolled_up([deployment("a/DFW"), deployment("a/AMS", counters=None)])
    assert available(status) == NO_PLACEMENT
    assert available(status["placements"][0]) == NO_DEPLOYMENT


# Cities that no location offers


def test_a_placement_of_unoffered_cities_is_reported() -> None:
    status = rolled_up([], [unoffered("b/SIN"), unoffered("a/LHR")])
    assert [(entry["name"], available(entry)) for entry in status["placements"]] == [
        ("a", ("False", "NoMatchingLocation", "no LHR")),
        ("b", ("False", "NoMatchingLocation", "no SIN")),
    ]
    assert available(status) == ("False", "NoMatchingLocation", "no LHR")
    assert status["deployments"] == 0
    assert counters(status["placements"][0]) == (0, 0, 0, 0, 0)


def test_an_unoffered_city_is_reported_while_no_deployment_of_its_placement_is_available() -> None:
    status = rolled_up([deployment("a/DFW", NO_IMAGE)], [unoffered("a/SIN")])
    assert available(status["placements"][0]) == ("False", "NoMatchingLocation", "no SIN")
    assert available(status) == ("False", "ImageUnavailable", "web-a-dfw: ImageUnavailable")


@pytest.mark.parametrize(("city", "expected"), [("AMS", "no AMS"), ("SIN", "web-a-dfw: NoMatchingLocation")])
def test_an_unoffered_city_is_ranked_under_the_name_of_its_future_deployment(city: str, expected: str) -> None:
    status = rolled_up([deployment("a/DFW", NO_LOCATION)], [unoffered(f"a/{city}")])
    assert available(status) == ("False", "NoMatchingLocation", expected)


# Earlier status


def test_transition_times_move_with_the_status_only() -> None:
    first = rolled_up([deployment("a/DFW", NO_IMAGE), deployment("b/DFW", NO_IMAGE)])
    earlier = decode(encode(first).replace(b"2026-06-01T12:00:00Z", EARLIER.encode()), dict)
    after = workload_status(
        workload(generation=2, status=earlier), [deployment("a/DFW", YES), deployment("b/DFW", NO_LOCATION)], [], NOW
    )
    a, b = after["placements"]
    assert after["conditions"][0]["lastTransitionTime"] == "2026-06-01T12:00:00Z"
    assert a["conditions"][0]["lastTransitionTime"] == "2026-06-01T12:00:00Z"
    assert b["conditions"][0]["lastTransitionTime"] == EARLIER


def test_another_reason_alone_keeps_the_transition_time() -> None:
    first = rolled_up([deployment("a/DFW", NO_IMAGE)])
    later = NOW.replace(hour=13)
    after = workload_status(workload(status=first), [deployment("a/DFW", NO_LOCATION)], [], later)
    assert available(after)[1] == "NoMatchingLocation"
    assert after["conditions"][0]["lastTransitionTime"] == "2026-06-01T12:00:00Z"


def test_an_unchanged_state_gives_an_equal_status() -> None:
    deployments = [deployment("a/DFW", YES, (1, 1, 1, 1, 1)), deployment("b/DFW", NO_IMAGE)]
    first = rolled_up(deployments, [unoffered("c/SIN")])
    later = NOW.replace(hour=13)
    assert workload_status(workload(status=first), deployments, [unoffered("c/SIN")], later) == first


def test_a_removed_placement_is_no_longer_reported() -> None:
    first = rolled_up([deployment("a/DFW", YES), deployment("b/DFW", YES)])
    after = workload_status(workload(status=first), [deployment("b/DFW", YES)], [], NOW)
    assert [entry["name"] for entry in after["placements"]] == ["b"]


def test_fields_and_conditions_of_others_survive() -> None:
    first = rolled_up([deployment("a/DFW", YES)])
    foreign = condition("Billed", "True", "Metered", "by somebody else")
    before = first | {"later": 1, "conditions": [foreign, *first["conditions"]]}
    after = workload_status(workload(status=before), [deployment("a/DFW", YES)], [], NOW)
    assert after == before


# A deployment that cannot be created


def taken(place: str) -> Blocker:
    placement, city = place.split("/")
    return Blocker(f"web-{placement}-{city.lower()}", placement, "DeploymentNameTaken", f"{city} is taken")


def test_the_worst_of_several_reasons_is_reported_for_a_placement() -> None:
    status = rolled_up([], [unoffered("a/AMS"), taken("a/DFW"), unoffered("a/SIN")])
    assert available(status["placements"][0]) == ("False", "DeploymentNameTaken", "DFW is taken")
    assert available(status) == ("False", "DeploymentNameTaken", "DFW is taken")


def test_a_name_that_is_taken_does_not_hide_what_is_available() -> None:
    status = rolled_up([deployment("a/AMS", YES)], [taken("a/DFW")])
    assert available(status)[:2] == ("True", "AvailablePlacementFound")


# Refused cities beside served ones


def placed(status: Json) -> tuple[str, str, str] | None:
    found = [condition for condition in status["conditions"] if condition["type"] == "Placed"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def test_a_fully_placed_workload_has_no_placed_condition() -> None:
    assert placed(rolled_up([deployment("a/DFW", NO_IMAGE)])) is None


def test_every_unplaced_city_is_named_in_order_under_the_worst_reason() -> None:
    status = rolled_up([deployment("a/AMS", YES)], [unoffered("b/SIN"), taken("a/DFW"), unoffered("a/LHR")])
    assert placed(status) == ("False", "DeploymentNameTaken", "DFW is taken; no LHR; no SIN")
    assert available(status)[0] == "True"


def test_equal_messages_are_reported_once() -> None:
    assert placed(rolled_up([], [unoffered("a/SIN"), unoffered("b/SIN")])) == ("False", "NoMatchingLocation", "no SIN")


@pytest.mark.parametrize("type_", ["Federated", "ReplicasReady"])
@pytest.mark.parametrize("reason", ["SpecRefused", "WriteForbidden", "InstanceNameTaken", "FederationFailed"])
def test_a_refusal_is_reported_even_while_an_earlier_state_serves(type_: str, reason: str) -> None:
    member = deployment("a/DFW", YES, more=[condition(type_, "False", reason, "as the server said")])
    assert placed(rolled_up([member])) == ("False", reason, "as the server said")


@pytest.mark.parametrize(("type_", "status", "reason"), [
    ("ReplicasReady", "False", "QuotaExceeded"),
    ("ReplicasReady", "True", "SpecRefused"),
    ("Available", "False", "SpecRefused"),
])  # fmt: skip
def test_pending_quota_and_past_refusals_are_no_refusals(type_: str, status: str, reason: str) -> None:
    assert placed(rolled_up([deployment("a/DFW", more=[condition(type_, status, reason, "no")])])) is None


def test_a_refusal_that_is_over_is_no_longer_reported() -> None:
    first = rolled_up([deployment("a/DFW", YES)], [unoffered("a/SIN")])
    after = workload_status(workload(status=first), [deployment("a/DFW", YES)], [], NOW)
    assert placed(after) is None


def test_missing_networks_keep_the_placed_condition() -> None:
    first = rolled_up([deployment("a/DFW", YES)], [unoffered("a/SIN")])
    assert placed(without_networks(workload(status=first), ["default"], NOW)) == placed(first)


def test_very_long_messages_fit_into_a_condition() -> None:
    endless = [Blocker(f"web-{n}", "a", "SpecRefused", f"{n} {'x' * 1000}") for n in range(50)]
    condition = placed(rolled_up([], endless))
    assert condition is not None
    assert len(condition[2]) <= 32_768


# Scaled to zero

ZERO = ("False", "ScaledToZero")


def test_a_workload_scaled_to_zero_reports_only_that() -> None:
    status = rolled_up([deployment("a/AMS", ZERO), deployment("a/DFW", ZERO)])
    assert available(status) == ("False", "ScaledToZero", "web-a-ams: ScaledToZero")
    assert available(status["placements"][0]) == ("False", "ScaledToZero", "web-a-ams: ScaledToZero")


@pytest.mark.parametrize("other", ["InstancesProvisioning", "QuotaNotGranted", "ImageUnavailable"])
@pytest.mark.parametrize("places", [("a/DFW", "b/DFW"), ("b/DFW", "a/DFW")])
def test_any_other_blocker_beats_a_placement_scaled_to_zero(places: tuple[str, str], other: str) -> None:
    status = rolled_up([deployment(places[0], ZERO), deployment(places[1], ("False", other))])
    assert available(status)[1] == other


# A paused rollout


def test_a_pause_is_reported_beside_availability() -> None:
    status = workload_status(workload(generation=3, paused=True), [deployment("a/DFW", YES)], [], NOW)
    reported = {
        condition["type"]: (condition["status"], condition["reason"], condition["observedGeneration"])
        for condition in status["conditions"]
    }
    assert reported == {
        "Available": ("True", "AvailablePlacementFound", 3),
        "Progressing": ("Unknown", "RolloutPaused", 3),
    }
    after = workload_status(workload(status=status), [deployment("a/DFW", YES)], [], NOW)
    assert [condition["type"] for condition in after["conditions"]] == ["Available"]


def test_a_progressing_condition_of_others_stays() -> None:
    theirs = rolled_up([]) | {"conditions": [condition("Progressing", "True", "Theirs", "theirs")]}
    after = workload_status(workload(status=theirs), [], [], NOW)
    assert [condition["reason"] for condition in after["conditions"] if condition["type"] == "Progressing"] == [
        "Theirs"
    ]


def test_a_held_deployment_counts_nothing_for_the_newest_template() -> None:
    members = [deployment("a/AMS", YES, (2, 2, 2, 2, 2)), deployment("a/DFW", YES, (3, 3, 3, 3, 3))]
    status = workload_status(workload(paused=True), members, [], NOW, held={"web-a-dfw"})
    assert [status[counter] for counter in COUNTERS] == [5, 2, 2, 5, 5]


# Missing networks


def test_missing_networks_change_nothing_but_the_condition() -> None:
    before = rolled_up([deployment("a/DFW", YES, (2, 2, 2, 2, 2))])
    after = without_networks(workload(generation=2, status=before), ["zulu", "alpha"], NOW)
    assert after | {"conditions": []} == before | {"conditions": []}
    assert available(after) == ("False", "NetworkNotFound", "Unable to find networks: alpha, zulu")
    assert after["observedGeneration"] == 1  # the counters are those of the generation before


def test_missing_networks_on_a_new_workload_have_every_counter() -> None:
    status = without_networks(workload(), ["default"], NOW)
    assert {counter: status[counter] for counter in ("deployments", *COUNTERS)} == dict.fromkeys(
        ("deployments", *COUNTERS), 0
    )
    assert without_networks(workload(status=status), ["default"], NOW) == status


@pytest.mark.parametrize(
    ("replicas", "updated", "observed", "expected"),
    [
        (4, 4, 2, True),
        (4, 4, 1, False),  # an answer to the previous spec
        (2, 2, 2, False),  # one of the two cities has not reported yet
        (4, 3, 2, False),
        (5, 4, 2, False),  # an old one is left
    ],
)
def test_a_workload_is_rolled_out_when_exactly_the_requested_replicas_are_updated(
    replicas: int, updated: int, observed: int, expected: bool
) -> None:
    placement = {"name": "main", "cityCodes": ["DFW", "AMS"], "scaleSettings": {"minReplicas": 2}}
    counters = dict.fromkeys(COUNTERS, 0) | {"replicas": replicas, "updatedReplicas": updated}
    body = {
        "metadata": {"name": "web", "generation": 2},
        "spec": {"template": {}, "placements": [placement]},
        "status": counters | {"deployments": 2, "observedGeneration": observed},
    }
    assert is_rolled_out(decode(encode(body), Workload)) is expected


def test_without_a_status_it_is_not_rolled_out() -> None:
    assert not is_rolled_out(workload())
