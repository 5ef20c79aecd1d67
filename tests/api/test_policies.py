"""The generated admission policies, evaluated as an API server would."""

import pytest
import yaml

from datum_compute.api.accounts import Accounts
from datum_compute.api.policies import POLICIES, files
from datum_compute.api.validation.deployments import deployment_refusal
from datum_compute.kube.meta import Json
from tests.api.deployment_writes import BARE, NEVER, ONCE, WRITES, Write, changed
from tests.policies import manifests, refusal

GC = "system:serviceaccount:kube-system:generic-garbage-collector"
NAMESPACES = "system:serviceaccount:kube-system:namespace-controller"
MANAGEMENT = "system:serviceaccount:compute-system:compute-management"
DFW = "system:serviceaccount:compute-system:compute-cell-pop-dfw"
SOURCE = "compute.datumapis.com/source-cluster"

DEPLOYMENTS = "compute-deployments-on-project"


def write(case: Write) -> str:
    return refusal(DEPLOYMENTS, "jo", "UPDATE", case.before, case.after)


@pytest.mark.parametrize("case", WRITES, ids=[case.what for case in WRITES])
def test_others_may_only_move_the_restart_of_a_deployment_forward(case: Write) -> None:
    assert (write(case) == "") is case.allowed


@pytest.mark.parametrize("case", WRITES, ids=[case.what for case in WRITES])
def test_the_rule_in_python_agrees_with_the_policy(case: Write) -> None:
    assert deployment_refusal("UPDATE", "", case.before, case.after) == write(case)


@pytest.mark.parametrize("deployment", [ONCE, BARE], ids=["annotated", "bare"])
@pytest.mark.parametrize(("operation", "subresource"), [("CREATE", ""), ("DELETE", ""), ("UPDATE", "status")])
def test_others_may_not_create_delete_or_report_on_deployments(
    operation: str, subresource: str, deployment: Json
) -> None:
    before = None if operation == "CREATE" else deployment
    after = None if operation == "DELETE" else deployment
    refused = refusal(DEPLOYMENTS, "jo", operation, before, after, subresource=subresource)
    assert refused.startswith("deployment web-main-dfw follows from its Workload")
    assert deployment_refusal(operation, subresource, before, after) == refused


@pytest.mark.parametrize("metadata", [5, 1.5, "text", ["labels"], True])
def test_template_metadata_that_is_no_map_counts_as_a_change_of_the_spec(metadata: object) -> None:
    before: Json = {"metadata": {"name": "web"}, "spec": {"template": {"spec": {}}}}
    after: Json = {"metadata": {"name": "web"}, "spec": {"template": {"spec": {}, "metadata": metadata}}}
    assert "deployment web follows from its Workload" in deployment_refusal("UPDATE", "", before, after)
    assert deployment_refusal("UPDATE", "", after, after) == ""


def test_an_object_without_a_name_yet_is_refused_too() -> None:
    unnamed = changed(NEVER, "metadata", "name", to=None)
    assert refusal(DEPLOYMENTS, "jo", "CREATE", None, unnamed).startswith("deployment  follows")


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        (MANAGEMENT, ["system:serviceaccounts"]),
        (GC, []),
        (NAMESPACES, []),
        ("system:kube-controller-manager", []),
        ("jo", ["system:authenticated", "system:masters"]),
    ],
)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_compute_kubernetes_and_administrators_are_exempt(user: str, groups: list[str], operation: str) -> None:
    other = changed(ONCE, "spec", "cityCode", to="ORD")
    assert refusal(DEPLOYMENTS, user, operation, ONCE, other, groups=groups) == ""
    assert Accounts().include(user, groups)


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        ("jo", ["system:authenticated"]),
        (f"{MANAGEMENT}-2", []),
        ("system:serviceaccount:default:compute-management", []),
        (DFW, ["system:serviceaccounts:compute-system"]),
        ("system:masters", []),
        ("", []),
    ],
)
def test_similar_user_names_are_not_exempt(user: str, groups: list[str]) -> None:
    assert refusal(DEPLOYMENTS, user, "DELETE", ONCE, None, groups=groups)
    assert not Accounts().include(user, groups)


def labelled(cell: str | None) -> Json:
    """An object written by a cell, labelled with its name."""
    labels = {} if cell is None else {"labels": {"app": "web", SOURCE: cell}}
    return {"metadata": {"name": "web-main-dfw-0", **labels}}


OWN, OTHERS, UNLABELLED, UNNAMED = labelled("pop-dfw"), labelled("pop-ord"), labelled(None), labelled("single")
CELL_POLICIES = {"compute-cells-on-hub": "ns-1", "compute-cells-on-project": "default"}


