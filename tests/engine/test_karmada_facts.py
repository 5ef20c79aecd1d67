"""What the real API server and Karmada 1.18.1 do with our kinds: the facts that the embedded engine has to copy."""

import time
from typing import Any

import pytest

from datum_compute.api.crd import OURS
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INITIAL_STATUS, INSTANCE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from engine.api import Api, condition, until
from engine.harness import Engine
from engine.processes import State
from tests.engine.conftest import CELL_FINALIZER, Place, carries, spec

pytestmark = pytest.mark.engine

PERMANENT_ID = "propagationpolicy.karmada.io/permanent-id"
HUB_GENERATION = "resourcetemplate.karmada.io/generation"
COUNTERS = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")

AVAILABLE = {
    "type": "Available",
    "status": "True",
    "reason": "StableInstanceFound",
    "message": "one is ready",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
    "observedGeneration": 3,
}
UNAVAILABLE = AVAILABLE | {"status": "False", "reason": "NoneReady", "message": "none is ready"}
REPLICAS_READY = AVAILABLE | {"type": "ReplicasReady", "status": "False", "reason": "SomeNotReady"}


def status(count: int, **others: Any) -> Json:
    return dict.fromkeys(COUNTERS, count) | {"observedGeneration": 3, "conditions": [AVAILABLE]} | others


def has_no_status(found: Json) -> bool:
    return not found.get("status")


MOVE: Json = {"metadata": {"labels": {TOPOLOGY_CITY: "ORD"}}, "spec": {"cityCode": "ORD"}}


# Our kinds on a real API server


@pytest.mark.parametrize("plane", ["control-plane", "project-b", "downstream", "pop-dfw", "pop-ord"])
@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.plural)
def test_a_definition_is_accepted_unchanged(planes: dict[str, Api], plane: str, kind: Any) -> None:
    definition = planes[plane].get("apiextensions.k8s.io/v1", "CustomResourceDefinition", kind.resource)

    assert condition(definition, "Established") == "True"
    assert condition(definition, "NamesAccepted") == "True"
    assert condition(definition, "NonStructuralSchema") == ""


@pytest.mark.parametrize("given", [{}, {"status": {}}], ids=["no status", "empty status"])
def test_an_instance_created_without_status_shows_the_default_conditions(place: Place, given: Json) -> None:
    template = spec("DFW")["template"]["spec"]
    place.until(place.dfw, lambda found: True, place.name, NAMESPACE)
    created = place.dfw.create(INSTANCE.body("web-0", place.name) | {"spec": template} | given)

    assert created["status"] == INITIAL_STATUS
    assert [found["type"] for found in created["status"]["conditions"]] == [
        "Programmed",
        "Available",
        "Ready",
        "QuotaGranted",
    ]


# Down


def test_a_hub_namespace_is_copied_with_labels_and_annotations_and_changes_follow(bare_place: Place) -> None:
    bare_place.create(labels={"a": "1"}, annotations={"b": "2"})
    for cell in bare_place.cells.values():
        copy = bare_place.until(cell, lambda found: True, bare_place.name, NAMESPACE)
        assert carries({"a": "1"}, copy["metadata"]["labels"])
        assert carries({"b": "2"}, copy["metadata"]["annotations"])

    bare_place.hub.merge(NAMESPACE.body(bare_place.name), {"metadata": {"labels": {"a": "3"}}})

    for cell in bare_place.cells.values():
        bare_place.until(cell, lambda found: found["metadata"]["labels"]["a"] == "3", bare_place.name, NAMESPACE)


def test_a_deployment_reaches_the_cell_of_its_city_only(place: Place) -> None:
    place.route("DFW")
    place.route("ORD")
    place.deploy("in-dfw", "DFW")
    place.deploy("in-ord", "ORD")

    assert place.arrived(place.dfw, "in-dfw")["spec"] == spec("DFW")
    assert place.arrived(place.ord, "in-ord")["spec"] == spec("ORD")
    assert place.find(place.dfw, "in-ord") is None
    assert place.find(place.ord, "in-dfw") is None


