"""The admission webhook: AdmissionReview in, AdmissionReview out."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from datum_compute.admission.webhook import (
    MUTATE,
    OF_PROJECT,
    VALIDATE,
    VALIDATE_DEPLOYMENT,
    Webhook,
    parent_of,
)
from datum_compute.api.accounts import Accounts
from datum_compute.api.labels import TOPOLOGY_CITY, UPSTREAM_CLUSTER
from datum_compute.api.networking import LOCATION, LOCATION_BINDING
from datum_compute.api.services import PARENT_NAME as PARENT
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.metrics import COMPUTE
from datum_compute.federation.roles import CELL, PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Answer, Call
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.api.deployment_writes import ONCE, WRITES, Write, changed
from tests.metrics import differences
from tests.scenarios.federation import placement, template

NETWORK_FIELD = "spec.template.spec.networkInterfaces[0].network"
USER = {
    "username": "ada",
    "uid": "42",
    "groups": ["builders", "system:authenticated"],
    "extra": {PARENT: ["demo"], "iam.miloapis.com/parent-type": ["Project"], "other": ["a", "b"]},
}


class Reviewer:
    """The access reviews of a project's API server; records what it was webhook."""

    def __init__(self) -> None:
        self.reviews: list[Json] = []
        self.answer = Answer(201, msgspec.json.encode({"status": {"allowed": True}}))
        self.itself = Answer(403, b"{}")
        self.asked_itself = 0

    async def call(self, call: Call) -> Answer:
        if (call.method, call.path) == ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"):
            self.asked_itself += 1
            return self.itself
        assert (call.method, call.path) == ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews")
        self.reviews.append(msgspec.json.decode(call.body)["spec"])
        return self.answer

    def stream(self, call: Call) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    def client(self, name: str) -> Client:
        assert name == "demo"
        return Client(name, self)


class WebhookHarness:
    """A webhook over one engaged project, `demo`."""

    def __init__(
        self,
        simulation: Simulation,
        role: str = PROJECT,
        also: Sequence[str] = (),
        accounts: Accounts = Accounts(),  # noqa: B008
    ) -> None:
        """`role` says which kinds the plane serves; it is a project's in any case."""
        self.engine = compute_engine(clock=simulation, generator=simulation.random)
        self.fleet = Fleet()
        self.reviewer = Reviewer()
        self.registry = CollectorRegistry()
        self.webhook = Webhook(self.fleet, self.reviewer, parent_of, accounts, registry=self.registry)
        transport = InProcess(self.engine.serve("demo", role))
        self.fleet.add(Plane("demo", PROJECT, transport, writes=Writes(), generator=simulation.random, also=also))
        self._simulation = simulation

    async def start(self) -> None:
        self._run = asyncio.create_task(self.fleet.run())
        await self._simulation.settle()

    async def stop(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        self.engine.close()

    async def post(self, path: str, body: bytes, method: str = "POST") -> tuple[int, Json]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.webhook({"path": path, "method": method, "headers": []}, receive, send)
        return sent[0]["status"], msgspec.json.decode(sent[1]["body"])

    async def review(self, path: str = VALIDATE, **request: Any) -> Json:
        request_ = {"uid": "abc", "operation": "CREATE", "namespace": "default", "name": "web", "userInfo": USER}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request_ | request}
        code, answer = await self.post(path, msgspec.json.encode(review))
        assert code == 200
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert answer["response"]["uid"] == "abc"
        response: Json = answer["response"]
        return response


@pytest.fixture
def webhook(runner: asyncio.Runner, simulation: Simulation) -> Iterator[WebhookHarness]:
    async def build() -> WebhookHarness:
        harness = WebhookHarness(simulation)
        body = LOCATION_BINDING.body("dfw") | {"spec": {"topology": {TOPOLOGY_CITY: "DFW"}}}
        await harness.engine.client("demo").create(LOCATION_BINDING, body)
        await harness.start()
        return harness

    webhook = runner.run(build())
    yield webhook
    runner.run(webhook.stop())


def _workload(cities: Sequence[str] = ("DFW",), image: str = "registry.example/hello:1") -> Json:
    spec = {"template": template(image), "placements": [placement("main", cities, 1)]}
    return WORKLOAD.body("web", "default") | {"spec": spec}


