"""Writes to objects, as a kube-apiserver handles those of a CRD with a status subresource."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from datum_compute.api.instance import INITIAL_STATUS, INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json, encode, timestamp
from datum_compute.kube.patches import JSON, MERGE
from datum_compute.kube.transport import Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import START, Simulation
from tests.scenarios.federation import placement, template

STATUS = {
    "deployments": 1,
    "replicas": 1,
    "currentReplicas": 1,
    "updatedReplicas": 1,
    "desiredReplicas": 1,
    "readyReplicas": 1,
}


class Plane:
    """One plane, called with plain JSON."""

    def __init__(self, simulation: Simulation) -> None:
        self._engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self._server = self._engine.serve("demo", PROJECT)
        self._hub = self._engine.serve("hub", HUB)

    @property
    def revision(self) -> int:
        return self._engine.store.revision

    async def raw(self, call: Call) -> tuple[int, Json]:
        server = self._hub if CLUSTER.group in call.path else self._server
        answer = await server.answer(call)
        body: Json = msgspec.json.decode(answer.body)
        if answer.code >= 300:
            assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", answer.code)
            assert body["message"]
        return answer.code, body

    async def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Json:
        code, answer = await self.raw(Call(method, path, body=encode(body) if body else b"", content_type=content_type))
        assert code == (201 if method == "POST" else 200), answer
        return answer

    async def refused(self, method: str, path: str, body: Any, content_type: str = "application/json") -> "Refusal":
        """Checks that the call fails and changes nothing."""
        before = self.revision
        code, status = await self.raw(Call(method, path, body=encode(body), content_type=content_type))
        assert code >= 300
        assert self.revision == before
        causes = [(cause["reason"], cause["field"]) for cause in status.get("details", {}).get("causes", [])]
        return Refusal(code, status["reason"], causes, status["message"])

    async def create(self, body: Json, kind: Kind[Any] = WORKLOAD) -> Json:
        return await self.send("POST", kind.path(body["metadata"].get("namespace", "")), body)

    async def get(self, kind: Kind[Any] = WORKLOAD, name: str = "web") -> Json:
        return await self.send("GET", at(kind, name))

    async def put(self, body: Json, subresource: str = "") -> Json:
        return await self.send("PUT", at(subresource=subresource), body)

    async def merge(self, patch: Json, subresource: str = "") -> Json:
        return await self.send("PATCH", at(subresource=subresource), patch, MERGE)

    async def patch(self, *operations: Json) -> Json:
        return await self.send("PATCH", at(), operations, JSON)

    async def delete(self, name: str = "web") -> Json:
        return await self.send("DELETE", at(name=name))


class Refusal(msgspec.Struct):
    code: int
    reason: str
    causes: list[tuple[str, str]]
    message: str


def at(kind: Kind[Any] = WORKLOAD, name: str = "web", subresource: str = "") -> str:
    return kind.path("default", name, subresource)


def workload(name: str = "web", replicas: int = 1, **metadata: object) -> Json:
    spec = {"template": template(), "placements": [placement("main", ["DFW"], replicas)]}
    return WORKLOAD.body(name, "default", **metadata) | {"spec": spec}


def changed(body: Json, part: str, **values: object) -> Json:
    return body | {part: {**body.get(part, {}), **values}}


@pytest.fixture
def plane(runner: asyncio.Runner, simulation: Simulation) -> Plane:
    plane = Plane(simulation)
    runner.run(plane.create(NAMESPACE.body("default"), NAMESPACE))
    return plane


# create


async def test_create_sets_server_managed_metadata(plane: Plane) -> None:
    created = await plane.create(
        workload(labels={"app": "web"}, annotations={"note": "x"}, finalizers=["example.test/a"])
    )
    assert created["metadata"] == {
        "name": "web",
        "namespace": "default",
        "uid": created["metadata"]["uid"],
        "resourceVersion": str(plane.revision),
        "generation": 1,
        "creationTimestamp": timestamp(START),
        "labels": {"app": "web"},
        "annotations": {"note": "x"},
        "finalizers": ["example.test/a"],
    }
    assert created["metadata"]["uid"]
    assert await plane.get() == created


async def test_create_ignores_server_managed_metadata_in_the_request(plane: Plane) -> None:
    owned = {
        "uid": "mine",
        "generation": 7,
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 5,
        "selfLink": "/mine",
        "managedFields": [],
    }
    metadata = (await plane.create(changed(workload(), "metadata", **owned)))["metadata"]
    assert metadata["uid"] != "mine"
    assert (metadata["generation"], metadata["creationTimestamp"]) == (1, timestamp(START))
    assert not {"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"} & set(metadata)


async def test_create_drops_the_status(plane: Plane) -> None:
    assert "status" not in await plane.create(workload() | {"status": STATUS})


async def test_an_instance_starts_with_the_status_of_its_schema(plane: Plane) -> None:
    body = INSTANCE.body("web", "default") | {"spec": template()["spec"], "status": {"conditions": []}}
    created = await plane.create(body, INSTANCE)
    assert created["status"] == INITIAL_STATUS
    assert (await plane.get(INSTANCE))["status"] == INITIAL_STATUS


async def test_unknown_fields_are_pruned(plane: Plane) -> None:
    body = changed(changed(workload(), "spec", unknown=1), "metadata", unknown=1) | {"unknown": 1}
    body["spec"]["placements"][0]["unknown"] = 1
    created = await plane.create(body)
    assert set(created) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(created["spec"]) == {"template", "placements"}
    assert "unknown" not in created["metadata"]
    assert "unknown" not in created["spec"]["placements"][0]


async def test_defaults_are_filled_in(plane: Plane) -> None:
    created = await plane.create(workload())
    settings = created["spec"]["placements"][0]["scaleSettings"]
    assert settings == {"minReplicas": 1, "instanceManagementPolicy": "OrderedReady"}


@pytest.mark.parametrize("prefix", ["web-", "w" * 70])
async def test_generated_names_have_the_prefix_and_are_unique_and_short(plane: Plane, prefix: str) -> None:
    body = changed(workload(), "metadata", generateName=prefix)
    del body["metadata"]["name"]
    names = [(await plane.create(body))["metadata"]["name"] for _ in range(5)]
    assert len(set(names)) == 5
    for name in names:
        assert (name[:-5], len(name[-5:])) == (prefix[:58], 5)
    created = await plane.get(name=names[0])
    assert created["metadata"]["generateName"] == prefix


async def test_name_wins_over_generate_name(plane: Plane) -> None:
    assert (await plane.create(workload(generateName="other-")))["metadata"]["name"] == "web"


async def test_an_existing_name_is_refused(plane: Plane) -> None:
    await plane.create(workload(finalizers=["example.test/a"]))
    refusal = await plane.refused("POST", WORKLOAD.path("default"), workload(replicas=2))
    assert (refusal.code, refusal.reason) == (409, "AlreadyExists")
    await plane.delete()
    refusal = await plane.refused("POST", WORKLOAD.path("default"), workload())
    assert (refusal.code, refusal.reason) == (409, "AlreadyExists")
    assert "being deleted" in refusal.message


async def test_the_same_name_in_another_namespace_or_of_another_kind_is_another_object(plane: Plane) -> None:
    await plane.create(NAMESPACE.body("other"), NAMESPACE)
    uids = {
        (await plane.create(workload()))["metadata"]["uid"],
        (await plane.create(changed(workload(), "metadata", namespace="other")))["metadata"]["uid"],
        (await plane.create(INSTANCE.body("web", "default") | {"spec": template()["spec"]}, INSTANCE))["metadata"][
            "uid"
        ],
    }
    assert len(uids) == 3


async def test_a_missing_namespace_is_refused(plane: Plane) -> None:
    elsewhere = changed(workload(), "metadata", namespace="nowhere")
    refusal = await plane.refused("POST", WORKLOAD.path("nowhere"), elsewhere)
    assert (refusal.code, refusal.reason) == (404, "NotFound")
    assert 'namespaces "nowhere"' in refusal.message


@pytest.mark.parametrize("body", [workload("new"), workload("web"), WORKLOAD.body("Bad Name", "default")])
async def test_nothing_is_created_in_a_terminating_namespace(plane: Plane, body: Json) -> None:
    await plane.create(workload())
    await plane.send("DELETE", NAMESPACE.path(name="default"))
    refusal = await plane.refused("POST", WORKLOAD.path("default"), body)
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert refusal.causes == [("NamespaceTerminating", "metadata.namespace")]


@pytest.mark.parametrize(
    "body",
    [
        workload() | {"apiVersion": "compute.datumapis.com/v2"},
        workload() | {"apiVersion": "v1", "kind": "Namespace"},
        {key: value for key, value in workload().items() if key != "apiVersion"},
        {key: value for key, value in workload().items() if key != "kind"},
        changed(workload(), "metadata", namespace="other"),
        changed(workload(), "metadata", resourceVersion="1"),
        changed(workload(), "metadata", labels=["a"]),
        changed(workload(), "metadata", labels={"a": 1}),
        changed(workload(), "metadata", finalizers="a"),
        changed(workload(), "metadata", name=5),
        workload() | {"metadata": "web"},
        ["a list"],
        "a string",
        None,
    ],
)
async def test_a_senseless_body_is_a_bad_request(plane: Plane, body: Any) -> None:
    refusal = await plane.refused("POST", WORKLOAD.path("default"), body)
    assert (refusal.code, refusal.reason) == (400, "BadRequest")


@pytest.mark.parametrize("body", [b"", b"{", b"{} {}", b"\xff", b'{"a": "\xff"}', b"[" * 100_000, b'{"a":' * 5000])
async def test_a_body_that_is_not_json_is_a_bad_request(plane: Plane, body: bytes) -> None:
    for call in (
        Call("POST", WORKLOAD.path("default"), body=body),
        Call("PUT", at(), body=body),
        Call("PATCH", at(), body=body, content_type=MERGE),
        Call("PATCH", at(), body=body, content_type=JSON),
        Call("DELETE", at(), body=body or b"["),
    ):
        code, status = await plane.raw(call)
        assert (code, status["reason"]) == (400, "BadRequest")


def owner(**changes: object) -> Json:
    return {"apiVersion": WORKLOAD.api_version, "kind": "Workload", "name": "x", "uid": "y", **changes}


def without_spec(body: Json) -> Json:
    return {key: value for key, value in body.items() if key != "spec"}


@pytest.mark.parametrize(
    ("body", "causes"),
    [
        (changed(workload(), "metadata", name=""), [("FieldValueRequired", "metadata.name")]),
        (workload("Web"), [("FieldValueInvalid", "metadata.name")]),
        (workload("a_b"), [("FieldValueInvalid", "metadata.name")]),
        (workload("a" * 254), [("FieldValueInvalid", "metadata.name")]),
        (workload("web\n"), [("FieldValueInvalid", "metadata.name")]),
        (workload(labels={"-a": "b"}), [("FieldValueInvalid", "metadata.labels")]),
        (workload(labels={"A_b/c": "d"}), [("FieldValueInvalid", "metadata.labels")]),
        (workload(labels={"a": "b c"}), [("FieldValueInvalid", "metadata.labels")]),
        (workload(labels={"a": "b" * 64}), [("FieldValueInvalid", "metadata.labels")]),
        (workload(annotations={"a b": "c"}), [("FieldValueInvalid", "metadata.annotations")]),
        (workload(finalizers=["a b"]), [("FieldValueInvalid", "metadata.finalizers")]),
        (workload(ownerReferences=[owner(uid="")]), [("FieldValueInvalid", "metadata.ownerReferences.uid")]),
        (
            workload(ownerReferences=[owner(controller=True), owner(uid="z", controller=True)]),
            [("FieldValueInvalid", "metadata.ownerReferences")],
        ),
        (workload() | {"kind": "Instance"}, [("FieldValueInvalid", "kind")]),
        (without_spec(workload()), [("FieldValueRequired", "spec")]),
        (changed(workload(), "spec", placements=[]), [("FieldValueInvalid", "spec.placements")]),
        (changed(workload(), "spec", placements="DFW"), [("FieldValueTypeInvalid", "spec.placements")]),
        (
            changed(workload(), "spec", placements=[{"name": "a", "cityCodes": ["DFW"], "scaleSettings": {}}]),
            [("FieldValueRequired", "spec.placements[0].scaleSettings.minReplicas")],
        ),
        (
            without_spec(workload("Web", labels={"a": "b c"})),
            [
                ("FieldValueInvalid", "metadata.name"),
                ("FieldValueInvalid", "metadata.labels"),
                ("FieldValueRequired", "spec"),
            ],
        ),
    ],
)
async def test_all_violations_of_a_body_are_reported_with_their_fields(
    plane: Plane, body: Json, causes: list[tuple[str, str]]
) -> None:
    refusal = await plane.refused("POST", WORKLOAD.path("default"), body)
    assert (refusal.code, refusal.reason, refusal.causes) == (422, "Invalid", causes)
    assert all(field in refusal.message for _, field in causes)


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "", "example.test/a.b-c_D": "x.y-z_0", "a" * 63: "b" * 63}},
        {"annotations": {"Example.test/Note": "any text at all: \n {}…"}},
        {"finalizers": ["plain", "example.test/a"]},
        {"ownerReferences": [owner(), owner(uid="z", controller=True, blockOwnerDeletion=True)]},
    ],
)
async def test_valid_metadata_is_stored_unchanged(plane: Plane, metadata: Json) -> None:
    created = await plane.create(workload(**metadata))
    assert {key: created["metadata"][key] for key in metadata} == metadata


async def test_a_repeated_finalizer_counts_once(plane: Plane) -> None:
    created = await plane.create(workload(finalizers=["example.test/a", "example.test/b", "example.test/a"]))
    assert created["metadata"]["finalizers"] == ["example.test/a", "example.test/b"]


async def test_a_cluster_scoped_object_drops_the_namespace_of_the_request(plane: Plane) -> None:
    created = await plane.send("POST", CLUSTER.path(), CLUSTER.body("cell-dfw", "default"))
    assert "namespace" not in created["metadata"]


# namespaces


async def test_a_namespace_starts_active_and_carries_its_name_as_a_label(plane: Plane) -> None:
    created = await plane.create(NAMESPACE.body("other", labels={"a": "b"}) | {"status": {"phase": "X"}}, NAMESPACE)
    assert created["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "other"}
    assert created["status"] == {"phase": "Active"}


async def test_a_namespace_may_leave_out_its_type_and_is_replaced_without_a_resource_version(plane: Plane) -> None:
    created = await plane.send("POST", NAMESPACE.path(), {"metadata": {"name": "other"}})
    assert (created["apiVersion"], created["kind"]) == ("v1", "Namespace")
    replaced = await plane.send(
        "PUT", NAMESPACE.path(name="other"), {"metadata": {"name": "other", "labels": {"a": "b"}}}
    )
    assert replaced["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "other"}
    assert (replaced["spec"], replaced["status"]) == (created["spec"], created["status"])


@pytest.mark.parametrize("name", ["a.b", "A", "a" * 64])
async def test_the_name_of_a_namespace_is_a_label(plane: Plane, name: str) -> None:
    refusal = await plane.refused("POST", NAMESPACE.path(), NAMESPACE.body(name))
    assert refusal.code == 422
    assert ("FieldValueInvalid", "metadata.name") in refusal.causes


@pytest.mark.parametrize("metadata", [None, "other", [], {"name": "other", "labels": "a"}, {"labels": {}}])
async def test_a_namespace_without_proper_metadata_is_refused(plane: Plane, metadata: Any) -> None:
    refusal = await plane.refused("POST", NAMESPACE.path(), {"metadata": metadata})
    assert refusal.code in (400, 422)


async def test_only_the_lifecycle_removes_the_finalizer_of_a_namespace(plane: Plane) -> None:
    patched = await plane.send("PATCH", NAMESPACE.path(name="default"), {"spec": None}, MERGE)
    assert patched["spec"] == {"finalizers": ["kubernetes"]}
    deleting = await plane.send("DELETE", NAMESPACE.path(name="default"))
    assert deleting["status"] == {"phase": "Terminating"}
    assert deleting["metadata"]["deletionTimestamp"]


# update and patch


async def test_a_put_replaces_client_fields_and_keeps_server_fields(plane: Plane) -> None:
    before = await plane.create(workload(labels={"a": "1", "b": "2"}, annotations={"c": "3"}))
    after = await plane.put(
        workload(replicas=2, labels={"a": "9"}, resourceVersion=before["metadata"]["resourceVersion"])
    )
    assert after["metadata"] == {
        **{key: before["metadata"][key] for key in ("name", "namespace", "uid", "creationTimestamp")},
        "resourceVersion": str(plane.revision),
        "generation": 2,
        "labels": {"a": "9"},
    }
    assert after["spec"]["placements"][0]["scaleSettings"]["minReplicas"] == 2


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_write_on_an_old_resource_version_conflicts(plane: Plane, method: str, subresource: str) -> None:
    old = await plane.create(workload())
    await plane.merge({"metadata": {"labels": {"a": "b"}}})
    body = (
        old | {"status": STATUS}
        if method == "PUT"
        else {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
    )
    content_type = "application/json" if method == "PUT" else MERGE
    refusal = await plane.refused(method, at(subresource=subresource), body, content_type)
    assert (refusal.code, refusal.reason) == (409, "Conflict")


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_put_needs_a_resource_version_and_a_patch_cannot_remove_it(plane: Plane, subresource: str) -> None:
    await plane.create(workload())
    path, causes = at(subresource=subresource), [("FieldValueInvalid", "metadata.resourceVersion")]
    for refusal in (
        await plane.refused("PUT", path, workload() | {"status": STATUS}),
        await plane.refused("PATCH", path, {"metadata": {"resourceVersion": None}}, MERGE),
    ):
        assert (refusal.code, refusal.causes) == (422, causes)


@pytest.mark.parametrize("metadata", [{"name": "other"}, {"name": None}, {"namespace": "other"}])
async def test_a_write_cannot_move_an_object(plane: Plane, metadata: Json) -> None:
    before = await plane.create(workload())
    for method, body, content_type in (
        ("PUT", changed(before, "metadata", **metadata), "application/json"),
        ("PATCH", {"metadata": metadata}, MERGE),
    ):
        refusal = await plane.refused(method, at(), body, content_type)
        assert (refusal.code, refusal.reason) == (400, "BadRequest")


async def test_a_put_for_another_uid_conflicts_and_a_patch_is_invalid(plane: Plane) -> None:
    before = await plane.create(workload())
    refusal = await plane.refused("PUT", at(), changed(before, "metadata", uid="other"))
    assert (refusal.code, refusal.reason) == (409, "Conflict")
    refusal = await plane.refused("PUT", at(subresource="status"), changed(before, "metadata", uid="other"))
    assert (refusal.code, refusal.reason) == (409, "Conflict")
    refusal = await plane.refused("PATCH", at(), {"metadata": {"uid": "other"}}, MERGE)
    assert (refusal.code, refusal.causes) == (422, [("FieldValueInvalid", "metadata.uid")])


async def test_a_write_to_a_missing_object_is_not_found(plane: Plane) -> None:
    for method, content_type in (("PUT", "application/json"), ("PATCH", MERGE), ("DELETE", "application/json")):
        body = {} if method == "DELETE" else workload(resourceVersion="1")
        refusal = await plane.refused(method, at(), body, content_type)
        assert (refusal.code, refusal.reason) == (404, "NotFound")


@pytest.mark.parametrize(
    ("patch", "subresource", "generation"),
    [
        ({"spec": {"placements": [placement("main", ["AMS"], 1)]}}, "", 2),
        ({"metadata": {"labels": {"a": "b"}}}, "", 1),
        ({"metadata": {"annotations": {"a": "b"}}}, "", 1),
        ({"metadata": {"finalizers": ["example.test/a"]}}, "", 1),
        ({"metadata": {"generation": 9}}, "", 1),
        ({"status": STATUS}, "status", 1),
        ({"status": STATUS}, "", 1),
        ({"spec": {"placements": [placement("main", ["AMS"], 1)]}}, "status", 1),
    ],
)
async def test_only_a_change_of_the_spec_increments_the_generation(
    plane: Plane, patch: Json, subresource: str, generation: int
) -> None:
    await plane.create(workload())
    assert (await plane.merge(patch, subresource))["metadata"]["generation"] == generation


async def test_the_main_endpoint_never_changes_the_status(plane: Plane) -> None:
    before = await plane.create(workload())
    assert "status" not in await plane.put(before | {"status": STATUS})
    before = await plane.merge({"status": STATUS}, "status")
    after = await plane.put(changed(before, "metadata", labels={"a": "b"}) | {"status": STATUS | {"replicas": 9}})
    assert after["status"] == STATUS
    without = {key: value for key, value in after.items() if key != "status"}
    assert (await plane.put(changed(without, "metadata", labels={"c": "d"})))["status"] == STATUS
    assert (await plane.merge({"status": None, "metadata": {"labels": {"e": "f"}}}))["status"] == STATUS


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_the_status_endpoint_changes_only_the_status(plane: Plane, method: str) -> None:
    before = await plane.create(workload(labels={"a": "1"}, finalizers=["example.test/a"]))
    other = workload(
        replicas=9, labels={"b": "2"}, annotations={"c": "3"}, resourceVersion=before["metadata"]["resourceVersion"]
    )
    other |= {"status": STATUS}
    after = await (plane.put(other, "status") if method == "PUT" else plane.merge(other, "status"))
    assert after == changed(before, "metadata", resourceVersion=str(plane.revision)) | {"status": STATUS}


async def test_a_status_put_replaces_the_whole_status(plane: Plane) -> None:
    await plane.create(workload())
    before = await plane.merge({"status": STATUS | {"observedGeneration": 1}}, "status")
    assert (await plane.put(before | {"status": STATUS}, "status"))["status"] == STATUS
    assert "status" not in await plane.put({**before, **await plane.get()} | {"status": None}, "status")


async def test_a_status_that_breaks_its_schema_is_refused(plane: Plane) -> None:
    await plane.create(workload())
    refusal = await plane.refused("PATCH", at(subresource="status"), {"status": {"replicas": "many"}}, MERGE)
    assert refusal.code == 422
    assert ("FieldValueTypeInvalid", "status.replicas") in refusal.causes
    assert ("FieldValueRequired", "status.readyReplicas") in refusal.causes


Write = Callable[[Plane, Json], Any]


@pytest.mark.parametrize(
    "write",
    [
        lambda plane, current: plane.put(current),
        lambda plane, current: plane.put(current, "status"),
        lambda plane, current: plane.put(dict(reversed(current.items())) | {"status": {}, "unknown": 1}),
        lambda plane, current: plane.put(changed(current, "metadata", generation=9, creationTimestamp=None, unknown=1)),
        lambda plane, current: plane.merge({"metadata": {"labels": {"a": "1", "absent": None}}}),
        lambda plane, current: plane.merge({"metadata": {"resourceVersion": current["metadata"]["resourceVersion"]}}),
        lambda plane, current: plane.merge({"spec": current["spec"] | {"unknown": 1}}),
        lambda plane, current: plane.merge({"status": STATUS}, "status"),
        lambda plane, current: plane.merge({"spec": None, "metadata": {"labels": None}}, "status"),
        lambda plane, current: plane.patch({"op": "test", "path": "/metadata/name", "value": "web"}),
        lambda plane, current: plane.patch({"op": "add", "path": "/metadata/labels/a", "value": "1"}),
    ],
)
async def test_a_write_that_changes_nothing_keeps_version_and_generation(plane: Plane, write: Write) -> None:
    await plane.create(workload(labels={"a": "1"}))
    current = await plane.merge({"status": STATUS}, "status")
    revision = plane.revision
    assert await write(plane, current) == current
    assert plane.revision == revision


async def test_true_is_not_one(plane: Plane) -> None:
    await plane.send("POST", CLUSTER.path(), CLUSTER.body("cell") | {"spec": {"secure": 1}})
    after = await plane.send("PATCH", CLUSTER.path(name="cell"), {"spec": {"secure": True}}, MERGE)
    assert after["spec"]["secure"] is True
    assert after["metadata"]["generation"] == 2


async def test_a_merge_patch_merges_objects_replaces_lists_and_removes_with_null(plane: Plane) -> None:
    await plane.create(
        workload(labels={"a": "1", "b": "2"}, annotations={"c": "3"}, finalizers=["example.test/a", "example.test/b"])
    )
    after = await plane.merge(
        {"metadata": {"labels": {"a": None, "d": "4"}, "annotations": {"c": None}, "finalizers": ["example.test/b"]}}
    )
    assert after["metadata"]["labels"] == {"b": "2", "d": "4"}
    assert "annotations" not in after["metadata"]
    assert after["metadata"]["finalizers"] == ["example.test/b"]
    after = await plane.merge({"metadata": {"labels": None, "finalizers": None}})
    assert not {"labels", "finalizers"} & set(after["metadata"])


async def test_a_json_patch_is_applied_in_order(plane: Plane) -> None:
    await plane.create(workload(labels={"a": "1"}))
    after = await plane.patch(
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "add", "path": "/metadata/labels/example.test~1b", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/a"},
        {"op": "replace", "path": "/spec/placements/0/cityCodes/0", "value": "AMS"},
    )
    assert after["metadata"]["labels"] == {"example.test/b": "2"}
    assert after["spec"]["placements"][0]["cityCodes"] == ["AMS"]
    assert after["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        (
            [{"op": "add", "path": "/metadata/labels/b", "value": "2"}, {"op": "test", "path": "/kind", "value": "X"}],
            422,
        ),
        ([{"op": "remove", "path": "/metadata/labels/absent"}], 422),
        ([{"op": "replace", "path": "/spec", "value": {}}], 422),
        ([{"op": "replace", "path": "", "value": 5}], 400),
        ([{"op": "remove", "path": "/metadata"}], 400),
        ([{"op": "frobnicate", "path": "/spec"}], 400),
        ({"op": "test", "path": "/kind", "value": "Workload"}, 400),
        ([5], 400),
    ],
)
async def test_a_json_patch_that_does_not_apply_changes_nothing(plane: Plane, operations: Any, code: int) -> None:
    await plane.create(workload(labels={"a": "1"}))
    assert (await plane.refused("PATCH", at(), operations, JSON)).code == code


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"spec": {"placements": []}}, 422),
        ({"spec": None}, 422),
        ({"metadata": {"labels": {"a": "b c"}}}, 422),
        ({"kind": "Instance"}, 422),
        ({"metadata": None}, 400),
        ({"metadata": {"labels": 5}}, 400),
        ([], 400),
    ],
)
async def test_a_merge_patch_that_does_not_apply_changes_nothing(plane: Plane, patch: Any, code: int) -> None:
    await plane.create(workload())
    assert (await plane.refused("PATCH", at(), patch, MERGE)).code == code


@pytest.mark.parametrize(
    "content_type", ["application/strategic-merge-patch+json", "application/apply-patch+cbor", "application/json", ""]
)
async def test_other_patches_are_not_supported(plane: Plane, content_type: str) -> None:
    await plane.create(workload())
    refusal = await plane.refused("PATCH", at(), {"spec": {}}, content_type)
    assert (refusal.code, refusal.reason) == (415, "UnsupportedMediaType")


async def test_a_patch_may_declare_its_character_set(plane: Plane) -> None:
    await plane.create(workload())
    patch = {"metadata": {"labels": {"a": "b"}}}
    after = await plane.send("PATCH", at(), patch, f"{MERGE}; charset=utf-8")
    assert after["metadata"]["labels"] == {"a": "b"}


# delete


async def test_an_object_without_finalizers_is_deleted_at_once(plane: Plane) -> None:
    uid = (await plane.create(workload()))["metadata"]["uid"]
    answer = await plane.delete()
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "web", "group": WORKLOAD.group, "kind": WORKLOAD.plural, "uid": uid}
    assert (await plane.raw(Call("GET", at())))[0] == NotFound.code


async def test_an_object_with_finalizers_is_only_marked_for_deletion(plane: Plane, simulation: Simulation) -> None:
    before = await plane.create(workload(finalizers=["example.test/a"]))
    await asyncio.sleep(5)
    deleting = await plane.delete()
    assert deleting == changed(
        before,
        "metadata",
        resourceVersion=str(plane.revision),
        generation=2,
        deletionTimestamp=timestamp(simulation.now()),
        deletionGracePeriodSeconds=0,
    )
    assert await plane.get() == deleting


async def test_deleting_again_changes_nothing(plane: Plane) -> None:
    await plane.create(workload(finalizers=["example.test/a"]))
    deleting, revision = await plane.delete(), plane.revision
    await asyncio.sleep(5)
    assert await plane.delete() == deleting
    assert plane.revision == revision


async def test_removing_the_last_finalizer_completes_the_deletion(plane: Plane) -> None:
    await plane.create(workload(finalizers=["example.test/a", "example.test/b"]))
    await plane.delete()
    remaining = await plane.merge({"metadata": {"finalizers": ["example.test/b"]}})
    assert await plane.get() == remaining
    last = await plane.merge({"metadata": {"finalizers": None}})
    assert "finalizers" not in last["metadata"]
    assert (last["kind"], last["metadata"]["uid"]) == ("Workload", remaining["metadata"]["uid"])
    assert (await plane.raw(Call("GET", at())))[0] == NotFound.code


async def test_removing_the_last_finalizer_of_a_live_object_deletes_nothing(plane: Plane) -> None:
    await plane.create(workload(finalizers=["example.test/a"]))
    after = await plane.merge({"metadata": {"finalizers": []}})
    assert await plane.get() == after


async def test_no_finalizer_is_added_to_an_object_that_is_being_deleted(plane: Plane) -> None:
    await plane.create(workload(finalizers=["example.test/a", "example.test/b"]))
    await plane.delete()
    refusal = await plane.refused(
        "PATCH", at(), {"metadata": {"finalizers": ["example.test/b", "example.test/c"]}}, MERGE
    )
    assert (refusal.code, refusal.causes) == (422, [("FieldValueForbidden", "metadata.finalizers")])
    after = await plane.merge({"metadata": {"finalizers": ["example.test/b", "example.test/a"]}})
    assert after["metadata"]["finalizers"] == ["example.test/b", "example.test/a"]


async def test_an_object_that_is_being_deleted_can_be_changed_but_not_restored(plane: Plane) -> None:
    await plane.create(workload(finalizers=["example.test/a"]))
    deleting = await plane.delete()
    after = await plane.merge(
        {
            "metadata": {"labels": {"a": "b"}, "deletionTimestamp": None},
            "spec": {"placements": [placement("b", ["AMS"], 1)]},
        }
    )
    assert after["metadata"]["labels"] == {"a": "b"}
    assert after["metadata"]["generation"] == 3
    assert after["metadata"]["deletionTimestamp"] == deleting["metadata"]["deletionTimestamp"]
    assert (await plane.merge({"status": STATUS}, "status"))["status"] == STATUS


@pytest.mark.parametrize("finalizers", [[], ["example.test/a"]])
@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
async def test_a_delete_checks_its_preconditions(plane: Plane, field: str, finalizers: list[str]) -> None:
    created = await plane.create(workload(finalizers=finalizers))
    refusal = await plane.refused("DELETE", at(), {"preconditions": {field: "other"}})
    assert (refusal.code, refusal.reason) == (409, "Conflict")
    await plane.send("DELETE", at(), {"preconditions": {field: created["metadata"][field]}})


@pytest.mark.parametrize("options", [[], {"preconditions": "x"}, {"preconditions": {"uid": 5}}])
async def test_senseless_delete_options_are_a_bad_request(plane: Plane, options: Any) -> None:
    await plane.create(workload())
    assert (await plane.refused("DELETE", at(), options)).code == 400


async def test_an_object_created_again_has_a_new_uid(plane: Plane) -> None:
    first = await plane.create(workload())
    await plane.merge({"spec": {"placements": [placement("b", ["AMS"], 1)]}})
    await plane.delete()
    second = await plane.create(workload())
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["metadata"]["generation"] == 1
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