def test_a_policy_created_after_the_deployment_is_taken_up(place: Place) -> None:
    place.deploy()
    place.route()
    place.arrived(place.dfw)


def test_the_hub_object_gets_the_id_of_its_policy_and_no_finalizer(place: Place) -> None:
    policy = place.route()
    place.deploy(annotations={"ours": "yes"})
    place.arrived(place.dfw)
    hub = place.until(place.hub, lambda found: PERMANENT_ID in found["metadata"]["labels"])

    metadata = hub["metadata"]
    assert "finalizers" not in metadata
    assert metadata["labels"] == {
        TOPOLOGY_CITY: "DFW",
        PERMANENT_ID: policy["metadata"]["labels"][PERMANENT_ID],
    }
    assert metadata["annotations"] == {
        "ours": "yes",
        "propagationpolicy.karmada.io/name": "city-dfw",
        "propagationpolicy.karmada.io/namespace": place.name,
    }


def test_the_copy_carries_our_metadata_and_the_marks_of_karmada(place: Place) -> None:
    place.route()
    hub = place.deploy(labels={"ours": "label"}, annotations={"ours": "annotation"})
    metadata = place.arrived(place.dfw)["metadata"]

    assert sorted(metadata["labels"]) == [
        "karmada.io/managed",
        "ours",
        "propagationpolicy.karmada.io/permanent-id",
        "resourcebinding.karmada.io/permanent-id",
        "topology.datum.net/city-code",
        "work.karmada.io/permanent-id",
    ]
    assert sorted(metadata["annotations"]) == [
        "ours",
        "propagationpolicy.karmada.io/name",
        "propagationpolicy.karmada.io/namespace",
        "resourcebinding.karmada.io/name",
        "resourcebinding.karmada.io/namespace",
        "resourcetemplate.karmada.io/generation",
        "resourcetemplate.karmada.io/managed-annotations",
        "resourcetemplate.karmada.io/managed-labels",
        "resourcetemplate.karmada.io/uid",
        "work.karmada.io/conflict-resolution",
        "work.karmada.io/name",
        "work.karmada.io/namespace",
    ]
    assert metadata["annotations"][HUB_GENERATION] == str(hub["metadata"]["generation"])
    assert metadata["annotations"]["resourcetemplate.karmada.io/uid"] == hub["metadata"]["uid"]
    assert metadata["annotations"]["work.karmada.io/namespace"] == "karmada-es-pop-dfw"
    assert "finalizers" not in metadata
    assert "ownerReferences" not in metadata


def test_a_hub_update_changes_spec_and_generation_and_keeps_what_the_cell_added(place: Place) -> None:
    place.route()
    hub = place.deploy(labels={"ours": "1"}, annotations={"goes": "away"})
    copy = place.arrived(place.dfw)
    own = {"labels": {"cell": "label"}, "annotations": {"cell": "annotation"}, "finalizers": [CELL_FINALIZER]}
    place.dfw.merge(copy, {"metadata": own})

    change = {"labels": {"ours": "2"}, "annotations": {"goes": None}}
    place.hub.merge(hub, {"metadata": change, "spec": {"scaleSettings": {"minReplicas": 5}}})

    metadata = place.until(place.dfw, lambda found: found["spec"]["scaleSettings"]["minReplicas"] == 5)["metadata"]
    assert metadata["annotations"][HUB_GENERATION] == "2"
    assert carries({"cell": "label", "ours": "2"}, metadata["labels"])
    assert metadata["annotations"]["cell"] == "annotation"
    assert "goes" not in metadata["annotations"]
    assert metadata["finalizers"] == [CELL_FINALIZER]


