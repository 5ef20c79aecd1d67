"""What observed facts mean, by table."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from datum_compute.api.crd import definition
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.authority import SERVER, issue, new_authority
from datum_compute.kube.meta import Json
from datum_compute.operator.check import judgement, validity
from datum_compute.operator.check.diagnoses import Diagnosis, Result, table
from datum_compute.operator.check.facts import ClusterFacts, PlaneFacts, Registration, ServingFacts, TrustFacts
from datum_compute.operator.check.schemas import missing_fields
from datum_compute.operator.check.validity import Validity

NOW = datetime(2026, 6, 1, tzinfo=UTC)
FINE, WARNING, FAILED = Result.FINE, Result.WARNING, Result.FAILED


@pytest.mark.parametrize(
    ("seconds", "result"),
    [(0, FINE), (9, FINE), (10, WARNING), (-299, WARNING), (300, FAILED), (-600, FAILED), (None, WARNING)],
)
def test_clocks_may_differ_by_seconds(seconds: float | None, result: Result) -> None:
    skew = timedelta(seconds=seconds) if seconds is not None else None
    (clock,) = (found for found in judgement.plane(PlaneFacts("hub", "--x", skew=skew), NOW) if found.check == "clock")
    assert clock.result is result


@pytest.mark.parametrize(
    ("lifetime", "left", "renewed", "result"),
    [
        (timedelta(days=90), timedelta(days=8), False, FINE),
        (timedelta(days=90), timedelta(days=6), False, WARNING),
        (timedelta(hours=1), timedelta(minutes=30), False, FINE),
        (timedelta(hours=1), timedelta(minutes=10), False, WARNING),
        (timedelta(hours=1), timedelta(minutes=10), True, FINE),
        (timedelta(hours=1), timedelta(), True, FAILED),
        (None, timedelta(days=6), False, WARNING),
    ],
)
def test_credentials_are_reported_before_they_expire(
    lifetime: timedelta | None, left: timedelta, renewed: bool, result: Result
) -> None:
    end = NOW + left
    token = Validity("the token", end, end - lifetime if lifetime else None, renewed=renewed)
    facts = PlaneFacts("hub", "--x", user="ada", validities=(token,))
    (found,) = (found for found in judgement.plane(facts, NOW) if found.check == "credentials")
    assert found.result is result


def test_the_validity_of_a_token_is_read_from_its_claims() -> None:
    def token(claims: Json) -> str:
        return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"

    found = validity.of_token(token({"iat": NOW.timestamp(), "exp": NOW.timestamp() + 60}), "it")
    assert found == Validity("it", NOW + timedelta(minutes=1), NOW)
    for text in ("opaque", "a.b.c", "", token({"exp": "soon"}), token({"exp": 1e300}), token({})):
        assert validity.of_token(text, "it") is None


def test_the_validity_of_a_certificate_has_its_names() -> None:
    pair = issue(new_authority("a", NOW, 9), "x", NOW, 5, purposes=[SERVER], names=[x509.DNSName("x.svc")])
    found = validity.of_certificate(pair.certificate_pem, "it")
    assert found is not None
    assert (found.end, found.names) == (NOW + timedelta(days=5), ("x.svc",))
    assert validity.of_certificate(b"none", "it") is None


def test_a_schema_is_older_when_it_lacks_fields_and_not_when_it_has_more() -> None:
    ours: Json = definition(WORKLOAD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    theirs: Json = definition(WORKLOAD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    theirs["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert list(missing_fields(ours, theirs)) == []
    del theirs["properties"]["spec"]["properties"]["placements"]["items"]["properties"]["cityCodes"]
    del theirs["properties"]["status"]
    assert list(missing_fields(ours, theirs)) == ["spec.placements[].cityCodes", "status"]
    assert list(missing_fields(ours, {"x-kubernetes-preserve-unknown-fields": True})) == []


def test_a_cluster_without_a_city_is_no_failure_beside_others() -> None:
    served = ClusterFacts("a", "DFW", ready=True, serves=True)
    idle = ClusterFacts("b", "", ready=True, serves=False)
    assert [found.result for found in judgement.clusters([served, idle])] == [WARNING]
    assert [found.result for found in judgement.clusters([idle])] == [FAILED]
    assert [found.result for found in judgement.clusters([])] == [WARNING]
    assert [found.result for found in judgement.clusters([served])] == [FINE]


def test_a_certificate_may_name_its_host_with_a_wildcard() -> None:
    registration = Registration("root", "w", "a.ns.svc", "/validate", b"")
    facts = [TrustFacts(registration, "self-signed certificate")]
    (found,) = judgement.trust(facts, ["*.ns.svc"], per_project=False)
    assert "caBundle" in found.advice
    (found,) = judgement.trust(facts, ["b.ns.svc"], per_project=False)
    assert found.advice == "issue a certificate for a.ns.svc, or correct the registration's clientConfig"


def test_a_registration_must_name_the_project_where_nothing_else_does() -> None:
    registration = Registration("project demo", "w", "a.ns.svc", "/validate", b"")
    (found,) = judgement.trust([TrustFacts(registration)], ["a.ns.svc"], per_project=True)
    assert (found.result, found.advice) == (FAILED, "let clientConfig's path end with /projects/<name>")


def test_a_certificate_of_the_future_fails() -> None:
    certificate = Validity("the certificate", NOW + timedelta(days=9), NOW + timedelta(days=1))
    facts = ServingFacts("webhook", "webhookServer.port", certificate=certificate, certificate_source="/certs")
    assert [found.result for found in judgement.serving(facts, NOW)] == [FAILED]


def test_the_table_has_what_to_do_below_what_was_found() -> None:
    diagnoses = [Diagnosis("clock", "hub", FINE, "fine it is"), Diagnosis("rights", "", FAILED, "may not x", "bind y")]
    assert table(diagnoses).splitlines() == [
        "CHECK    PLANE   RESULT   FOUND, AND WHAT TO DO",
        "clock    hub     fine     fine it is",
        "rights   -       failed   may not x",
        "                          -> bind y",
        "",
        "1 failed, 0 warnings, 1 fine.",
    ]