def _causes(response: Json) -> dict[str, str]:
    return {cause["field"]: cause["reason"] for cause in response["status"]["details"]["causes"]}


async def test_a_good_workload_is_admitted(webhook: WebhookHarness) -> None:
    assert await webhook.review(object=_workload()) == {"uid": "abc", "allowed": True}


async def test_reviews_are_counted_by_result(webhook: WebhookHarness) -> None:
    def counted(result: str, path: str = VALIDATE) -> float | None:
        labels = {"webhook": path, "result": result}
        return webhook.registry.get_sample_value("compute_admission_reviews_total", labels)

    await webhook.review(object=_workload())
    await webhook.review(MUTATE, object=_workload())
    await webhook.review(object=_workload(["XXX"]))
    assert (counted("allowed"), counted("allowed", MUTATE), counted("refused")) == (1, 1, 1)
    await webhook.review(f"{VALIDATE}{OF_PROJECT}elsewhere", object=_workload())
    assert counted("unavailable") == 1, "a project that is not engaged is no decision about the workload"
    webhook.reviewer.client = None  # type: ignore[assignment, method-assign]
    await webhook.review(object=_workload())
    assert counted("failed") == 1
    assert differences(webhook.registry, COMPUTE) == set()


async def test_the_caller_is_forwarded_with_every_extra(webhook: WebhookHarness) -> None:
    await webhook.review(object=_workload())
    [spec] = webhook.reviewer.reviews
    assert spec["resourceAttributes"] == {
        "verb": "use",
        "group": "networking.datumapis.com",
        "version": "v1alpha",
        "resource": "networks",
        "name": "default",
        "namespace": "default",
    }
    assert (spec["user"], spec["uid"], spec["groups"]) == (USER["username"], USER["uid"], USER["groups"])
    assert spec["extra"] == USER["extra"]


async def test_a_network_that_the_caller_may_not_use_is_forbidden(webhook: WebhookHarness) -> None:
    webhook.reviewer.answer = Answer(201, msgspec.json.encode({"status": {"allowed": False}}))
    response = await webhook.review(object=_workload())
    assert response["allowed"] is False
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    assert _causes(response) == {NETWORK_FIELD: "FieldValueForbidden"}


async def test_a_failed_access_review_refuses_the_workload(webhook: WebhookHarness) -> None:
    webhook.reviewer.answer = Answer(500, b"out of order")
    response = await webhook.review(object=_workload())
    assert response["allowed"] is False
    assert _causes(response) == {NETWORK_FIELD: "InternalError"}


async def test_all_violations_are_reported_at_once(webhook: WebhookHarness) -> None:
    webhook.reviewer.answer = Answer(201, msgspec.json.encode({"status": {"allowed": False}}))
    response = await webhook.review(object=_workload(["XXX"]))
    assert _causes(response) == {
        "spec.placements[0].cityCodes[0]": "FieldValueNotSupported",
        NETWORK_FIELD: "FieldValueForbidden",
    }
    assert response["status"]["message"].startswith('Workload.compute.datumapis.com "web" is invalid: [spec.')


async def test_an_update_without_a_spec_change_needs_no_access_review(webhook: WebhookHarness) -> None:
    before = _workload(["XXX"])
    after = before | {"metadata": before["metadata"] | {"finalizers": []}}
    response = await webhook.review(operation="UPDATE", object=after, oldObject=before)
    assert response["allowed"] is True
    assert webhook.reviewer.reviews == []


async def test_an_update_of_the_spec_is_checked(webhook: WebhookHarness) -> None:
    response = await webhook.review(operation="UPDATE", object=_workload(["XXX"]), oldObject=_workload())
    assert response["allowed"] is False


async def test_a_deletion_is_not_reviewed(webhook: WebhookHarness) -> None:
    assert (await webhook.review(operation="DELETE", oldObject=_workload()))["allowed"] is True


async def test_a_project_that_is_not_connected_is_refused(webhook: WebhookHarness) -> None:
    stranger = USER | {"extra": {PARENT: ["elsewhere"]}}
    response = await webhook.review(object=_workload(), userInfo=stranger)
    assert response["allowed"] is False
    assert response["status"]["code"] == 503
    assert 'project "elsewhere" is not connected' in response["status"]["message"]


