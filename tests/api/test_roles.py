"""The manifests match the table of permissions, and optional roles can be left unbound."""

from typing import Any

import pytest
import yaml

from datum_compute.api.permissions import PERMISSIONS, On, When, Who
from datum_compute.api.roles import features, files, role_name

Manifest = dict[str, Any]


def manifest(name: str) -> Manifest:
    [role] = yaml.safe_load_all(files()[name])
    return dict(role)


def roles_of(who: Who, on: On) -> list[Manifest]:
    return [manifest(role_name(who, on, when)) for when in features(who, on)]


def test_there_is_one_role_per_identity_plane_and_feature() -> None:
    assert list(files()) == [role_name(who, on, when) for who, on in PERMISSIONS for when in features(who, on)]
    assert {(who.value, on.value) for who, on in PERMISSIONS} == {
        ("cell", "cell"),
        ("cell", "hub"),
        ("cell", "project"),
        ("karmada", "cell"),
        ("management", "cell"),
        ("management", "host"),
        ("management", "hub"),
        ("management", "project"),
        ("management", "root"),
        ("user", "project"),
        ("viewer", "cell"),
        ("viewer", "hub"),
    }


@pytest.mark.parametrize(("who", "on"), PERMISSIONS)
def test_the_manifests_are_the_table(who: Who, on: On) -> None:
    rules = {
        (role["metadata"]["name"], *map(tuple, (rule["apiGroups"], rule["resources"], rule["verbs"])))
        for role in roles_of(who, on)
        for rule in role["rules"]
    }
    assert rules == {
        (role_name(who, on, rule.when), (rule.group,), rule.resources, rule.verbs) for rule in PERMISSIONS[who, on]
    }


@pytest.mark.parametrize("name", sorted(files()))
def test_a_manifest_is_complete(name: str) -> None:
    role = manifest(name)
    assert set(role) == {"apiVersion", "kind", "metadata", "rules"}
    assert role["apiVersion"] == "rbac.authorization.k8s.io/v1"
    assert role["kind"] in ("ClusterRole", "Role")
    assert role["metadata"]["name"] == name
    assert role["rules"]


def test_names_are_unique_because_planes_may_share_a_cluster() -> None:
    names = [role["metadata"]["name"] for role in map(manifest, files())]
    assert len(names) == len(set(names))
    assert all(name.startswith("compute-") for name in names)


def test_leases_ledgers_secrets_and_works_are_limited_to_one_namespace() -> None:
    limited = [role for role in map(manifest, files()) if role["kind"] == "Role"]
    assert [role["metadata"]["name"] for role in limited] == [
        "compute-management-on-host-leader-election",
        "compute-management-on-host-webhook-certificate",
        "compute-management-on-host-front-proxy",
        "compute-management-on-root-front-proxy",
        "compute-cell-on-cell-leader-election",
        "compute-cell-on-cell-abandoned-claims",
        "compute-cell-on-hub-execution-space",
    ]
    kinds = {tuple(rule["resources"]) for role in limited for rule in role["rules"]}
    assert kinds == {("leases",), ("works",), ("configmaps",), ("secrets",)}


def test_a_process_may_access_only_its_own_lease() -> None:
    rules = [
        rule
        for who, on in ((Who.MANAGEMENT, On.HOST), (Who.CELL, On.CELL))
        for role in roles_of(who, on)
        for rule in role["rules"]
        if rule["resources"] == ["leases"]
    ]
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in rules] == [
        (["e98b06c6.datumapis.com"], ["get", "update"]),
        (None, ["create"]),  # an authorizer does not know the name of a new object
        (["cell.e98b06c6.datumapis.com"], ["get", "update"]),
        (None, ["create"]),
    ]


def test_optional_features_have_separate_roles() -> None:
    names = [role["metadata"]["name"] for role in roles_of(Who.MANAGEMENT, On.PROJECT)]
    assert names == [
        "compute-management-on-project",
        "compute-management-on-project-networking",
        "compute-management-on-project-webhook",
        "compute-management-on-project-logs",
        "compute-management-on-project-builtin-entitlement",
        "compute-management-on-project-builtin-locations",
        "compute-management-on-project-builtin-quota",
    ]
    assert role_name(Who.CELL, On.HUB, When.ALWAYS) == "compute-cell-on-hub"


def test_every_rule_states_its_purpose() -> None:
    for name, text in files().items():
        assert text.count("\n# ") == len(manifest(name)["rules"])
