"""Unmodified kubectl against the embedded API."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import Json
from tests.https import PLANES, Background
from tests.kubectl import Kubectl, program
from tests.scenarios.federation import placement, template

STATUS = {
    "deployments": 1,
    **dict.fromkeys(("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas"), 1),
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    api = Background(tmp_path_factory.mktemp("embedded"))
    yield api
    api.close()


@pytest.fixture(scope="module")
def kubectl(api: Background, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    home = tmp_path_factory.mktemp("kubectl")
    return Kubectl(program(), home, {plane: api.server.endpoint(plane) for plane in PLANES}, "demo")


def workload(name: str, replicas: int = 1, **metadata: object) -> Json:
    main = placement("main", ["DFW"], replicas)
    main["scaleSettings"]["instanceManagementPolicy"] = "OrderedReady"  # a default inside a list would be a change
    return WORKLOAD.body(name, "default", **metadata) | {"spec": {"template": template(), "placements": [main]}}


def merge(value: Json) -> tuple[str, str]:
    return "--type=merge", f"--patch={msgspec.json.encode(value).decode()}"


def test_kinds_are_listed_and_explained(kubectl: Kubectl) -> None:
    resources = kubectl("api-resources", "--no-headers").splitlines()
    assert {"workloads", "instances", "namespaces", "events", "leases"} <= {line.split()[0] for line in resources}
    assert "clusters" in kubectl("--context=hub", "api-resources", "--output=name")
    assert "placements" in kubectl("explain", "workload.spec")
    assert "minReplicas" in kubectl("explain", "workload.spec.placements.scaleSettings")
    assert "cityCodes" in kubectl("explain", "workload", "--recursive")
    assert "FIELD: labels" in kubectl("explain", "workload.metadata.labels")
    assert 'field "nope" does not exist' in kubectl.refused("explain", "workload.nope")
    assert "data" in kubectl("explain", "configmap")
    assert kubectl("api-resources", "--api-group=compute.datumapis.com", "--verbs=deletecollection", "--output=name")
    assert "compute.datumapis.com/v1alpha" in kubectl("api-versions").splitlines()
    assert "projects" in kubectl("--context=root", "api-resources", "--output=name")


def test_a_workload_is_created_changed_and_deleted(kubectl: Kubectl) -> None:
    assert kubectl("create", manifest=workload("life", labels={"app": "life"})).endswith("/life created\n")
    assert "already exists" in kubectl.refused("create", manifest=workload("life"))

    rows = kubectl("get", "workloads", "--selector=app=life").splitlines()
    assert rows[0].split()[:3] == ["NAME", "AGE", "AVAILABLE"]
    assert rows[1].split()[0] == "life"
    assert "life" in kubectl("get", "workloads", "--field-selector=metadata.name=life", "--all-namespaces")
    assert kubectl("get", "workloads", "--selector=app=other") == ""
    assert kubectl("get", "workload", "life", "--output=name") == "workload.compute.datumapis.com/life\n"
    assert yaml.safe_load(kubectl("get", "workload", "life", "--output=yaml"))["spec"]["placements"]
    read = msgspec.json.decode(kubectl("get", "workload", "life", "--output=json"))
    assert read["metadata"]["labels"] == {"app": "life"}
    assert "life" in kubectl("get", "workload", "life", "--output=wide")

    kubectl("label", "workload", "life", "tier=front")
    kubectl("annotate", "workload", "life", "example.test/a=b")
    kubectl("patch", "workload", "life", *merge({"metadata": {"labels": {"app": None}}}))
    operations = '[{"op":"replace","path":"/spec/placements/0/scaleSettings/minReplicas","value":4}]'
    kubectl("patch", "workload", "life", "--type=json", f"--patch={operations}")
    read = msgspec.json.decode(kubectl("get", "workload", "life", "--output=json"))
    assert read["metadata"]["labels"] == {"tier": "front"}
    assert read["metadata"]["annotations"]["example.test/a"] == "b"
    assert (read["metadata"]["generation"], read["spec"]["placements"][0]["scaleSettings"]["minReplicas"]) == (2, 4)

    assert "deleted" in kubectl("delete", "workload", "life")
    assert "NotFound" in kubectl.refused("get", "workload", "life")


def test_apply_creates_and_changes_and_then_has_nothing_to_do(kubectl: Kubectl) -> None:
    assert kubectl("apply", manifest=workload("applied")).endswith("/applied created\n")
    assert kubectl("apply", manifest=workload("applied")).endswith("/applied unchanged\n")
    assert kubectl("apply", "--dry-run=server", manifest=workload("applied", 2)).endswith(
        "configured (server dry run)\n"
    )
    assert kubectl("apply", manifest=workload("applied", 2)).endswith("/applied configured\n")
    assert kubectl("apply", manifest=workload("applied", 2)).endswith("/applied unchanged\n")
    misspelt = workload("applied", 2)
    misspelt["spec"]["placements"][0]["nmae"] = "x"
    assert 'unknown field "spec.placements[0].nmae"' in kubectl.refused("apply", manifest=misspelt)
    misspelt["metadata"]["name"] = "new"
    assert 'unknown field "spec.placements[0].nmae"' in kubectl.refused("apply", manifest=misspelt)
    assert 'The Workload "bad" is invalid' in kubectl.refused("apply", manifest=WORKLOAD.body("bad") | {"spec": {}})


def test_built_in_kinds_are_created_applied_and_patched(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "made", "--from-literal=a=1")
    kubectl("patch", "configmap", "made", '--patch={"data":{"b":"2"}}')
    assert msgspec.json.decode(kubectl("get", "cm", "made", "--output=json"))["data"] == {"a": "1", "b": "2"}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
    assert kubectl("apply", manifest=manifest) == "configmap/applied created\n"
    assert kubectl("apply", manifest=manifest) == "configmap/applied unchanged\n"
    assert kubectl("apply", manifest=manifest | {"data": {"b": "2"}}) == "configmap/applied configured\n"
    assert msgspec.json.decode(kubectl("get", "cm", "applied", "--output=json"))["data"] == {"b": "2"}
    kubectl("create", "namespace", "made")
    assert "made" in kubectl("get", "namespaces")
    assert "deleted" in kubectl("delete", "namespace", "made")


def test_a_workload_is_described_with_its_events(kubectl: Kubectl) -> None:
    kubectl("create", manifest=workload("told"))
    about = msgspec.json.decode(kubectl("get", "workload", "told", "--output=json"))["metadata"]
    event: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "told.1", "namespace": "default"},
    }
    who = {"apiVersion": WORKLOAD.api_version, "kind": "Workload", "name": "told", "namespace": "default"}
    event["involvedObject"] = who | {"uid": about["uid"]}
    kubectl("create", manifest=event | {"type": "Normal", "reason": "Placed", "message": "placed in DFW", "count": 1})
    described = kubectl("describe", "workload", "told")
    assert "Kind:         Workload" in described
    assert "City Codes:" in described
    last = described.strip().splitlines()[-1].split()
    assert (last[:2], last[-3:]) == (["Normal", "Placed"], ["placed", "in", "DFW"])
    assert "Placed" in kubectl("get", "events")


def test_waiting_for_a_condition_and_for_deletion(kubectl: Kubectl, api: Background) -> None:
    kubectl("create", manifest=workload("awaited", finalizers=["example.test/held"]))
    waiting = kubectl.start("wait", "workload/awaited", "--for=condition=Available", "--timeout=20s")
    api.until(lambda: api.watches() == 1)
    condition = {"type": "Available", "status": "True", "reason": "Up", "message": "it is up"}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    status = {"status": STATUS | {"conditions": [condition]}}
    kubectl("patch", "workload", "awaited", "--subresource=status", *merge(status))
    assert waiting.communicate(timeout=30)[0].endswith("condition met\n")
    assert kubectl("get", "workload", "awaited").splitlines()[1].split()[2:4] == ["True", "Up"]

    kubectl("delete", "workload", "awaited", "--wait=false")
    going = kubectl.start("wait", "workload/awaited", "--for=delete", "--timeout=20s")
    api.until(lambda: api.watches() == 1)
    kubectl("patch", "workload", "awaited", *merge({"metadata": {"finalizers": None}}))
    assert going.communicate(timeout=30)[0].endswith("condition met\n")
    assert "timed out" in kubectl.refused("wait", "namespace/default", "--for=condition=Never", "--timeout=1s")


def test_a_watch_prints_changes(kubectl: Kubectl, api: Background) -> None:
    kubectl("create", manifest=workload("watched"))
    watching = kubectl.start("get", "workload", "watched", "--watch", "--no-headers", "--output-watch-events")
    try:
        api.until(lambda: api.watches() == 1)
        kubectl("label", "workload", "watched", "a=b")
        kubectl("delete", "workload", "watched")
        assert watching.stdout is not None
        assert [watching.stdout.readline().split()[:2] for _ in range(3)] == [
            ["ADDED", "watched"],
            ["MODIFIED", "watched"],
            ["DELETED", "watched"],
        ]
    finally:
        watching.kill()
        watching.communicate()
    api.until(lambda: api.watches() == 0)


def test_a_watch_with_a_selector_prints_changes(kubectl: Kubectl, api: Background) -> None:
    kubectl("create", manifest=workload("left", labels={"side": "left"}))
    arguments = ("--watch", "--no-headers", "--output-watch-events", "--selector=side=right")
    watching = kubectl.start("get", "workloads", *arguments)
    try:
        api.until(lambda: api.watches() == 1)
        kubectl("label", "workload", "left", "side=right", "--overwrite")
        kubectl("label", "workload", "left", "side-")
        assert watching.stdout is not None
        changes = [watching.stdout.readline().split()[:2] for _ in range(2)]
        assert changes == [["ADDED", "left"], ["DELETED", "left"]]
    finally:
        watching.kill()
        watching.communicate()
    api.until(lambda: api.watches() == 0)


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_dependents_are_deleted_by_the_chosen_policy(kubectl: Kubectl, cascade: str) -> None:
    owner, child = f"owner-{cascade}", f"child-{cascade}"
    kubectl("create", manifest=workload(owner))
    uid = kubectl("get", "workload", owner, "--output=jsonpath={.metadata.uid}")
    reference = {"apiVersion": WORKLOAD.api_version, "kind": "Workload", "name": owner, "uid": uid}
    metadata = {"name": child, "ownerReferences": [reference | {"blockOwnerDeletion": True}]}
    kubectl("create", manifest={"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    assert "deleted" in kubectl("delete", "workload", owner, f"--cascade={cascade}")
    assert "NotFound" in kubectl.refused("get", "workload", owner)
    if cascade == "orphan":
        child_object = msgspec.json.decode(kubectl("get", "configmap", child, "--output=json"))
        assert "ownerReferences" not in child_object["metadata"]
    else:
        kubectl("wait", f"configmap/{child}", "--for=delete", "--timeout=20s")
        assert "NotFound" in kubectl.refused("get", "configmap", child)


def test_many_objects_are_deleted_at_once(kubectl: Kubectl) -> None:
    for name in ("many-1", "many-2"):
        kubectl("create", "configmap", name)
        kubectl("label", "configmap", name, "many=yes")
    assert kubectl("delete", "configmaps", "--selector=many=yes").count("deleted") == 2
    assert kubectl("get", "configmaps", "--selector=many=yes", "--output=name") == ""


def test_a_kind_is_defined_used_and_deleted(kubectl: Kubectl) -> None:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {"size": {"type": "integer", "description": "How large it is."}},
            }
        },
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".size"}],
    }
    names = {"kind": "Box", "plural": "boxes", "shortNames": ["bx"]}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "boxes.example.test"},
        "spec": {"group": "example.test", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    assert kubectl("apply", manifest=definition).endswith("boxes.example.test created\n")
    kubectl("wait", "crd/boxes.example.test", "--for=condition=Established", "--timeout=20s")
    assert kubectl("apply", manifest=definition).endswith("boxes.example.test unchanged\n")
    box = {"apiVersion": "example.test/v1", "kind": "Box", "metadata": {"name": "one"}, "size": 3}
    assert kubectl("apply", manifest=box) == "box.example.test/one created\n"
    assert kubectl("apply", manifest=box | {"size": 4}) == "box.example.test/one configured\n"
    assert kubectl("get", "bx").splitlines()[1].split() == ["one", "4"]
    assert "How large it is." in kubectl("explain", "box.size")
    assert "boxes.example.test" in kubectl("get", "crd")
    assert "deleted" in kubectl("delete", "crd", "boxes.example.test")
    assert "boxes" not in kubectl("api-resources", "--output=name", "--cached=false")


def test_a_wrong_token_and_an_unknown_plane_are_reported(kubectl: Kubectl) -> None:
    assert "Unauthorized" in kubectl.refused("--token=wrong", "get", "workloads")
    assert 'plane "nope" is not served here' in kubectl.refused("--context=root", "get", "--raw=/planes/nope/api")