def test_a_change_of_metadata_alone_reaches_the_cell_too(place: Place) -> None:
    place.route()
    hub = place.deploy(annotations={"upstream": "1"})
    place.arrived(place.dfw)
    place.hub.merge(hub, {"metadata": {"annotations": {"upstream": "2"}}})
    place.until(place.dfw, lambda found: found["metadata"]["annotations"]["upstream"] == "2")


def test_a_spec_edited_in_the_cell_is_reverted(place: Place) -> None:
    place.route()
    place.deploy()
    copy = place.arrived(place.dfw)
    edited = place.dfw.merge(copy, {"spec": {"scaleSettings": {"minReplicas": 9}}})
    assert edited["spec"]["scaleSettings"]["minReplicas"] == 9
    place.until(place.dfw, lambda found: found["spec"] == spec("DFW"))


def test_a_copy_deleted_in_the_cell_is_recreated(place: Place) -> None:
    place.route()
    place.deploy()
    copy = place.arrived(place.dfw)
    place.dfw.delete(copy)
    place.until(place.dfw, lambda found: found["metadata"]["uid"] != copy["metadata"]["uid"])


def test_a_deleted_policy_leaves_binding_and_copy(place: Place) -> None:
    policy = place.route()
    place.deploy()
    copy = place.arrived(place.dfw)
    place.hub.delete(policy)
    place.gone(place.hub, "city-dfw", PROPAGATION_POLICY)

    # What comes later is proof that Karmada has had its time.
    place.route("ORD")
    place.deploy("later", "ORD")
    place.arrived(place.ord, "later")

    assert place.get(place.dfw)["metadata"]["uid"] == copy["metadata"]["uid"]
    assert "web-workloaddeployment" in [binding["metadata"]["name"] for binding in place.bindings()]


def test_a_copy_is_deleted_with_its_hub_object_once_its_finalizers_are_gone(place: Place) -> None:
    place.route()
    hub = place.deploy()
    copy = place.arrived(place.dfw)
    place.dfw.merge(copy, {"metadata": {"finalizers": [CELL_FINALIZER]}})

    place.hub.delete(hub)

    place.gone(place.hub)
    place.until(place.dfw, lambda found: "deletionTimestamp" in found["metadata"])
    place.dfw.merge(copy, {"metadata": {"finalizers": None}})
    place.gone(place.dfw)


