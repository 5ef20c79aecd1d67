"""Reviews of users and access, requested by the administrator of the server."""

import pytest

from datum_compute.kube.meta import Json
from tests.conformance.kinds import Place
from tests.conformance.server import Server
from tests.kubectl import Kubectl

AUTHORIZATION = "authorization.k8s.io/v1"
RESOURCE: Json = {"namespace": "default", "verb": "create", "resource": "configmaps"}
PATH: Json = {"path": "/metrics", "verb": "get"}


def review(kind: str, spec: Json | None = None, **more: Json) -> Json:
    return {"apiVersion": AUTHORIZATION, "kind": kind, **({} if spec is None else {"spec": spec}), **more}


def may_i(spec: Json, **more: Json) -> Json:
    return review("SelfSubjectAccessReview", spec, **more)


SELF = f"/apis/{AUTHORIZATION}/selfsubjectaccessreviews"
RULES = f"/apis/{AUTHORIZATION}/selfsubjectrulesreviews"
OTHERS = f"/apis/{AUTHORIZATION}/subjectaccessreviews"


@pytest.mark.parametrize("spec", [{"resourceAttributes": RESOURCE}, {"nonResourceAttributes": PATH}])
def test_an_administrator_may_do_everything(server: Server, spec: Json) -> None:
    review = server.create(SELF, may_i(spec))
    assert (review["kind"], review["apiVersion"]) == ("SelfSubjectAccessReview", AUTHORIZATION)
    assert (review["spec"], review["status"]) == (spec, {"allowed": True})
    assert server.create(SELF, {"spec": spec}, dryRun="All")["status"] == {"allowed": True}


def test_empty_fields_of_a_review_are_dropped(server: Server) -> None:
    review = server.create(SELF, may_i({"resourceAttributes": RESOURCE | {"group": "", "name": ""}}))
    assert review["spec"] == {"resourceAttributes": RESOURCE}


@pytest.mark.parametrize(
    ("body", "causes"),
    [
        (may_i({}), [("FieldValueInvalid", "spec.resourceAttributes")]),
        (
            may_i({"resourceAttributes": RESOURCE, "nonResourceAttributes": PATH}),
            [("FieldValueInvalid", "spec.nonResourceAttributes")],
        ),
        (may_i({"resourceAttributes": RESOURCE}, metadata={"name": "x"}), [("FieldValueInvalid", "metadata")]),
    ],
)
def test_a_review_needs_exactly_one_kind_of_attributes(
    server: Server, body: Json, causes: list[tuple[str, str]]
) -> None:
    refused = server.ask("POST", SELF, body)
    assert (refused.failure, refused.causes) == ((422, "Invalid"), causes)
    assert refused.message.startswith('.authorization.k8s.io "" is invalid: ')


@pytest.mark.parametrize(
    "body",
    [review("Other", {"resourceAttributes": RESOURCE}), may_i({"resourceAttributes": 3}), may_i({"nonResource": 1})],
)
def test_an_unreadable_review_is_refused(server: Server, body: Json) -> None:
    assert server.ask("POST", SELF, body, fieldValidation="Strict").failure == (400, "BadRequest")


def test_a_review_is_not_stored(server: Server) -> None:
    assert server.ask("GET", SELF).failure == (405, "MethodNotAllowed")
    assert server.ask("GET", f"{SELF}/one").failure == (404, "NotFound")


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [({"user": "joe", "groups": ["system:masters"]}, True), ({"user": "joe"}, False), ({"groups": ["team"]}, False)],
)
def test_access_of_other_users_is_reviewed(server: Server, subject: Json, allowed: bool) -> None:
    spec = {"resourceAttributes": RESOURCE} | subject
    assert server.create(OTHERS, review("SubjectAccessReview", spec))["status"]["allowed"] is allowed
    refused = server.ask("POST", OTHERS, review("SubjectAccessReview", {"resourceAttributes": RESOURCE}))
    assert (refused.failure, refused.causes) == ((422, "Invalid"), [("FieldValueInvalid", "spec.user")])


def test_rules_of_an_administrator_are_reviewed(server: Server) -> None:
    status = server.create(RULES, review("SelfSubjectRulesReview", {"namespace": "default"}))["status"]
    assert {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]} in status["resourceRules"]
    assert {"verbs": ["*"], "nonResourceURLs": ["*"]} in status["nonResourceRules"]
    assert status["incomplete"] is False
    refused = server.ask("POST", RULES, review("SelfSubjectRulesReview", {}))
    assert (refused.failure, refused.message) == ((400, "BadRequest"), "no namespace on request")


def test_the_current_user_is_reviewed(server: Server) -> None:
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = server.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    assert review["metadata"].keys() == {"creationTimestamp"}
    assert review["status"]["userInfo"]["username"]
    assert "system:authenticated" in review["status"]["userInfo"]["groups"]


@pytest.mark.parametrize(
    ("group", "plurals"),
    [
        ("authentication.k8s.io", {"selfsubjectreviews"}),
        ("authorization.k8s.io", {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"}),
    ],
)
def test_reviews_are_discovered(server: Server, group: str, plurals: set[str]) -> None:
    resources = {resource["name"]: resource for resource in server.get(f"/apis/{group}/v1")["resources"]}
    assert plurals <= resources.keys()
    assert all(resources[plural]["verbs"] == ["create"] for plural in plurals)
    assert f"apis/{group}/v1" in server.get("/openapi/v3")["paths"]


def test_kubectl_auth_works_for_an_administrator(kubectl: Kubectl, place: Place) -> None:
    for question in (
        ["create", "configmaps"],
        ["*", "*"],
        ["get", "/metrics"],
        ["delete", "widgets", "--all-namespaces"],
    ):
        assert kubectl("auth", "can-i", *question) == "yes\n", question
    assert "Username" in kubectl("auth", "whoami")
    listed = kubectl("auth", "can-i", "--list", f"--namespace={place.name}").splitlines()
    assert ["*.*", "[]", "[]", "[*]"] in [line.split() for line in listed]
    output = ("--validate=false", "--output=jsonpath={.status.allowed}")
    made = kubectl("create", *output, manifest=may_i({"resourceAttributes": RESOURCE}))
    assert made == "true"
