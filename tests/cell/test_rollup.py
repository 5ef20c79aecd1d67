"""The status of a deployment, from its Instances."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import pytest

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.cell.rollup import Network, deployment_status, is_ready, observed_generation
from datum_compute.federation.obstacles import Obstacle
from datum_compute.kube.meta import Json, decode, encode

H = "0123456789"
OLD = "9876543210"
NOW = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
EARLIER = "2026-06-01T11:00:00Z"
SPEC: Json = {
    "runtime": {"sandbox": {"containers": [{"name": "web", "image": "registry.example/hello:1"}]}},
    "networkInterfaces": [],
}
UPSTREAM_GENERATION = "compute.datumapis.com/upstream-generation"


def deployment(
    *, generation: int = 1, annotations: Mapping[str, str] | None = None, status: Json | None = None
) -> WorkloadDeployment:
    metadata = {"name": "web", "namespace": "ns", "generation": generation, "annotations": dict(annotations or {})}
    spec = {
        "workloadRef": {"name": "web", "uid": "u"},
        "placementName": "main",
        "cityCode": "DFW",
        "template": {},
        "scaleSettings": {"minReplicas": 2},
    }
    body = {"metadata": metadata, "spec": spec} | ({"status": status} if status else {})
    return decode(encode(body), WorkloadDeployment)


def instance(
    ordinal: int,
    conditions: Mapping[str, tuple[str, str]],
    runs: str | None = H,
    *,
    deleting: bool = False,
    made_from: str | None = None,
) -> Instance:
    """`conditions` is type to (status, reason); the message of each is "about" its reason.

    `runs` is the template that the provider says it runs, `made_from` the one that the Instance was made from.
    """
    metadata: Json = {"name": f"web-{ordinal}", "namespace": "ns"}
    spec = SPEC | ({"controller": {"templateHash": made_from, "schedulingGates": []}} if made_from else {})
    if deleting:
        metadata["deletionTimestamp"] = EARLIER
    status: Json = {"conditions": [condition(type_, *fields) for type_, fields in conditions.items()]}
    if runs is not None:
        status["controller"] = {"observedTemplateHash": runs}
    return decode(encode({"metadata": metadata, "spec": spec, "status": status}), Instance)


def condition(type_: str, status: str, reason: str) -> Json:
    fields = {"type": type_, "status": status, "reason": reason, "message": f"about {reason}"}
    return fields | {"lastTransitionTime": EARLIER}


RUNNING = {"Programmed": ("True", "Programmed"), "Ready": ("True", "Available")}
STARTING = {"Programmed": ("Unknown", "ProgrammingInProgress"), "Ready": ("Unknown", "Provisioning")}
SET_UP = {"Programmed": ("True", "Programmed"), "Ready": ("False", "Stopping")}
BLOCKED = {"QuotaGranted": ("False", "QuotaExceeded"), "Ready": ("False", "PendingQuota")}
NO_IMAGE = {"Ready": ("Unknown", "ImageUnavailable")}
CRASHING = {"Ready": ("False", "InstanceCrashing")}
NO_NETWORK = {"Ready": ("False", "NetworkFailedToCreate")}

NEVER_SEEN = decode(encode({"metadata": {"name": "web-9", "namespace": "ns"}, "spec": {}}), Instance)


def reported(instances: Collection[Instance], desired: int = 2) -> Json:
    return deployment_status(deployment(), instances, H, desired, NOW)


def condition_of(status: Json, type_: str) -> tuple[str, str, str]:
    (found,) = [condition for condition in status["conditions"] if condition["type"] == type_]
    return found["status"], found["reason"], found["message"]


# The counters: replicas, current, updated, ready

COUNTS: dict[str, tuple[list[Instance], tuple[int, int, int, int]]] = {
    "none": ([], (0, 0, 0, 0)),
    "all well": ([instance(0, RUNNING), instance(1, RUNNING)], (2, 2, 2, 2)),
    "the old template still runs": ([instance(0, RUNNING, OLD), instance(1, RUNNING)], (2, 1, 1, 2)),
    "updated, but not programmed": ([instance(0, STARTING)], (1, 0, 1, 0)),
    "updated and programmed, but not ready": ([instance(0, SET_UP)], (1, 1, 1, 0)),
    "no controller block": ([instance(0, RUNNING, None), instance(1, RUNNING)], (2, 1, 1, 2)),
    "no status at all": ([NEVER_SEEN], (1, 0, 0, 0)),
    "terminating ones count in replicas only": (
        [instance(0, RUNNING), instance(1, RUNNING, deleting=True)],
        (2, 1, 1, 1),
    ),
    "made from the newest template, which does not run yet": (
        [instance(0, RUNNING, OLD, made_from=H), instance(1, RUNNING, None, made_from=H)],
        (2, 0, 0, 2),
    ),
    "runs the newest template, whatever it was made from": ([instance(0, RUNNING, H, made_from=OLD)], (1, 1, 1, 1)),
    "only terminating ones": ([instance(0, RUNNING, deleting=True)], (1, 0, 0, 0)),
}


@pytest.mark.parametrize(("instances", "expected"), COUNTS.values(), ids=COUNTS.keys())
def test_the_counters_follow_from_the_instances(instances: list[Instance], expected: tuple[int, int, int, int]) -> None:
    status = reported(instances, desired=3)
    counters = ("replicas", "currentReplicas", "updatedReplicas", "readyReplicas")
    assert tuple(status[counter] for counter in counters) == expected
    assert status["desiredReplicas"] == 3


def test_the_first_status_has_every_counter() -> None:
    counters = {"replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas"}
    assert {key: value for key, value in reported([], desired=0).items() if key in counters} == dict.fromkeys(
        counters, 0
    )


# ReplicasReady

REPLICAS_READY: dict[str, tuple[list[Instance], tuple[str, str, str]]] = {
    "none yet": ([], ("True", "ReplicasAvailable", "0/2 replicas available")),
    "some": ([instance(0, RUNNING)], ("True", "ReplicasAvailable", "1/2 replicas available")),
    "one blocked": (
        [instance(0, RUNNING), instance(1, BLOCKED)],
        ("False", "QuotaExceeded", "1 of 2 desired replicas are pending quota"),
    ),
    "undecided is not blocked": (
        [instance(0, {"QuotaGranted": ("Unknown", "QuotaNoBudget")})],
        ("True", "ReplicasAvailable", "0/2 replicas available"),
    ),
}


@pytest.mark.parametrize(("instances", "expected"), REPLICAS_READY.values(), ids=REPLICAS_READY.keys())
def test_replicas_ready_follows_from_the_instances(instances: list[Instance], expected: tuple[str, str, str]) -> None:
    assert condition_of(reported(instances), "ReplicasReady") == expected


# Available

AVAILABLE: dict[str, tuple[list[Instance], tuple[str, str, str]]] = {
    "one ready": ([instance(0, RUNNING)], ("True", "StableInstanceFound", "1/1 instances are ready")),
    "one ready, one blocked": (
        [instance(0, RUNNING), instance(1, BLOCKED)],
        ("True", "StableInstanceFound", "1/2 instances are ready"),
    ),
    "one ready, one broken": (
        [instance(0, RUNNING), instance(1, NO_IMAGE)],
        ("True", "StableInstanceFound", "1/2 instances are ready"),
    ),
    "none yet": ([], ("False", "InstancesProvisioning", "No instances available yet")),
    "starting": ([instance(0, STARTING)], ("False", "InstancesProvisioning", "Instances are being provisioned")),
    "a ready one that goes is none": (
        [instance(0, RUNNING, deleting=True)],
        ("False", "Stopping", "1 instance is still stopping; the next one is created after that"),
    ),
    "a broken one that goes blocks nothing by what it suffered from": (
        [instance(0, NO_IMAGE, deleting=True), instance(1, RUNNING, deleting=True)],
        ("False", "Stopping", "2 instances are still stopping; the next one is created after that"),
    ),
    "one goes, another starts": (
        [instance(0, STARTING), instance(1, RUNNING, deleting=True)],
        ("False", "InstancesProvisioning", "Instances are being provisioned"),
    ),
    "blocked": ([instance(0, BLOCKED)], ("False", "QuotaNotGranted", "1 of 2 desired instances pending quota")),
    "blocked beats starting": (
        [instance(0, STARTING), instance(1, BLOCKED)],
        ("False", "QuotaNotGranted", "1 of 2 desired instances pending quota"),
    ),
    "the Instance's own reason": (
        [instance(0, NO_IMAGE)],
        ("False", "ImageUnavailable", "about ImageUnavailable"),
    ),
    "it beats quota": (
        [instance(0, BLOCKED), instance(1, NO_IMAGE)],
        ("False", "ImageUnavailable", "about ImageUnavailable"),
    ),
    "the network beats it": (
        [instance(0, NO_IMAGE), instance(1, NO_NETWORK)],
        ("False", "NetworkFailedToCreate", "about NetworkFailedToCreate"),
    ),
    "a tie stays with the first": (
        [instance(0, CRASHING), instance(1, NO_IMAGE)],
        ("False", "InstanceCrashing", "about InstanceCrashing"),
    ),
    "below rank 5 the summary says more": (
        [instance(0, {"Ready": ("False", "AwaitingPropagation")})],
        ("False", "InstancesProvisioning", "Instances are being provisioned"),
    ),
}


@pytest.mark.parametrize(("instances", "expected"), AVAILABLE.values(), ids=AVAILABLE.keys())
def test_available_follows_from_the_instances(instances: list[Instance], expected: tuple[str, str, str]) -> None:
    assert condition_of(reported(instances), "Available") == expected


NO_LOCATION = ("False", "NoMatchingLocation", 'No Location matches city code "DFW"')
PROVISIONING = ("False", "NetworkProvisioning", "Network is being provisioned")

NETWORKS: dict[str, tuple[Network, list[Instance], tuple[str, str, str]]] = {
    "no location": (Network.NO_LOCATION, [instance(0, STARTING)], NO_LOCATION),
    "not ready": (Network.PROVISIONING, [], PROVISIONING),
    "quota says more": (
        Network.PROVISIONING,
        [instance(0, BLOCKED)],
        ("False", "QuotaNotGranted", "1 of 2 desired instances pending quota"),
    ),
    "a failure says most": (
        Network.PROVISIONING,
        [instance(0, NO_NETWORK), instance(1, BLOCKED)],
        ("False", "NetworkFailedToCreate", "about NetworkFailedToCreate"),
    ),
    "what runs runs": (
        Network.NO_LOCATION,
        [instance(0, RUNNING)],
        ("True", "StableInstanceFound", "1/1 instances are ready"),
    ),
}


@pytest.mark.parametrize(("network", "instances", "expected"), NETWORKS.values(), ids=NETWORKS.keys())
def test_available_follows_from_the_network(
    network: Network, instances: list[Instance], expected: tuple[str, str, str]
) -> None:
    assert condition_of(deployment_status(deployment(), instances, H, 2, NOW, network), "Available") == expected


# Refusals

REFUSED = Obstacle("SpecRefused", "Instance web-0 was refused: metadata.labels: Invalid value")


def obstructed(instances: list[Instance], obstacle: Obstacle | None, desired: int = 2) -> Json:
    return deployment_status(deployment(), instances, H, desired, NOW, obstacle=obstacle)


def test_a_refused_instance_is_the_reason_while_none_is_ready() -> None:
    status = obstructed([], REFUSED)
    assert condition_of(status, "Available") == ("False", REFUSED.reason, REFUSED.message)
    assert condition_of(status, "ReplicasReady") == ("False", REFUSED.reason, REFUSED.message)


def test_a_refused_instance_is_reported_beside_those_that_serve() -> None:
    status = obstructed([instance(0, RUNNING)], REFUSED)
    assert condition_of(status, "Available")[:2] == ("True", "StableInstanceFound")
    assert condition_of(status, "ReplicasReady") == ("False", REFUSED.reason, REFUSED.message)


def test_a_refusal_beats_quota_and_a_failed_network_beats_a_refusal() -> None:
    assert condition_of(obstructed([instance(0, BLOCKED)], REFUSED), "Available")[1] == "SpecRefused"
    assert condition_of(obstructed([instance(0, BLOCKED)], REFUSED), "ReplicasReady")[1] == "SpecRefused"
    assert condition_of(obstructed([instance(0, NO_NETWORK)], REFUSED), "Available")[1] == "NetworkFailedToCreate"


def test_a_refusal_that_is_over_is_no_longer_reported() -> None:
    first = obstructed([], REFUSED)
    status = deployment_status(deployment(status=first), [instance(0, RUNNING)], H, 1, NOW)
    assert condition_of(status, "ReplicasReady")[:2] == ("True", "ReplicasAvailable")


# Scaled to zero


def test_zero_replicas_have_a_reason_of_their_own() -> None:
    status = reported([], desired=0)
    assert condition_of(status, "Available") == ("False", "ScaledToZero", "No instances are requested")
    assert condition_of(status, "ReplicasReady") == ("True", "ReplicasAvailable", "0/0 replicas available")


def test_at_zero_replicas_stopping_instances_are_counted() -> None:
    going = [instance(0, RUNNING, deleting=True), instance(1, RUNNING, deleting=True)]
    assert condition_of(reported(going, desired=0), "Available") == (
        "False",
        "ScaledToZero",
        "No instances are requested; 2 are still stopping",
    )


def test_at_zero_replicas_instances_that_still_serve_count_as_available() -> None:
    assert condition_of(reported([instance(0, RUNNING)], desired=0), "Available")[0] == "True"


# A paused rollout


def test_a_pause_is_a_condition_while_it_lasts() -> None:
    paused = deployment(annotations={"compute.datumapis.com/rollout-paused": "true"})
    status = deployment_status(paused, [instance(0, RUNNING)], H, 2, NOW)
    assert condition_of(status, "Progressing")[:2] == ("Unknown", "RolloutPaused")
    assert condition_of(status, "Available")[0] == "True"
    resumed = deployment_status(deployment(status=status), [instance(0, RUNNING)], H, 2, NOW)
    assert {condition["type"] for condition in resumed["conditions"]} == {"Available", "ReplicasReady"}


@pytest.mark.parametrize("value", ["false", "", "True"])
def test_only_true_is_a_pause(value: str) -> None:
    status = deployment_status(deployment(annotations={"compute.datumapis.com/rollout-paused": value}), [], H, 2, NOW)
    assert {condition["type"] for condition in status["conditions"]} == {"Available", "ReplicasReady"}


# The observed generation

GENERATIONS: dict[str, tuple[dict[str, str], int]] = {
    "the project's, where it travelled along": ({UPSTREAM_GENERATION: "3"}, 3),
    "else the cell's": ({}, 7),
    "what is no number is not believed": ({UPSTREAM_GENERATION: "-3"}, 7),
    "nor what is empty": ({UPSTREAM_GENERATION: ""}, 7),
}


@pytest.mark.parametrize(("annotations", "expected"), GENERATIONS.values(), ids=GENERATIONS.keys())
def test_the_observed_generation_is_that_of_the_project(annotations: dict[str, str], expected: int) -> None:
    stamped = deployment(generation=7, annotations=annotations)
    status = deployment_status(stamped, [], H, 2, NOW)
    assert observed_generation(stamped) == status["observedGeneration"] == expected
    assert {condition["observedGeneration"] for condition in status["conditions"]} == {expected}


# Earlier status


def test_transition_times_move_with_the_status_only() -> None:
    first = reported([instance(0, STARTING)])
    before = first | {"conditions": [condition | {"lastTransitionTime": EARLIER} for condition in first["conditions"]]}
    after = deployment_status(deployment(status=before), [instance(0, RUNNING)], H, 2, NOW)
    times = {condition["type"]: condition["lastTransitionTime"] for condition in after["conditions"]}
    assert times == {"Available": "2026-06-01T12:00:00Z", "ReplicasReady": EARLIER}
    assert condition_of(after, "ReplicasReady")[2] == "1/2 replicas available"


def test_an_unchanged_state_gives_an_equal_status() -> None:
    first = reported([instance(0, RUNNING)])
    later = NOW.replace(hour=13)
    assert deployment_status(deployment(status=first), [instance(0, RUNNING)], H, 2, later) == first


def test_fields_and_conditions_of_others_survive() -> None:
    foreign = condition("ReferencedDataReady", "True", "Resolved")
    before = reported([]) | {"location": {"name": "dfw", "namespace": ""}, "later": {"field": 1}}
    before["conditions"] = [foreign, *before["conditions"]]
    after = deployment_status(deployment(status=before), [instance(0, RUNNING)], H, 2, NOW)
    assert after["location"] == {"name": "dfw", "namespace": ""}
    assert after["later"] == {"field": 1}
    assert after["conditions"][0] == foreign
    assert [condition["type"] for condition in after["conditions"]] == [
        "ReferencedDataReady",
        "Available",
        "ReplicasReady",
    ]


@pytest.mark.parametrize(
    ("one", "expected"), [(instance(0, RUNNING), True), (instance(0, STARTING), False), (NEVER_SEEN, False)]
)
def test_an_instance_is_ready_by_its_condition(one: Instance, expected: bool) -> None:
    assert is_ready(one) == expected