async def test_a_request_without_a_project_is_refused(webhook: WebhookHarness) -> None:
    response = await webhook.review(object=_workload(), userInfo={"username": "ada"})
    assert response["allowed"] is False
    assert PARENT in response["status"]["message"]
    assert "let the webhook's URL end with /projects/<name>" in response["status"]["message"]


async def test_the_url_may_name_the_project(webhook: WebhookHarness) -> None:
    url, nobody = f"{VALIDATE}{OF_PROJECT}demo", {"username": "ada"}
    assert (await webhook.review(url, object=_workload(), userInfo=nobody))["allowed"] is True
    refused = await webhook.review(url, object=_workload(["XXX"]), userInfo=nobody)
    assert _causes(refused) == {"spec.placements[0].cityCodes[0]": "FieldValueNotSupported"}
    assert (await webhook.review(f"{MUTATE}{OF_PROJECT}demo", object=_workload(), userInfo=nobody))["allowed"] is True


async def test_the_url_takes_precedence_over_the_caller(webhook: WebhookHarness) -> None:
    response = await webhook.review(f"{VALIDATE}{OF_PROJECT}elsewhere", object=_workload())
    assert 'project "elsewhere" is not connected' in response["status"]["message"]


async def test_a_plane_that_is_no_project_is_refused(webhook: WebhookHarness, simulation: Simulation) -> None:
    transport = InProcess(webhook.engine.serve("cell", CELL))
    webhook.fleet.add(Plane("cell", CELL, transport, writes=Writes(), generator=simulation.random))
    await simulation.settle()
    response = await webhook.review(f"{VALIDATE}{OF_PROJECT}cell", object=_workload())
    assert 'project "cell" is not connected' in response["status"]["message"]
    assert webhook.fleet.plane("cell").informers() == []


async def test_a_workload_with_too_many_networks_is_refused_without_reviewing_all(webhook: WebhookHarness) -> None:
    workload = _workload()
    interfaces = [{"network": {"name": f"net-{number}"}} for number in range(200)]
    workload["spec"]["template"]["spec"]["networkInterfaces"] = interfaces
    response = await webhook.review(object=workload)
    assert response["allowed"] is False
    assert len(webhook.reviewer.reviews) == 64


async def test_every_location_is_offered_where_bindings_are_not_served(simulation: Simulation) -> None:
    webhook = WebhookHarness(simulation, role=CELL)
    body = LOCATION.body("dfw") | {"spec": {"locationClassName": "self-managed", "topology": {TOPOLOGY_CITY: "DFW"}}}
    await webhook.engine.client("demo").create(LOCATION, body)
    await webhook.start()
    assert (await webhook.review(object=_workload()))["allowed"] is True
    refused = await webhook.review(object=_workload(["XXX"]))
    assert _causes(refused) == {"spec.placements[0].cityCodes[0]": "FieldValueNotSupported"}
    await webhook.stop()


async def test_the_mutating_webhook_changes_nothing(webhook: WebhookHarness) -> None:
    assert await webhook.review(MUTATE, object=_workload(["XXX"])) == {"uid": "abc", "allowed": True}


@pytest.mark.parametrize(
    ("path", "method", "body", "code"),
    [
        ("/", "POST", b"{}", 404),
        (f"{OF_PROJECT}demo", "POST", b"{}", 404),
        (VALIDATE, "GET", b"", 400),
        (VALIDATE, "POST", b"", 400),
        (VALIDATE, "POST", b"{}", 400),
        (VALIDATE, "POST", b"[" * 100_000, 400),
        (
            VALIDATE,
            "POST",
            b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}',
            400,
        ),
        (VALIDATE, "POST", b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', 400),
        (VALIDATE, "POST", b'{"request":{"uid":1}}', 400),
        (VALIDATE, "POST", b"x" * (7 * 1024 * 1024 + 1), 413),
    ],
)
async def test_a_body_that_is_no_review_is_refused(
    webhook: WebhookHarness, path: str, method: str, body: bytes, code: int
) -> None:
    answered, status = await webhook.post(path, body, method)
    assert (answered, status["kind"]) == (code, "Status")


@pytest.mark.parametrize(
    "strange", [None, {}, {"spec": 1}, {"spec": {"template": {"spec": {"networkInterfaces": [1]}}}}]
)
async def test_a_malformed_workload_is_refused_without_a_crash(webhook: WebhookHarness, strange: Any) -> None:
    response = await webhook.review(object=strange)
    assert response["allowed"] is False
    assert response["status"]["code"] in (400, 422)


