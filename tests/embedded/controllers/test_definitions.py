"""Kinds defined through the API: restarts, and definitions that must not break the server."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from datum_compute.embedded.storage.log import Log
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Answer, Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.test/v1/namespaces/default/widgets"


def definition(**version: Any) -> Json:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    whole = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}} | version
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.test"},
        "spec": {
            "group": "example.test",
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [whole],
        },
    }


def widget(name: str, **metadata: object) -> Json:
    head = {"apiVersion": "example.test/v1", "kind": "Widget"}
    return head | {"metadata": {"name": name, **metadata}, "spec": {"a": "b", "unknown": 1}}


class Plane:
    """A plane with its controllers."""

    def __init__(self, log: Log) -> None:
        self.engine = compute_engine(log)
        self.transport = InProcess(self.engine.serve("demo", PROJECT))
        self.work = asyncio.create_task(self.engine.run())

    async def ask(self, method: str, path: str, body: Json | None = None) -> Answer:
        type_ = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return await self.transport.call(Call(method, path, {}, msgspec.json.encode(body) if body else b"", type_))

    async def code(self, method: str, path: str, body: Json | None = None) -> int:
        return (await self.ask(method, path, body)).code

    async def stop(self) -> None:
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)
        self.engine.close()


async def test_a_kind_and_its_objects_survive_a_restart(simulation: Simulation, tmp_path: Path) -> None:
    first = Plane(Log(tmp_path / "log.db"))
    await first.engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))
    assert await first.code("POST", DEFINITIONS, definition()) == 201
    await simulation.settle()
    assert await first.code("GET", WIDGETS) == 200
    assert await first.code("POST", WIDGETS, widget("one", finalizers=["example.test/x"])) == 201
    await first.stop()

    second = Plane(Log(tmp_path / "log.db"))
    read = msgspec.json.decode((await second.ask("GET", f"{WIDGETS}/one")).body)
    assert read["spec"] == {"a": "b"}
    assert await second.code("DELETE", f"{DEFINITIONS}/widgets.example.test") == 200
    await second.stop()

    third = Plane(Log(tmp_path / "log.db"))  # continues the deletion and refuses new objects
    assert await third.code("POST", WIDGETS, widget("two")) == 403
    assert await third.code("PATCH", f"{WIDGETS}/one", {"metadata": {"finalizers": None}}) == 200
    await simulation.settle()
    assert await third.code("GET", f"{DEFINITIONS}/widgets.example.test") == 404
    assert await third.code("GET", WIDGETS) == 404
    await third.stop()


async def test_a_kind_that_the_plane_already_serves_is_not_taken_over(simulation: Simulation, tmp_path: Path) -> None:
    body = definition()
    body["metadata"]["name"] = "workloads.compute.datumapis.com"
    body["spec"] |= {"group": "compute.datumapis.com", "names": {"kind": "Workload", "plural": "workloads"}}

    plane = Plane(Log(tmp_path / "log.db"))
    at = f"{DEFINITIONS}/workloads.compute.datumapis.com"
    assert await plane.code("POST", DEFINITIONS, body) == 201
    await simulation.settle()
    answer = (await plane.ask("GET", at)).body
    conditions = {condition["type"]: condition for condition in msgspec.json.decode(answer)["status"]["conditions"]}
    assert conditions["NamesAccepted"]["status"] == "False"
    assert conditions["Established"]["status"] == "False"
    assert await plane.code("DELETE", at) == 200
    await simulation.settle()
    assert await plane.code("GET", at) == 404
    assert await plane.code("GET", "/apis/compute.datumapis.com/v1alpha/workloads") == 200
    await plane.stop()


async def test_a_definition_that_waited_for_its_kind_gets_it_when_the_other_is_deleted(
    simulation: Simulation, tmp_path: Path
) -> None:
    second = definition()
    second["metadata"]["name"] = "gadgets.example.test"
    second["spec"]["names"] = {"kind": "Widget", "plural": "gadgets"}

    plane = Plane(Log(tmp_path / "log.db"))
    for body in (definition(), second):
        assert await plane.code("POST", DEFINITIONS, body) == 201
        await simulation.settle()
    assert await plane.code("GET", "/apis/example.test/v1/gadgets") == 404
    assert await plane.code("DELETE", f"{DEFINITIONS}/widgets.example.test") == 200
    await simulation.settle()
    assert await plane.code("GET", "/apis/example.test/v1/widgets") == 404
    assert await plane.code("GET", "/apis/example.test/v1/gadgets") == 200
    await plane.stop()


@pytest.mark.parametrize(
    "version",
    [
        {"schema": {"openAPIV3Schema": {"type": "object", "properties": 3}}},
        {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}}},
        {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"pattern": "a{1000}{1000}"}}}}},
        {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"items": ["$ref"]}}}}},
        {"schema": {"openAPIV3Schema": {"type": "object", "required": "a"}}},
        {"schema": {"openAPIV3Schema": {"type": "string"}}},
        {"schema": {"openAPIV3Schema": 3}},
        {"schema": {}},
        {"additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": "???"}]},
        {"additionalPrinterColumns": [{}]},
        {"selectableFields": [{"jsonPath": 3}]},
        {"name": 3},
        {"served": "yes"},
        {"served": False},
    ],
)
async def test_an_unusable_definition_is_refused_and_breaks_nothing(
    simulation: Simulation, tmp_path: Path, version: Json
) -> None:
    plane = Plane(Log(tmp_path / "log.db"))
    refused = await plane.ask("POST", DEFINITIONS, definition(**version))
    assert refused.code in (400, 422)
    assert not msgspec.json.decode(refused.body)["message"].rstrip().endswith(":")  # there is always a reason
    assert await plane.code("POST", DEFINITIONS, definition()) == 201
    await simulation.settle()
    assert await plane.code("GET", "/apis/example.test/v1/widgets") == 200
    await plane.stop()


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "object", "$ref": "#/definitions/other"}, "$ref"),
        ({"type": "array", "items": {"$ref": "https://example.test/schema"}}, "items.$ref"),
        ({"type": "object", "anyOf": [{"not": {"$ref": "#"}}]}, "anyOf[0].not.$ref"),
    ],
)
async def test_a_schema_with_references_is_refused(
    simulation: Simulation, tmp_path: Path, schema: Json, at: str
) -> None:
    # kube-apiserver 1.35 has the same rule, but panics and closes the connection.
    plane = Plane(Log(tmp_path / "log.db"))
    fields = {"a": schema, "$ref": {"type": "string"}}  # a field of that name is like any other
    whole = {"schema": {"openAPIV3Schema": {"type": "object", "properties": fields}}}
    answer = await plane.ask("POST", DEFINITIONS, definition(**whole))
    assert answer.code == 422
    fields_ = [cause["field"] for cause in msgspec.json.decode(answer.body)["details"]["causes"]]
    assert fields_ == [f"spec.versions[0].schema.openAPIV3Schema.properties[a].{at}"]
    await plane.stop()


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"conditions": [3]}},
        {"status": {"conditions": "x"}},
        {"spec": {"names": None}},
        {"spec": {"names": {"kind": 3}}},
        {"spec": {"versions": [3]}},
        {"spec": None},
    ],
)
async def test_an_unusable_change_is_refused(simulation: Simulation, tmp_path: Path, change: Json) -> None:
    plane = Plane(Log(tmp_path / "log.db"))
    assert await plane.code("POST", DEFINITIONS, definition()) == 201
    await simulation.settle()
    assert await plane.code("GET", "/apis/example.test/v1/widgets") == 200
    at = f"{DEFINITIONS}/widgets.example.test{'/status' if 'status' in change else ''}"
    assert await plane.code("PATCH", at, change) in (400, 422)
    assert await plane.code("GET", "/apis/example.test/v1/widgets") == 200
    await plane.stop()


async def test_an_object_that_violates_a_tightened_schema_can_be_changed_and_deleted(
    simulation: Simulation, tmp_path: Path
) -> None:
    plane = Plane(Log(tmp_path / "log.db"))
    assert await plane.code("POST", DEFINITIONS, definition()) == 201
    await simulation.settle()
    assert await plane.code("POST", "/api/v1/namespaces", NAMESPACE.body("default")) == 201
    assert await plane.code("POST", WIDGETS, widget("w", finalizers=["example.com/slow"])) == 201
    spec = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5}, "b": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    tightened = definition(schema=schema)["spec"]["versions"]
    assert await plane.code("PATCH", f"{DEFINITIONS}/widgets.example.test", {"spec": {"versions": tightened}}) == 200
    await simulation.settle()
    path = f"{WIDGETS}/w"
    assert await plane.code("PATCH", path, {"metadata": {"labels": {"a": "b"}}}) == 200
    assert await plane.code("PATCH", path, {"spec": {"b": "c"}}) == 200
    assert await plane.code("PATCH", path, {"spec": {"a": "d"}}) == 422
    assert await plane.code("DELETE", path) == 200
    assert await plane.code("PATCH", path, {"metadata": {"finalizers": None}}) == 200
    assert await plane.code("GET", path) == 404
    await plane.stop()