def test_a_hub_instance_is_deleted_with_the_deployment_that_owns_it(place: Place) -> None:
    hub = place.deploy()
    owner = {
        "apiVersion": WORKLOAD_DEPLOYMENT.api_version,
        "kind": WORKLOAD_DEPLOYMENT.name,
        "name": "web",
        "uid": hub["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    body = INSTANCE.body("web-0", place.name, ownerReferences=[owner]) | {"spec": spec("DFW")["template"]["spec"]}
    place.hub.create(body)
    place.hub.delete(hub)
    place.gone(place.hub, "web-0", INSTANCE)


# Up


def test_the_status_of_one_cell_comes_back_as_it_is(place: Place) -> None:
    place.route()
    place.deploy()
    place.arrived(place.dfw)
    reported = status(2, location={"name": "dfw-1", "namespace": ""}, conditions=[AVAILABLE, REPLICAS_READY])

    place.report(place.dfw, reported)

    place.until(place.hub, lambda found: found.get("status") == reported)


def test_a_status_of_zeros_comes_back(place: Place) -> None:
    place.route()
    place.deploy()
    place.arrived(place.dfw)
    reported = dict.fromkeys(COUNTERS, 0)
    place.report(place.dfw, reported)
    place.until(place.hub, lambda found: found.get("status") == reported)


def test_an_empty_list_is_lost_on_the_way_up(place: Place) -> None:
    place.route()
    place.deploy()
    place.arrived(place.dfw)
    place.report(place.dfw, status(1, conditions=[]))
    hub = place.until(place.hub, lambda found: found.get("status"))
    assert "conditions" not in hub["status"]


def test_a_later_status_replaces_the_earlier_one(place: Place) -> None:
    place.route()
    place.deploy()
    place.arrived(place.dfw)
    place.report(place.dfw, status(1))
    place.until(place.hub, lambda found: found.get("status") == status(1))
    place.report(place.dfw, status(2))
    place.until(place.hub, lambda found: found.get("status") == status(2))


def test_without_a_status_in_the_cell_the_hub_has_none(place: Place) -> None:
    place.route()
    place.deploy("silent")
    place.deploy("talking")
    place.arrived(place.dfw, "silent")
    place.arrived(place.dfw, "talking")
    place.report(place.dfw, status(1), "talking")
    place.until(place.hub, lambda found: found.get("status"), "talking")
    assert has_no_status(place.get(place.hub, "silent"))


def test_statuses_of_two_cells_in_one_city_are_summed(place: Place) -> None:
    place.route_to_all()
    place.deploy()
    for cell in (place.dfw, place.ord):
        place.arrived(cell)

    place.report(
        place.dfw, status(2, conditions=[UNAVAILABLE, REPLICAS_READY], location={"name": "a", "namespace": ""})
    )
    place.until(place.hub, lambda found: found.get("status", {}).get("replicas") == 2)
    place.report(place.ord, status(3, observedGeneration=2, location={"name": "b", "namespace": ""}))

    hub = place.until(place.hub, lambda found: found["status"]["replicas"] == 5)
    assert hub["status"] == dict.fromkeys(COUNTERS, 5) | {
        "observedGeneration": 2,
        "location": {"name": "a", "namespace": ""},
        "conditions": [AVAILABLE, REPLICAS_READY],
    }


def test_of_two_cells_only_the_one_that_answered_counts(place: Place) -> None:
    place.route_to_all()
    place.deploy()
    for cell in (place.dfw, place.ord):
        place.arrived(cell)
    place.report(place.ord, status(3))
    place.until(place.hub, lambda found: found.get("status") == status(3))


def test_the_status_of_a_kind_without_interpreter_never_arrives(place: Place) -> None:
    policy = place.hub.create(
        PROPAGATION_POLICY.body("instances", place.name)
        | {
            "spec": {
                "resourceSelectors": [{"apiVersion": INSTANCE.api_version, "kind": INSTANCE.name}],
                "placement": {"clusterAffinity": {"clusterNames": ["pop-dfw"]}},
            }
        }
    )
    created = place.hub.create(INSTANCE.body("web-0", place.name) | {"spec": spec("DFW")["template"]["spec"]})
    copy = place.until(place.dfw, lambda found: True, "web-0", INSTANCE)
    place.dfw.merge(copy, {"status": {"conditions": [AVAILABLE]}}, "status")

    place.route()
    place.deploy()
    place.arrived(place.dfw)
    place.report(place.dfw, status(1))
    place.until(place.hub, lambda found: found.get("status"))

    assert place.get(place.hub, "web-0", INSTANCE)["status"] == created["status"]
    place.hub.delete(created)
    place.gone(place.dfw, "web-0", INSTANCE)
    place.hub.delete(policy)


# Policies


def test_karmada_adds_only_known_defaults_to_our_policy(place: Place) -> None:
    policy = place.route()

    assert policy["spec"] == {
        "conflictResolution": "Abort",
        "placement": {
            "clusterAffinity": {"labelSelector": {"matchLabels": {TOPOLOGY_CITY: "DFW"}}},
            "clusterTolerations": [
                {"effect": "NoExecute", "key": "cluster.karmada.io/not-ready", "operator": "Exists"},
                {"effect": "NoExecute", "key": "cluster.karmada.io/unreachable", "operator": "Exists"},
            ],
        },
        "preemption": "Never",
        "priority": 0,
        "resourceSelectors": [
            {
                "apiVersion": WORKLOAD_DEPLOYMENT.api_version,
                "kind": WORKLOAD_DEPLOYMENT.name,
                "labelSelector": {"matchLabels": {TOPOLOGY_CITY: "DFW"}},
                "namespace": place.name,
            }
        ],
        "schedulerName": "default-scheduler",
    }
    assert list(policy["metadata"]["labels"]) == [PERMANENT_ID]


def test_a_changed_city_alone_moves_nothing_and_freezes_the_copy(place: Place) -> None:
    """An object stays with the policy that claimed it, and that policy does nothing for what it no longer selects."""
    place.route("DFW")
    place.route("ORD")
    hub = place.deploy(city="DFW")
    copy = place.arrived(place.dfw)

    place.hub.merge(hub, MOVE)

    place.deploy("later", "ORD")
    place.arrived(place.ord, "later")
    assert place.find(place.ord) is None
    assert place.get(place.dfw)["spec"] == copy["spec"]
    assert place.get(place.dfw)["metadata"]["labels"][TOPOLOGY_CITY] == "DFW"
    assert place.get(place.hub)["metadata"]["annotations"]["propagationpolicy.karmada.io/name"] == "city-dfw"


def test_a_changed_city_moves_the_copy_when_the_old_policy_is_deleted(place: Place) -> None:
    old = place.route("DFW")
    place.route("ORD")
    hub = place.deploy(city="DFW")
    place.arrived(place.dfw)

    place.hub.merge(hub, MOVE)
    place.hub.delete(old)

    place.arrived(place.ord)
    place.gone(place.dfw)


def test_a_changed_city_moves_the_copy_when_the_mark_of_the_policy_is_removed(place: Place) -> None:
    """The only way while others still need the old policy."""
    place.route("DFW")
    place.route("ORD")
    place.deploy("stays", "DFW")
    hub = place.deploy(city="DFW")
    copy = place.arrived(place.dfw)
    place.arrived(place.dfw, "stays")
    place.dfw.merge(copy, {"metadata": {"finalizers": [CELL_FINALIZER]}})

    place.hub.merge(hub, {"metadata": {"labels": {TOPOLOGY_CITY: "ORD", PERMANENT_ID: None}}, "spec": MOVE["spec"]})

    place.arrived(place.ord)
    place.until(place.dfw, lambda found: "deletionTimestamp" in found["metadata"])
    place.dfw.merge(copy, {"metadata": {"finalizers": None}})
    place.gone(place.dfw)
    assert place.find(place.dfw, "stays") is not None
    assert place.get(place.hub)["metadata"]["annotations"]["propagationpolicy.karmada.io/name"] == "city-ord"


def test_karmada_restores_marks_that_a_replace_drops(place: Place) -> None:
    policy = place.route()
    place.deploy()
    copy = place.arrived(place.dfw)

    until("a replace", lambda: place.hub.replace(without_marks(place.get(place.hub))))

    hub = place.until(place.hub, lambda found: PERMANENT_ID in found["metadata"]["labels"])
    assert hub["metadata"]["labels"][PERMANENT_ID] == policy["metadata"]["labels"][PERMANENT_ID]
    assert place.get(place.dfw)["metadata"]["uid"] == copy["metadata"]["uid"]


def without_marks(body: Json) -> Json:
    metadata = {key: value for key, value in body["metadata"].items() if key != "annotations"}
    return body | {"metadata": metadata | {"labels": {TOPOLOGY_CITY: "DFW"}}}


# Outages: Karmada notices after half a minute, and tries again within a minute


RECOVERY_SECONDS = 240.0
KARMADA = ("karmada-aggregated-apiserver", "karmada-webhook", "karmada-controller-manager", "karmada-scheduler")
NOT_READY = {"key": "cluster.karmada.io/not-ready", "effect": "NoSchedule"}
FIVE: Json = {"spec": {"scaleSettings": {"minReplicas": 5}}}


def has_five(found: Json) -> bool:
    return bool(found["spec"]["scaleSettings"]["minReplicas"] == 5)


@pytest.mark.timeout(900)
@pytest.mark.minutes
def test_a_cell_that_is_away_keeps_everything_and_catches_up(engine: Engine, place: Place) -> None:
    place.route()
    stays, doomed = place.deploy("stays"), place.deploy("doomed")
    for name in ("stays", "doomed"):
        place.arrived(place.dfw, name)
    place.report(place.dfw, status(1), "stays")
    place.until(place.hub, lambda found: found.get("status") == status(1), "stays")

    engine.kill("pop-dfw-apiserver")
    try:
        cluster = place.until(
            place.hub, lambda found: condition(found, "Ready") == "False", "pop-dfw", CLUSTER, RECOVERY_SECONDS
        )
        ready = next(found for found in cluster["status"]["conditions"] if found["type"] == "Ready")
        assert ready["reason"] == "ClusterNotReachable"
        cluster = place.until(place.hub, lambda found: found["spec"].get("taints"), "pop-dfw", CLUSTER)
        assert [carries(NOT_READY, taint) for taint in cluster["spec"]["taints"]] == [True]
        assert place.get(place.hub, "stays")["status"] == status(1)
        assert [binding["metadata"]["name"] for binding in place.bindings()] == [
            "doomed-workloaddeployment",
            "stays-workloaddeployment",
        ]

        place.hub.delete(doomed)
        assert place.find(place.hub, "doomed") is None, "a delete on the hub waits for nobody"
        place.hub.merge(stays, FIVE)
        place.deploy("new")
    finally:
        engine.start("pop-dfw-apiserver")

    place.report(place.dfw, status(2), "stays")

    place.until(
        place.hub, lambda found: condition(found, "Ready") == "True", "pop-dfw", CLUSTER, seconds=RECOVERY_SECONDS
    )
    place.until(place.dfw, has_five, "stays", seconds=RECOVERY_SECONDS)
    place.arrived(place.dfw, "new", seconds=RECOVERY_SECONDS)
    place.gone(place.dfw, "doomed", seconds=RECOVERY_SECONDS)
    # Only now does Karmada watch the cell again. What it made there since and was deleted before would stay for ever.
    place.until(place.hub, lambda found: found["status"] == status(2), "stays", seconds=RECOVERY_SECONDS)
    place.until(place.hub, lambda found: not found["spec"].get("taints"), "pop-dfw", CLUSTER, seconds=RECOVERY_SECONDS)


@pytest.mark.timeout(900)
@pytest.mark.minutes
def test_a_hub_outage_of_a_minute_ends_no_process_and_loses_nothing(engine: Engine, place: Place) -> None:
    place.route()
    stays, doomed = place.deploy("stays"), place.deploy("doomed")
    for name in ("stays", "doomed"):
        place.arrived(place.dfw, name)
    place.report(place.dfw, status(1), "stays")
    place.until(place.hub, lambda found: found.get("status") == status(1), "stays")

    engine.kill("downstream-apiserver")
    try:
        end = time.monotonic() + 60
        place.report(place.dfw, status(2), "stays")
        until("an outage of a minute", lambda: time.monotonic() > end, 120)
        states = {row.name: row.state for row in engine.status()}
        assert [states[name] for name in KARMADA] == [State.RUNNING] * len(KARMADA)
        assert place.get(place.dfw, "stays")["status"] == status(2)
    finally:
        engine.start("downstream-apiserver")

    place.hub.delete(doomed)
    place.hub.merge(stays, FIVE)
    place.deploy("new")
    place.until(place.hub, lambda found: found.get("status") == status(2), "stays", seconds=RECOVERY_SECONDS)
    place.until(place.dfw, has_five, "stays", seconds=RECOVERY_SECONDS)
    place.arrived(place.dfw, "new", seconds=RECOVERY_SECONDS)
    place.gone(place.dfw, "doomed", seconds=RECOVERY_SECONDS)