@pytest.mark.parametrize(("policy", "namespace"), CELL_POLICIES.items())
@pytest.mark.parametrize(
    ("operation", "before", "after", "allowed"),
    [
        ("CREATE", None, OWN, True),
        ("UPDATE", OWN, OWN, True),
        ("DELETE", OWN, None, True),
        ("CREATE", None, OTHERS, False),
        ("CREATE", None, UNLABELLED, False),
        ("CREATE", None, UNNAMED, False),
        ("UPDATE", OTHERS, OTHERS, False),
        ("UPDATE", OTHERS, OWN, False),
        ("UPDATE", OTHERS, UNLABELLED, False),
        ("UPDATE", OWN, OTHERS, False),
        ("UPDATE", OWN, UNLABELLED, False),
        ("UPDATE", OWN, UNNAMED, False),
        ("UPDATE", UNLABELLED, UNLABELLED, False),
        ("DELETE", OTHERS, None, False),
        ("DELETE", UNLABELLED, None, False),
        ("DELETE", UNNAMED, None, False),
    ],
)
@pytest.mark.parametrize("subresource", ["", "status"])
def test_a_named_cell_writes_only_objects_labelled_with_its_name(
    policy: str,
    namespace: str,
    operation: str,
    before: Json | None,
    after: Json | None,
    allowed: bool,
    subresource: str,
) -> None:
    refused = refusal(policy, DFW, operation, before, after, namespace=namespace, subresource=subresource)
    assert (refused == "") is allowed
    assert allowed or refused.startswith('cell "pop-dfw" writes only')


@pytest.mark.parametrize("before", [UNLABELLED, UNNAMED])
def test_a_newly_named_cell_adopts_unlabelled_copies_but_no_claims(before: Json) -> None:
    assert refusal("compute-cells-on-hub", DFW, "UPDATE", before, OWN, namespace="ns-1") == ""
    assert refusal("compute-cells-on-project", DFW, "UPDATE", before, OWN)


def test_a_cell_creates_instances_only_in_namespaces_of_projects() -> None:
    assert refusal("compute-cells-on-hub", DFW, "CREATE", None, OWN, namespace="kube-system")


@pytest.mark.parametrize(("policy", "namespace"), CELL_POLICIES.items())
@pytest.mark.parametrize("user", ["system:serviceaccount:compute-system:compute-cell", MANAGEMENT, GC, "jo"])
def test_the_policies_do_not_apply_to_unnamed_cells_and_others(policy: str, namespace: str, user: str) -> None:
    assert refusal(policy, user, "DELETE", OTHERS, None, namespace=namespace) == ""


@pytest.mark.parametrize("user", [f"{DFW}x", "system:serviceaccount:compute-system:compute-cell-"])
@pytest.mark.parametrize(("policy", "namespace"), CELL_POLICIES.items())
def test_a_cell_whose_name_resembles_another_is_a_different_cell(policy: str, namespace: str, user: str) -> None:
    assert refusal(policy, user, "DELETE", OWN, None, namespace=namespace)


HOME_LABELS = {
    "meta.datumapis.com/upstream-cluster-name": "cluster-demo",
    "meta.datumapis.com/upstream-namespace": "default",
}


@pytest.mark.parametrize(
    ("name", "labels", "allowed"),
    [
        ("ns-1", HOME_LABELS, True),
        ("ns-1", {}, False),
        ("ns-1", {"meta.datumapis.com/upstream-cluster-name": "cluster-demo"}, False),
        ("ns-1", HOME_LABELS | {"meta.datumapis.com/upstream-namespace": ""}, False),
        ("karmada-es-pop-dfw", HOME_LABELS, False),
        ("kube-system", {}, False),
    ],
)
def test_management_deletes_only_namespaces_that_it_created(name: str, labels: dict[str, str], allowed: bool) -> None:
    namespace = {"metadata": {"name": name, **({"labels": labels} if labels else {})}}
    refused = refusal("compute-management-on-hub", MANAGEMENT, "DELETE", namespace, None, namespace="")
    assert refused == ("" if allowed else f"namespace {name} was not made for the namespace of a project")
    assert refusal("compute-management-on-hub", "jo", "DELETE", namespace, None, namespace="") == ""


def test_every_policy_is_bound_and_fails_closed() -> None:
    for text in files().values():
        documents = list(yaml.safe_load_all(text))
        bindings = [document for document in documents if document["kind"] == "ValidatingAdmissionPolicyBinding"]
        bound = {binding["spec"]["policyName"] for binding in bindings}
        kind = "ValidatingAdmissionPolicy"
        policies = {document["metadata"]["name"] for document in documents if document["kind"] == kind}
        assert bound == policies
    assert all(manifest["spec"]["failurePolicy"] == "Fail" for manifest in manifests().values())
    assert len(manifests()) == len(POLICIES)  # names are unique, because planes may share a cluster