# Deployments

MANAGEMENT = "system:serviceaccount:compute-system:compute-management"


@pytest.mark.parametrize("case", WRITES, ids=[case.what for case in WRITES])
async def test_a_user_may_only_move_a_restart_of_a_deployment_forward(webhook: WebhookHarness, case: Write) -> None:
    response = await webhook.review(
        VALIDATE_DEPLOYMENT, operation="UPDATE", name="web-main-dfw", object=case.after, oldObject=case.before
    )
    assert response["allowed"] is case.allowed
    if not case.allowed:
        assert response["status"]["code"] == 403
        assert "web-main-dfw follows from its Workload" in response["status"]["message"]


OTHERS = {
    "create": {"operation": "CREATE", "object": ONCE},
    "delete": {"operation": "DELETE", "oldObject": ONCE},
    "report": {"operation": "UPDATE", "subResource": "status", "object": ONCE, "oldObject": ONCE},
    "scale": {"operation": "UPDATE", "object": changed(ONCE, "spec", "cityCode", to="ORD"), "oldObject": ONCE},
}


@pytest.mark.parametrize("request_", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize(
    ("user", "allowed"),
    [
        (USER, False),
        ({"username": f"{MANAGEMENT}-2"}, False),
        ({}, False),
        ({"username": MANAGEMENT}, True),
        ({"username": "system:serviceaccount:kube-system:generic-garbage-collector"}, True),
        ({"username": "system:serviceaccount:kube-system:namespace-controller"}, True),
        ({"username": "admin", "groups": ["system:masters"]}, True),
    ],
)
async def test_deployments_are_written_by_compute_and_kubernetes(
    webhook: WebhookHarness, request_: Json, user: Json, allowed: bool
) -> None:
    """Even in an unknown project: the rule does not depend on it."""
    for path in (VALIDATE_DEPLOYMENT, f"{VALIDATE_DEPLOYMENT}{OF_PROJECT}elsewhere"):
        response = await webhook.review(path, userInfo=user, **request_)
        assert response["allowed"] is allowed


async def test_the_account_of_this_process_may_write_deployments(webhook: WebhookHarness) -> None:
    itself = {"username": "compute@platform.example"}
    path = f"{VALIDATE_DEPLOYMENT}{OF_PROJECT}demo"
    assert (await webhook.review(path, userInfo=itself, **OTHERS["create"]))[
        "allowed"
    ] is False  # it could not be asked
    webhook.reviewer.itself = Answer(201, msgspec.json.encode({"status": {"userInfo": itself}}))
    for _ in range(3):
        assert (await webhook.review(path, userInfo=itself, **OTHERS["create"]))["allowed"] is True
    assert (await webhook.review(path, userInfo=USER, **OTHERS["create"]))["allowed"] is False
    assert webhook.reviewer.asked_itself == 2


async def test_the_accounts_of_compute_can_be_configured(simulation: Simulation) -> None:
    webhook = WebhookHarness(simulation, accounts=Accounts(("root",), ("operators",)))
    await webhook.start()
    for user in ({"username": "root"}, {"username": "jo", "groups": ["operators"]}):
        assert (await webhook.review(VALIDATE_DEPLOYMENT, userInfo=user, **OTHERS["delete"]))["allowed"] is True
    assert (await webhook.review(VALIDATE_DEPLOYMENT, userInfo=USER, **OTHERS["delete"]))["allowed"] is False
    await webhook.stop()


async def test_deliveries_to_a_cell_on_the_same_server_are_exempt(simulation: Simulation) -> None:
    webhook = WebhookHarness(simulation, also=[CELL])
    client = webhook.engine.client("demo")
    await client.create(NAMESPACE, NAMESPACE.body("ns-1", labels={UPSTREAM_CLUSTER: "cluster-demo"}))
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    await webhook.start()
    karmada = {"username": "system:serviceaccount:karmada-cluster:karmada-pop", "extra": {PARENT: ["demo"]}}
    for namespace, allowed in (("ns-1", True), ("default", False)):
        response = await webhook.review(VALIDATE_DEPLOYMENT, userInfo=karmada, namespace=namespace, **OTHERS["create"])
        assert response["allowed"] is allowed
    await webhook.stop()
