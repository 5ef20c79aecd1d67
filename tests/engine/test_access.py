"""Roles and policies on real API servers: everybody tries to write what is not theirs, and nobody succeeds."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from datum_compute.api.accounts import NAMESPACE as ACCOUNTS
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import SOURCE_CLUSTER, TOPOLOGY_CITY
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.policy import city_policy
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.errors import Forbidden, Invalid, Unauthorized
from datum_compute.kube.kinds import LEASE, NAMESPACE
from datum_compute.kube.meta import Json
from engine.api import Api, until
from engine.harness import Engine
from engine.settings import HUB_PLANE
from tests.api.deployment_writes import LATER, NEVER, ONCE, WRITES, Write, changed, restarted
from tests.engine.conftest import spec

pytestmark = pytest.mark.engine

PROJECT = "project-b"
DFW, ORD = "pop-dfw", "pop-ord"
REFUSED = "follows from its Workload"
STATUS = dict.fromkeys(("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas"), 5)


@contextmanager
def known_as(engine: Engine, plane: str, who: str) -> Iterator[Api]:
    api = Api(plane, load([engine.kubeconfig(plane, who)]))
    try:
        yield api
    finally:
        api.close()


@contextmanager
def all_powerful(engine: Engine, admin: Api) -> Iterator[Api]:
    """Somebody whom no role holds back, so that only policies can."""
    name = f"mighty-{secrets.token_hex(4)}"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": ACCOUNTS}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": ACCOUNTS}],
    }
    admin.create(account)
    admin.create(binding)
    endpoint = load([engine.kubeconfig(admin.plane)])
    token = admin.token(name, ACCOUNTS, 3600)
    api = Api(admin.plane, replace(endpoint, token=token, client_cert="", client_key="", source=None))
    try:
        yield api
    finally:
        api.close()
        admin.delete(binding)
        admin.delete(account)


@pytest.fixture
def home(planes: dict[str, Api]) -> Iterator[Callable[[str], str]]:
    """Namespaces that are gone after the test."""
    made: list[tuple[Api, Json]] = []

    def make(plane: str) -> str:
        body = NAMESPACE.body(f"ns-{secrets.token_hex(4)}")
        planes[plane].create(body)
        made.append((planes[plane], body))
        name: str = body["metadata"]["name"]
        return name

    yield make
    for admin, body in made:
        admin.delete(body)


def in_namespace(deployment: Json, namespace: str) -> Json:
    return changed(deployment, "metadata", "namespace", to=namespace)


def refused(attempt: Callable[[], Any], sentence: str | None = None) -> None:
    with pytest.raises(Forbidden, match=sentence):
        attempt()


@pytest.fixture(scope="module")
def user(engine: Engine) -> Iterator[Api]:
    with known_as(engine, PROJECT, "user") as api:
        yield api


@pytest.fixture(scope="module")
def restarting_user(engine: Engine, planes: dict[str, Api]) -> Iterator[Api]:
    """One that holds the extra role; from when the policy is in force."""
    with known_as(engine, PROJECT, "user-city-restart") as api:
        probe = in_namespace(changed(NEVER, "metadata", "name", to=f"probe-{secrets.token_hex(4)}"), "default")
        planes[PROJECT].create(probe)

        def held() -> bool:
            try:
                api.merge(probe, {"spec": {"scaleSettings": {"minReplicas": 1 + secrets.randbelow(1000)}}})
            except Forbidden as error:
                return REFUSED in str(error)
            return False

        try:
            until("the policy being in force", held)
            yield api
        finally:
            planes[PROJECT].delete(probe)


@pytest.mark.parametrize("case", WRITES, ids=[case.what for case in WRITES])
def test_a_user_may_only_move_a_restart_forward_and_only_with_the_extra_role(
    planes: dict[str, Api], user: Api, restarting_user: Api, case: Write
) -> None:
    name = f"web-{secrets.token_hex(4)}"
    before, after = (
        in_namespace(changed(item, "metadata", "name", to=name), "default") for item in (case.before, case.after)
    )
    stored = planes[PROJECT].create(before)
    after["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    try:
        refused(lambda: user.replace(after))
        if case.allowed:
            answer = restarting_user.replace(after)
            assert answer["spec"] == after["spec"]
        elif case.what == "restart on a day that is none":  # which the policy's language cannot even ask about
            with pytest.raises(Invalid, match="denied request"):
                restarting_user.replace(after)
        else:
            refused(lambda: restarting_user.replace(after), REFUSED)
    finally:
        planes[PROJECT].delete(before)


def test_no_role_however_wide_writes_deployments(
    engine: Engine, planes: dict[str, Api], restarting_user: Api, home: Callable[[str], str]
) -> None:
    admin, namespace = planes[PROJECT], home(PROJECT)
    stored = admin.create(in_namespace(ONCE, namespace))
    with all_powerful(engine, admin) as mighty:
        other = changed(in_namespace(NEVER, namespace), "metadata", "name", to="other")
        refused(lambda: mighty.create(other), REFUSED)
        refused(lambda: mighty.apply(other), REFUSED)
        refused(lambda: mighty.create(changed(other, "metadata", "generateName", to="web-")), REFUSED)
        refused(lambda: mighty.delete(stored), REFUSED)
        refused(lambda: mighty.replace(stored | {"status": STATUS}, "status"), REFUSED)
        refused(lambda: mighty.merge(stored, {"status": STATUS}, "status"), REFUSED)
        refused(lambda: mighty.merge(stored, {"spec": {"cityCode": "ORD"}}), REFUSED)
        mighty.merge(stored, {"spec": restarted({}, LATER)["spec"]})
    current = admin.get(WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name, "web-main-dfw", namespace)
    assert current["spec"] == restarted(ONCE, LATER)["spec"]
    assert "status" not in current or "replicas" not in current["status"]


def test_deletion_with_a_namespace_or_an_owner_is_allowed(
    planes: dict[str, Api], restarting_user: Api, home: Callable[[str], str]
) -> None:
    admin, namespace = planes[PROJECT], home(PROJECT)
    owner = admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "namespace": namespace}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": owner["metadata"]["uid"]}
    admin.create(changed(in_namespace(ONCE, namespace), "metadata", "ownerReferences", to=[reference]))
    admin.create(changed(in_namespace(ONCE, namespace), "metadata", "name", to="other"))

    def names() -> list[str]:
        found = admin.items(WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name, namespace)
        return [item["metadata"]["name"] for item in found]

    admin.delete(owner | {"apiVersion": "v1", "kind": "ConfigMap"})
    until("the garbage collector taking the deployment", lambda: names() == ["other"])
    admin.delete(NAMESPACE.body(namespace))
    until("the namespace controller taking the other", lambda: names() == [])


def test_a_user_may_write_no_other_object_of_compute(
    planes: dict[str, Api], user: Api, restarting_user: Api, home: Callable[[str], str]
) -> None:
    namespace = home(PROJECT)
    instance = planes[PROJECT].create(of_cell(INSTANCE, "web-0", namespace, DFW))
    claim = planes[PROJECT].create(of_cell(RESOURCE_CLAIM, "instance-web-0", namespace, DFW))
    for who in (user, restarting_user):
        for item in (instance, claim):
            refused(lambda item=item, who=who: who.merge(item, {"status": {"conditions": []}}, "status"))  # type: ignore[misc]
            refused(lambda item=item, who=who: who.merge(item, {"metadata": {"labels": {"a": "b"}}}))  # type: ignore[misc]
            refused(lambda item=item, who=who: who.delete(item))  # type: ignore[misc]
            fresh = changed({key: item[key] for key in ("apiVersion", "kind", "spec")}, "metadata", to={
                "name": "mine", "namespace": namespace
            })  # fmt: skip
            refused(lambda fresh=fresh, who=who: who.create(fresh))  # type: ignore[misc]


@pytest.mark.parametrize("who", ["user", "user-city-restart"])
def test_a_user_has_no_access_to_the_hub(
    engine: Engine, planes: dict[str, Api], home: Callable[[str], str], who: str
) -> None:
    namespace = home(HUB_PLANE)
    deployment = planes[HUB_PLANE].create(in_namespace(NEVER, namespace))
    hub = load([engine.kubeconfig(HUB_PLANE)])
    # Without a source, where a refused caller would look for newer credentials.
    known_elsewhere = replace(
        load([engine.kubeconfig(PROJECT, who)]), server=hub.server, ca_pem=hub.ca_pem, source=None
    )
    user = Api(HUB_PLANE, known_elsewhere)
    later = restarted({}, LATER)
    try:
        for attempt in (
            lambda: user.items(WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name),
            lambda: user.create(of_cell(INSTANCE, "mine", namespace, DFW)),
            lambda: user.create(NAMESPACE.body("mine")),
            lambda: user.merge(NAMESPACE.body(namespace), {"metadata": {"labels": {"a": "b"}}}),
            lambda: user.merge(deployment, {"spec": later["spec"]}),
            lambda: user.merge(deployment, {"status": STATUS}, "status"),
            lambda: user.delete(deployment),
        ):
            with pytest.raises((Unauthorized, Forbidden)):
                attempt()
    finally:
        user.close()
    name = deployment["metadata"]["name"]
    current = planes[HUB_PLANE].get(WORKLOAD_DEPLOYMENT.api_version, WORKLOAD_DEPLOYMENT.name, name, namespace)
    assert (current["spec"], current.get("status")) == (deployment["spec"], deployment.get("status"))


# Cells


def of_cell(kind: Any, name: str, namespace: str, cell: str | None) -> Json:
    labels = {SOURCE_CLUSTER: cell} if cell is not None else {}
    body: Json = kind.body(name, namespace, labels=labels)
    if kind is RESOURCE_CLAIM:
        requests = [{"resourceType": "compute.datumapis.com/instances", "amount": 1}]
        consumer = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": PROJECT}
        reference = {"apiGroup": INSTANCE.group, "kind": INSTANCE.name, "name": "web-0", "namespace": namespace}
        return body | {"spec": {"consumerRef": consumer, "requests": requests, "resourceRef": reference}}
    return body | {"spec": spec("DFW")["template"]["spec"]}


PLACES = [(INSTANCE, HUB_PLANE), (RESOURCE_CLAIM, PROJECT)]


@pytest.fixture(params=PLACES, ids=["copies on the hub", "claims in a project"])
def place(
    request: pytest.FixtureRequest, engine: Engine, planes: dict[str, Api], home: Callable[[str], str]
) -> Iterator[tuple[Any, Api, Api, str]]:
    """What cells write somewhere: the kind, the administrator, the cell of DFW, and a namespace."""
    kind, plane = request.param
    namespace = home(plane)
    with known_as(engine, plane, f"cell-{DFW}") as cell:

        def held() -> bool:
            name = f"probe-{secrets.token_hex(4)}"
            try:
                cell.create(of_cell(kind, name, namespace, ORD))
            except Forbidden as error:
                return "writes only" in str(error)
            planes[plane].delete(of_cell(kind, name, namespace, ORD))
            return False

        until("the policy being in force", held)
        yield kind, planes[plane], cell, namespace


def test_a_cell_may_write_and_delete_its_own_objects(place: tuple[Any, Api, Api, str]) -> None:
    kind, admin, cell, namespace = place
    own = cell.create(of_cell(kind, "own", namespace, DFW))
    if kind is INSTANCE:  # nobody changes a claim
        cell.merge(own, {"metadata": {"annotations": {"a": "b"}}})
        fresh = admin.get(kind.api_version, kind.name, "own", namespace)
        cell.replace(fresh | {"status": {"conditions": []}}, "status")
    cell.delete(own)
    assert admin.find(kind.api_version, kind.name, "own", namespace) is None


def test_a_cell_may_neither_write_nor_delete_objects_of_others(place: tuple[Any, Api, Api, str]) -> None:
    kind, admin, cell, namespace = place
    others = admin.create(of_cell(kind, "others", namespace, ORD))
    unnamed = admin.create(of_cell(kind, "unnamed", namespace, None))
    own = cell.create(of_cell(kind, "own", namespace, DFW))

    def relabel(cell_name: str | None) -> Json:
        return {"metadata": {"labels": {SOURCE_CLUSTER: cell_name}}}

    attempts: list[Callable[[], Any]] = [
        lambda: cell.create(of_cell(kind, "new", namespace, ORD)),
        lambda: cell.create(of_cell(kind, "new", namespace, None)),
        lambda: cell.create(of_cell(kind, "new", namespace, "")),
        lambda: cell.create(of_cell(kind, "new", namespace, f"{DFW}x")),
        lambda: cell.apply(of_cell(kind, "new", namespace, ORD)),
        lambda: cell.delete(others),
        lambda: cell.delete(unnamed),
        lambda: cell.merge(others, relabel(DFW)),
        lambda: cell.merge(others, relabel(None)),
        lambda: cell.merge(others, {"metadata": {"annotations": {"a": "b"}}}),
        lambda: cell.merge(others, {"metadata": {"finalizers": ["example.com/mine"]}}),
        lambda: cell.apply(of_cell(kind, "others", namespace, DFW)),
        lambda: cell.replace(others | {"status": {"conditions": []}}, "status"),
        lambda: cell.merge(others, {"status": {"conditions": []}}, "status"),
        lambda: cell.merge(others, {**relabel(DFW), "status": {"conditions": []}}, "status"),
        lambda: cell.merge(own, relabel(ORD)),
        lambda: cell.merge(own, relabel(None)),
        lambda: cell.merge(unnamed, {"metadata": {"annotations": {"a": "b"}}}),
        lambda: delete_all(cell, kind, namespace),
    ]
    succeeded = []
    for number, attempt in enumerate(attempts):
        with suppress(Forbidden):
            attempt()
            succeeded.append(number)
    assert succeeded == []
    for item in (others, unnamed, own):
        name = item["metadata"]["name"]
        current = admin.get(kind.api_version, kind.name, name, namespace)
        assert current["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"], name


def delete_all(cell: Api, kind: Any, namespace: str) -> None:
    cell._call("DELETE", f"/apis/{kind.api_version}/namespaces/{namespace}/{kind.plural}")


def test_a_newly_named_cell_adopts_unlabelled_objects(
    engine: Engine, planes: dict[str, Api], home: Callable[[str], str]
) -> None:
    namespace = home(HUB_PLANE)
    with known_as(engine, HUB_PLANE, f"cell-{DFW}") as cell:
        for name, label in (("bare", None), ("single", "single")):
            copy = planes[HUB_PLANE].create(of_cell(INSTANCE, name, namespace, label))
            taken = cell.merge(copy, {"metadata": {"labels": {SOURCE_CLUSTER: DFW}}})
            assert taken["metadata"]["labels"] == {SOURCE_CLUSTER: DFW}


def test_a_cell_may_write_and_read_nothing_else_on_the_hub(engine: Engine, planes: dict[str, Api]) -> None:
    namespace = f"karmada-es-{ORD}"
    with known_as(engine, HUB_PLANE, f"cell-{DFW}") as cell:
        for attempt in (
            lambda: cell.create(of_cell(INSTANCE, "own", "kube-system", DFW)),
            lambda: cell.create(NAMESPACE.body("mine")),
            lambda: cell.items("v1", "Secret"),
            lambda: cell.items("v1", "ConfigMap"),
            lambda: cell.get("v1", "Secret", "any", namespace),
            lambda: cell.items("work.karmada.io/v1alpha1", "Work", namespace),
            lambda: cell.delete({"apiVersion": "work.karmada.io/v1alpha1", "kind": "Work", "metadata": {
                "name": "any", "namespace": namespace
            }}),
            lambda: cell.create(in_namespace(NEVER, "default")),
            lambda: cell.merge(in_namespace(NEVER, "default"), {"spec": {"cityCode": "DFW"}}),
            lambda: cell.delete(in_namespace(NEVER, "default")),
            lambda: cell.merge(in_namespace(NEVER, "default"), {"status": STATUS}, "status"),
            lambda: cell.merge(NAMESPACE.body("default"), {"metadata": {"labels": {"a": "b"}}}),
            lambda: cell.delete(NAMESPACE.body("default")),
            lambda: cell.create(city_policy("default", "DFW")),
            lambda: cell.delete(city_policy("default", "DFW")),
            lambda: cell.merge(CLUSTER.body(ORD), {"metadata": {"labels": {TOPOLOGY_CITY: "DFW"}}}),
            lambda: cell.create(LEASE.body(ORD, namespace)),
            lambda: cell.get(LEASE.api_version, LEASE.name, ORD, namespace),
            lambda: cell.token("compute-management", ACCOUNTS, 3600),
            lambda: cell.token(f"compute-cell-{ORD}", ACCOUNTS, 3600),
        ):  # fmt: skip
            refused(attempt)
        cell.items(INSTANCE.api_version, INSTANCE.name)  # reads are wide, as docs/security.md says


def test_a_cell_may_access_only_claims_in_a_project(engine: Engine) -> None:
    workload = WORKLOAD.body("mine", "default")
    with known_as(engine, PROJECT, f"cell-{DFW}") as cell:
        for attempt in (
            lambda: cell.items("v1", "Secret"),
            lambda: cell.items("v1", "ConfigMap"),
            lambda: cell.items(WORKLOAD.api_version, WORKLOAD.name),
            lambda: cell.create(workload),
            lambda: cell.delete(workload),
            lambda: cell.create(in_namespace(NEVER, "default")),
            lambda: cell.merge(in_namespace(NEVER, "default"), {"spec": {"cityCode": "DFW"}}),
            lambda: cell.merge(in_namespace(NEVER, "default"), {"status": STATUS}, "status"),
            lambda: cell.delete(in_namespace(NEVER, "default")),
            lambda: cell.create(of_cell(INSTANCE, "own", "default", DFW)),
            lambda: cell.merge(of_cell(INSTANCE, "own", "default", DFW), {"status": {"conditions": []}}, "status"),
            lambda: cell.delete(of_cell(INSTANCE, "own", "default", DFW)),
            lambda: cell.merge(
                of_cell(RESOURCE_CLAIM, "own", "default", DFW), {"status": {"conditions": []}}, "status"
            ),
            lambda: cell.create(NAMESPACE.body("mine")),
        ):
            refused(attempt)
