"""What is checked follows from the table of permissions and from what is switched on."""

from pathlib import Path
from typing import Any

import pytest

from datum_compute.api.crd import OURS
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.permissions import CELL_LEASE, MANAGEMENT_LEASE, PERMISSIONS, On, When, Who
from datum_compute.api.roles import features, role_name
from datum_compute.operator.check.needs import HUB, OWN, PROJECT, ROOT, kinds, rights
from datum_compute.operator.config import (
    API_VERSION,
    KIND,
    Discovery,
    LogsServer,
    MetricsServer,
    SelfSigned,
    WebhookServer,
    WebhookTls,
    WorkloadOperator,
)
from datum_compute.operator.flags import Flags
from datum_compute.operator.settings import Settings, settled

ROLES = Path(__file__).parents[3] / "deploy" / "roles"
MANAGEMENT = {"enable_management_controllers": True, "federation_kubeconfig": "/hub"}
CELL = {"enable_cell_controllers": True, "federation_kubeconfig": "/hub"}
NETWORKING = {"feature_gates": "NetworkingIntegration=true"}


def _settings(
    flags: dict[str, Any],
    *,
    webhook: WebhookServer | None = None,
    logs: LogsServer | None = None,
    metrics: str = "0",
    **discovery: Any,
) -> Settings:
    config = WorkloadOperator(
        API_VERSION,
        KIND,
        metrics_server=MetricsServer(bind_address=metrics),
        webhook_server=webhook,
        logs_server=logs,
        discovery=Discovery(**discovery),
    )
    return settled(Flags(**flags), config)


SELF_SIGNED = WebhookServer(
    tls=WebhookTls(self_signed=SelfSigned(secret_name="mine", mutating_webhooks=(), validating_webhooks=("v", "w")))
)

EVERYTHING = [
    _settings(
        MANAGEMENT | NETWORKING | {"builtins": "quota,entitlement,locations", "leader_elect": True},
        webhook=SELF_SIGNED,
        metrics=":1",
        mode="milo",
    ),
    _settings(MANAGEMENT, mode="milo", internal_service_discovery=True, logs=LogsServer()),
    _settings(MANAGEMENT, logs=LogsServer()),
    _settings(
        CELL | NETWORKING | {"builtins": "network,locations", "leader_elect": True, "provider": "pods"},
        metrics=":1",
        cluster_name="dfw-1",
        quota_kubeconfig_path="/quota",
    ),
]


UNCHECKED = {(Who.MANAGEMENT, On.CELL)}  # a check calls no cells


def _roles(settings: Settings) -> dict[str, set[str]]:
    return {plane: {right.role for right in found} for plane, found in rights(settings, "ns").items()}


def test_every_role_is_checked_where_its_feature_is_on() -> None:
    checked = {role for settings in EVERYTHING for roles in _roles(settings).values() for role in roles}
    shipped = {
        role_name(who, on, rule.when)
        for (who, on), rules in PERMISSIONS.items()
        for rule in rules
        if who in (Who.MANAGEMENT, Who.CELL) and (who, on) not in UNCHECKED
    }
    assert checked == shipped, "needs.py must know when a feature is on"


def test_only_what_is_switched_on_is_checked() -> None:
    assert _roles(_settings({})) == {}
    assert _roles(_settings(MANAGEMENT, mode="milo")) == {
        ROOT: {"compute-management-on-root-milo-discovery"},
        PROJECT: {"compute-management-on-project"},
        HUB: {"compute-management-on-hub"},
    }
    assert _roles(_settings(CELL)) == {OWN: {"compute-cell-on-cell"}, HUB: {"compute-cell-on-hub"}}
    assert _roles(_settings(CELL | {"provider": "pods"}, cluster_name="dfw-1", quota_kubeconfig_path="/quota")) == {
        OWN: {"compute-cell-on-cell", "compute-cell-on-cell-abandoned-claims", "compute-cell-on-cell-provider-pods"},
        HUB: {"compute-cell-on-hub", "compute-cell-on-hub-execution-space"},
        PROJECT: {"compute-cell-on-project"},
    }


