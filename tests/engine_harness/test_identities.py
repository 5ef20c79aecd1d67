"""Who works on which plane of an engine, and with which roles."""

from typing import Any

import pytest

from datum_compute.api.accounts import CELL, MANAGEMENT, cell_account
from datum_compute.api.permissions import PERMISSIONS, On, When, Who
from datum_compute.api.policies import POLICIES
from datum_compute.api.roles import role_name
from datum_compute.kube.meta import Json
from engine.identities import DEFAULT_SWITCHES, Identity, admit, identities, policies
from engine.settings import Settings

PLANES = Settings({"pop-dfw": "DFW"}).planes


class Notes:
    """Stands for a plane's API and writes down what is asked of it."""

    def __init__(self) -> None:
        self.applied: list[Json] = []
        self.deleted: list[Json] = []

    def apply(self, body: Json) -> Json:
        self.applied.append(body)
        return body

    def delete(self, body: Json) -> None:
        self.deleted.append(body)

    def token(self, service_account: str, namespace: str, seconds: int) -> str:
        return f"{namespace}/{service_account} for {seconds} s"

    def names(self, kind: str) -> list[str]:
        return [body["metadata"]["name"] for body in self.applied if body["kind"] == kind]


def admitted(who: Who, *roles: On, switches: Any = DEFAULT_SWITCHES) -> tuple[Notes, str]:
    notes = Notes()
    return notes, admit(notes, Identity(who, "somewhere", roles), switches)  # type: ignore[arg-type]


def test_every_identity_has_access_only_where_it_works() -> None:
    found = [(item.account, item.plane, item.roles) for item in identities(PLANES)]
    assert sorted(found, key=lambda identity: identity[:2]) == [
        ("compute-cell", "control-plane", (On.PROJECT,)),
        ("compute-cell", "downstream", (On.HUB,)),
        ("compute-cell", "pop-dfw", (On.CELL,)),
        ("compute-cell", "project-b", (On.PROJECT,)),
        ("compute-cell-pop-dfw", "control-plane", (On.PROJECT,)),
        ("compute-cell-pop-dfw", "downstream", (On.HUB,)),
        ("compute-cell-pop-dfw", "project-b", (On.PROJECT,)),
        ("compute-management", "control-plane", (On.HOST, On.PROJECT)),
        ("compute-management", "downstream", (On.HUB,)),
        ("compute-management", "pop-dfw", (On.CELL,)),
        ("compute-management", "project-b", (On.PROJECT,)),
        ("compute-user", "control-plane", (On.PROJECT,)),
        ("compute-user", "project-b", (On.PROJECT,)),
        ("compute-user-city-restart", "control-plane", (On.PROJECT,)),
        ("compute-user-city-restart", "project-b", (On.PROJECT,)),
        ("karmada-impersonator", "pop-dfw", (On.CELL,)),
    ]


def test_the_policies_name_the_accounts_that_exist() -> None:
    accounts = {item.account for item in identities(PLANES)}
    assert {MANAGEMENT, CELL, cell_account("pop-dfw")} <= accounts


def test_a_named_cell_has_an_account_of_its_own() -> None:
    planes = Settings({"pop-dfw": "DFW", "pop-ord": "ORD"}).planes
    [ord_on_hub] = [item for item in identities(planes) if (item.called, item.plane) == ("pop-ord", "downstream")]
    notes = Notes()
    admit(notes, ord_on_hub)  # type: ignore[arg-type]

    bound = [body for body in notes.applied if body["kind"].endswith("Binding")]
    assert {body["metadata"].get("namespace") for body in bound} == {None, "karmada-es-pop-ord"}
    assert {body["metadata"]["name"] for body in bound} == {
        "compute-cell-on-hub-pop-ord",
        "compute-cell-on-hub-execution-space-pop-ord",
    }
    assert all(body["subjects"][0]["name"] == "compute-cell-pop-ord" for body in bound)


def test_only_one_kind_of_user_writes_restarts_into_deployments() -> None:
    users = [item for item in identities(PLANES) if item.who is Who.USER and item.plane == "project-b"]
    given = {}
    for user in users:
        notes = Notes()
        admit(notes, user)  # type: ignore[arg-type]
        given[user.account] = [body["roleRef"]["name"] for body in notes.applied if "roleRef" in body]
    assert given == {
        "compute-user": ["compute-user-on-project"],
        "compute-user-city-restart": ["compute-user-on-project", "compute-user-on-project-city-restart"],
    }


@pytest.mark.parametrize(("plane", "on"), [("downstream", On.HUB), ("project-b", On.PROJECT), ("pop-dfw", On.CELL)])
def test_the_policies_of_a_plane_are_applied_with_their_bindings(plane: str, on: On) -> None:
    notes = Notes()
    policies(notes, next(item for item in PLANES if item.name == plane))  # type: ignore[arg-type]
    held = [policy.name for policy in POLICIES if policy.on is on]
    assert notes.names("ValidatingAdmissionPolicy") == notes.names("ValidatingAdmissionPolicyBinding") == held


def test_an_identity_is_a_service_account_with_the_generated_role() -> None:
    notes, token = admitted(Who.USER, On.PROJECT)

    assert notes.names("ServiceAccount") == ["compute-user"]
    assert notes.names("ClusterRole") == notes.names("ClusterRoleBinding") == ["compute-user-on-project"]
    [binding] = [body for body in notes.applied if body["kind"] == "ClusterRoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "compute-user", "namespace": "compute-system"}]
    assert token == "compute-system/compute-user for 86400 s"


def test_a_plane_that_is_host_and_project_gives_both_roles_to_one_account() -> None:
    notes, _ = admitted(Who.MANAGEMENT, On.HOST, On.PROJECT)

    assert notes.names("ServiceAccount") == ["compute-management"]
    assert notes.names("RoleBinding") == ["compute-management-on-host-leader-election"]
    assert "compute-management-on-project" in notes.names("ClusterRoleBinding")


@pytest.mark.parametrize(("who", "on"), [(Who.MANAGEMENT, On.HOST), (Who.CELL, On.CELL)])
def test_leases_are_for_the_namespace_of_the_process_only(who: Who, on: On) -> None:
    notes, _ = admitted(who, on)
    for body in notes.applied:
        if body["kind"] in ("Role", "RoleBinding"):
            assert body["metadata"]["namespace"] == "compute-system"


def test_roles_of_features_that_are_off_are_removed() -> None:
    notes, _ = admitted(Who.CELL, On.CELL, switches=[When.PODS])

    assert notes.names("ClusterRoleBinding") == ["compute-cell-on-cell", "compute-cell-on-cell-provider-pods"]
    others = {rule.when for rule in PERMISSIONS[Who.CELL, On.CELL]} - {When.ALWAYS, When.PODS}
    assert {body["metadata"]["name"] for body in notes.deleted} == {
        role_name(Who.CELL, On.CELL, when) for when in others
    }
