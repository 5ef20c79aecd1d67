"""Who works on which plane of an engine, and with which roles."""

from typing import Any

import pytest

from datum_compute.api.permissions import PERMISSIONS, On, When, Who
from datum_compute.api.roles import role_name
from datum_compute.kube.meta import Json
from engine.identities import DEFAULT_SWITCHES, Identity, admit, identities
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


def test_everybody_is_known_where_they_work_and_nowhere_else() -> None:
    assert {(one.who, one.plane): one.roles for one in identities(PLANES)} == {
        (Who.MANAGEMENT, "control-plane"): (On.HOST, On.PROJECT),
        (Who.MANAGEMENT, "project-b"): (On.PROJECT,),
        (Who.MANAGEMENT, "downstream"): (On.HUB,),
        (Who.CELL, "pop-dfw"): (On.CELL,),
        (Who.CELL, "downstream"): (On.HUB,),
        (Who.CELL, "control-plane"): (On.PROJECT,),
        (Who.CELL, "project-b"): (On.PROJECT,),
        (Who.USER, "control-plane"): (On.PROJECT,),
        (Who.USER, "project-b"): (On.PROJECT,),
    }


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


def test_what_is_not_switched_on_is_taken_away() -> None:
    notes, _ = admitted(Who.CELL, On.CELL, switches=[When.PODS])

    assert notes.names("ClusterRoleBinding") == ["compute-cell-on-cell", "compute-cell-on-cell-provider-pods"]
    others = {rule.when for rule in PERMISSIONS[Who.CELL, On.CELL]} - {When.ALWAYS, When.PODS}
    assert {body["metadata"]["name"] for body in notes.deleted} == {
        role_name(Who.CELL, On.CELL, when) for when in others
    }