def test_a_process_for_both_groups_takes_the_lease_of_management() -> None:
    both = rights(_settings(MANAGEMENT | CELL | {"leader_elect": True, "builtins": "quota"}), "ns")
    assert set(both) == {OWN, HUB}, "in mode single the cluster is the project, and the cell"
    names = {right.name for right in both[OWN] if right.resource == "leases" and right.name}
    assert names == {MANAGEMENT_LEASE}
    alone = rights(_settings(CELL | {"leader_elect": True}), "ns")
    assert {right.name for right in alone[OWN] if right.resource == "leases" and right.name} == {CELL_LEASE}


def test_a_certificate_of_its_own_needs_the_objects_that_the_config_names() -> None:
    needed = [right for right in rights(EVERYTHING[0], "ns")[OWN] if "-webhook-" in right.role and right.name]
    assert {(right.resource, right.namespace, right.name) for right in needed} == {
        ("secrets", "ns", "mine"),
        ("validatingwebhookconfigurations", "", "v"),
        ("validatingwebhookconfigurations", "", "w"),
    }


def test_a_process_that_only_admits_needs_little_in_projects() -> None:
    needed = rights(_settings({}, webhook=WebhookServer(), mode="milo"), "ns")[PROJECT]
    assert {right.resource for right in needed} == {
        *("locationbindings", "locations"),
        *("subjectaccessreviews", "selfsubjectreviews"),
    }


def test_a_process_that_only_serves_logs_needs_little() -> None:
    needed = rights(_settings({"federation_kubeconfig": "/hub"}, logs=LogsServer(), mode="milo"), "ns")
    assert {right.resource for right in needed[PROJECT]} == {
        *("namespaces", "instances"),
        *("tokenreviews", "subjectaccessreviews"),
    }
    assert {right.target for right in needed[HUB] if right.verb == "get"} == {
        *("namespaces", "instances.compute.datumapis.com"),
        *("clusters.cluster.karmada.io", "clusters/proxy.cluster.karmada.io"),
    }
    [config] = [right for right in needed[ROOT] if right.resource == "configmaps"]
    assert (config.namespace, config.name, config.verb) == ("kube-system", "extension-apiserver-authentication", "get")


@pytest.mark.parametrize(
    ("when", "namespace"),
    [
        (When.LEADER_ELECTION, "ns"),
        (When.ABANDONED_CLAIMS, "ns"),
        (When.EXECUTION_SPACE, "karmada-es-dfw-1"),
    ],
)
def test_rights_in_one_namespace_are_checked_there(when: When, namespace: str) -> None:
    needed = [right for found in rights(EVERYTHING[-1], "ns").values() for right in found]
    assert {right.namespace for right in needed if right.role.endswith(when.value)} == {namespace}
    assert {right.namespace for right in needed} == {"", "ns", "karmada-es-dfw-1"}


def test_the_files_of_roles_are_those_that_ship() -> None:
    rights_ = [right for settings in EVERYTHING for found in rights(settings, "ns").values() for right in found]
    assert {right.role for right in rights_} == {
        role_name(who, on, when)
        for who, on in PERMISSIONS
        for when in features(who, on)
        if who in (Who.MANAGEMENT, Who.CELL) and (who, on) not in UNCHECKED
    }
    assert all((ROLES / right.folder / "role.yaml").is_file() for right in rights_)


def test_kinds_follow_from_rights() -> None:
    needed = rights(EVERYTHING[0], "ns")
    assert set(OURS) <= kinds(needed[PROJECT]).keys()
    assert kinds(needed[PROJECT])[INSTANCE] == ("status",)
    assert kinds(needed[HUB])[WORKLOAD_DEPLOYMENT] == ()
    assert kinds(needed[OWN]) == {}, "leases and reviews are served everywhere"
