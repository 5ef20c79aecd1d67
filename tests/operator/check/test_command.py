"""compute-manager check finds what would keep a process from working, and says what to do.

Each case spoils one thing in an installation that is otherwise in order: only that may be found.
"""

import asyncio
import base64
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, execution_space
from datum_compute.api.permissions import WEBHOOK_SECRET
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.authority import new_authority
from datum_compute.kube.kinds import LEASE, NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.operator import process
from datum_compute.operator.certificates import SECRET
from datum_compute.operator.check import command
from datum_compute.operator.check.diagnoses import Result
from datum_compute.operator.check.gathering import Patience
from datum_compute.operator.config import SelfSigned
from datum_compute.operator.flags import FLAGS, Flags
from datum_compute.operator.issuer import Issuer
from datum_compute.runtime import SystemClock
from tests.https import Scripted, say_nothing
from tests.operator.check.surroundings import (
    CELL_NAME,
    NAMESPACE_NAME,
    PROJECT_NAME,
    WEBHOOK_HOST,
    Alter,
    Surroundings,
    unaltered,
)

FAILED, FINE, WARNING = Result.FAILED, Result.FINE, Result.WARNING


class Seed:
    """A misconfiguration: what spoils the surroundings and returns the flags, and what is found.

    `found` and `advice` are how the sentences begin; `{directory}` and `{port}` stand for those of the surroundings.
    """

    def __init__(
        self,
        spoil: Callable[[Surroundings], Awaitable[Flags]],
        check: str,
        plane: str,
        result: Result,
        found: str,
        advice: str,
        alter: Alter = unaltered,
    ) -> None:
        self.spoil = spoil
        self.expected = (check, plane, result)
        self.found, self.advice = found, advice
        self.alter = alter
        self.id = (spoil if alter is unaltered else alter).__name__.replace("_", "-")


async def hub_unreachable(around: Surroundings) -> Flags:
    around.kubeconfig("hub", server="https://127.0.0.1:1")
    return around.management()


async def another_authority_for_the_hub(around: Surroundings) -> Flags:
    other = Credentials.ensure(around.directory / "other")
    around.kubeconfig("hub", ca_pem=other.authority_pem)
    return around.management()


async def expired_token_for_the_hub(around: Surroundings) -> Flags:
    claims = {"iat": 1767225600, "exp": 1767229200}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    around.kubeconfig("hub", token=f"e30.{payload}.c2ln")
    return around.management()


async def a_token_that_the_hub_does_not_know(around: Surroundings) -> Flags:
    around.kubeconfig("hub", token="unknown")
    return around.management()


async def a_rule_missing_on_the_hub(around: Surroundings) -> Flags:
    around.denied = lambda path, review: (
        path.startswith("/planes/hub/") and review["resource"] == "propagationpolicies" and review["verb"] == "delete"
    )
    return around.management()


async def a_role_missing_in_the_execution_space(around: Surroundings) -> Flags:
    around.denied = lambda path, review: review.get("namespace") == execution_space(CELL_NAME)
    return around.cell()


async def claims_that_cannot_be_watched(around: Surroundings) -> Flags:
    around.denied = lambda path, review: review["resource"] == "resourceclaims" and review["verb"] in ("list", "watch")
    return around.cell()


async def management(around: Surroundings) -> Flags:
    return around.management()


async def cell(around: Surroundings) -> Flags:
    return around.cell()


def without_workloads(role: str, definition: Json) -> Json | None:
    return None if role == "project" and definition["metadata"]["name"] == WORKLOAD.resource else definition


def with_an_older_instance(role: str, definition: Json) -> Json | None:
    if role == "cell" and definition["metadata"]["name"] == INSTANCE.resource:
        properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        del properties["status"]["properties"]["conditions"]
        properties["status"].pop("default", None)
    return definition


def with_another_version_of_policies(role: str, definition: Json) -> Json | None:
    if role == "hub" and definition["metadata"]["name"] == PROPAGATION_POLICY.resource:
        definition["spec"]["versions"][0]["name"] = "v1beta1"
    return definition


def without_claims(role: str, definition: Json) -> Json | None:
    return None if role == "project" and definition["metadata"]["name"] == RESOURCE_CLAIM.resource else definition


async def a_cluster_without_city(around: Surroundings) -> Flags:
    patch = {"metadata": {"labels": {"topology.datum.net/city-code": None}}}
    await around.client("hub").merge_patch(CLUSTER, CELL_NAME, "", patch)
    return around.management()


async def two_clusters_of_one_city(around: Surroundings) -> Flags:
    await around.cluster("cell-dfw-2", "DFW")
    return around.management()


async def a_cluster_that_is_not_ready(around: Surroundings) -> Flags:
    await around.cluster("cell-ams", "AMS", ready=False)
    return around.management()


async def an_expired_webhook_certificate(around: Surroundings) -> Flags:
    around.certificate(around.authority, since=timedelta(days=40))
    return around.management()


async def a_webhook_certificate_for_another_name(around: Surroundings) -> Flags:
    around.certificate(around.authority, "other.compute-system.svc")
    return around.management()


async def a_webhook_certificate_of_another_authority(around: Surroundings) -> Flags:
    around.bundle = new_authority("another", datetime.now(UTC), 30).certificate_pem
    return around.management()


async def an_own_certificate_for_another_service(around: Surroundings) -> Flags:
    tls = f"certDir: {around.directory}/webhook"
    return around.with_config(around.management(), tls, "selfSigned: {serviceName: admission}")


async def own_certificate(around: Surroundings) -> Flags:
    """The certificate that a process has issued itself, and whose registrations nobody writes for it."""
    settings = SelfSigned(service_name="compute", mutating_webhooks=(), validating_webhooks=())
    await Issuer(around.client("root"), NAMESPACE_NAME, settings, SystemClock()).read()
    tls = f"certDir: {around.directory}/webhook"
    return around.with_config(around.management(), tls, "selfSigned: {serviceName: compute}")


async def an_own_certificate_that_a_registration_does_not_trust(around: Surroundings) -> Flags:
    return await own_certificate(around)


async def no_webhook_certificate(around: Surroundings) -> Flags:
    (around.directory / "webhook" / "tls.key").unlink()
    return around.management()


async def no_namespace_for_the_lease(around: Surroundings) -> Flags:
    return around.management(leader_elect_namespace="nowhere")


async def an_unknown_context(around: Surroundings) -> Flags:
    return around.management(federation_context="production")


async def no_kubeconfig_for_the_hub(around: Surroundings) -> Flags:
    return around.management(federation_kubeconfig=str(around.directory / "absent"))


async def no_kubeconfig_for_a_project(around: Surroundings) -> Flags:
    return around.cell_without_milo()


async def a_kubeconfig_of_a_project_that_runs_programs(around: Surroundings) -> Flags:
    flags = around.cell_without_milo()
    around.kubeconfig(PROJECT_NAME, around.directory / "projects" / "demo.yaml", token="", token_file="/etc/hostname")
    return flags


async def a_cell_name_that_another_cluster_holds(around: Surroundings) -> Flags:
    body = LEASE.body(CELL_NAME, execution_space(CELL_NAME))
    spec = {"holderIdentity": "another-cluster", "leaseDurationSeconds": 3600}
    await around.client("hub").create(LEASE, body | {"spec": spec})
    return around.cell()


async def a_cell_that_is_not_a_member(around: Surroundings) -> Flags:
    return around.with_config(around.cell(), CELL_NAME, "cell-sin")


async def a_misspelt_field(around: Surroundings) -> Flags:
    return around.with_config(around.management(), "webhookServer", "webhooks")


SEEDS = [
    Seed(
        hub_unreachable,
        *("connection", "hub", FAILED),
        "127.0.0.1:1 cannot be reached: Connect call failed",
        "check the server's address, that it runs, and the network and any proxy on the way (--federation-kubeconfig)",
    ),
    Seed(
        another_authority_for_the_hub,
        *("connection", "hub", FAILED),
        "the certificate of 127.0.0.1:{port} is not trusted: ",
        "check the certificate authority in the kubeconfig and the certificate of the server (--federation-kubeconfig)",
    ),
    Seed(
        expired_token_for_the_hub,
        *("credentials", "hub", FAILED),
        "the token expired at 2026-01-01 01:00:00 UTC",
        "issue a new one, and put it where --federation-kubeconfig has the old one",
    ),
    Seed(
        a_token_that_the_hub_does_not_know,
        *("credentials", "hub", FAILED),
        "Unauthorized",
        "check that the token or client certificate in the kubeconfig is valid and has not expired (--federation-kub",
    ),
    Seed(
        a_rule_missing_on_the_hub,
        *("rights", "hub", FAILED),
        "may not delete propagationpolicies.policy.karmada.io",
        "apply deploy/roles/management-on-hub there, and bind compute-management-on-hub to ",
    ),
    Seed(
        a_role_missing_in_the_execution_space,
        *("rights", "hub", FAILED),
        "may not get, delete works.work.karmada.io; get, create, update leases.coordination.k8s.io",
        "apply deploy/roles/cell-on-hub-execution-space there, and bind compute-cell-on-hub-execution-space to "
        '"compute-local" in the namespace karmada-es-cell-dfw',
    ),
    Seed(
        claims_that_cannot_be_watched,
        *("rights", "project demo", WARNING),
        "may not list, watch resourceclaims.quota.miloapis.com",
        "apply deploy/roles/cell-on-project there, and bind compute-cell-on-project to ",
    ),
    Seed(
        management,
        *("kinds", "project demo", FAILED),
        "workloads.compute.datumapis.com is not served in version v1alpha",
        "apply deploy/crd/compute/compute.datumapis.com_workloads.yaml there",
        without_workloads,
    ),
    Seed(
        cell,
        *("kinds", "own cluster", FAILED),
        "the definition of instances.compute.datumapis.com is older than this program: it has no status.conditions",
        "apply deploy/crd/compute/compute.datumapis.com_instances.yaml there",
        with_an_older_instance,
    ),
    Seed(
        cell,
        *("kinds", "project demo", WARNING),
        "resourceclaims.quota.miloapis.com is not served in version v1alpha1",
        "install the service that defines quota.miloapis.com there, or switch off what needs it",
        without_claims,
    ),
    Seed(
        management,
        *("kinds", "hub", FAILED),
        "propagationpolicies.policy.karmada.io is not served in version v1alpha1, only v1beta1",
        "install Karmada there, or name the API server of Karmada as the hub",
        with_another_version_of_policies,
    ),
    Seed(
        a_cluster_without_city,
        *("clusters", "hub", FAILED),
        "cell-dfw without the label topology.datum.net/city-code, so nothing is sent there",
        "kubectl label cluster cell-dfw topology.datum.net/city-code=<city>, on the hub",
    ),
    Seed(
        two_clusters_of_one_city,
        *("clusters", "hub", WARNING),
        "cell-dfw-2 has the city DFW of cell-dfw, which serves it",
        "give cell-dfw-2 a city of its own, unless it is meant to stand by",
    ),
    Seed(
        a_cluster_that_is_not_ready,
        *("clusters", "hub", WARNING),
        "cell-ams is not Ready",
        "look at the conditions of Cluster cell-ams, and at Karmada's agent or push access to it",
    ),
    Seed(
        an_expired_webhook_certificate,
        *("webhook server", "", FAILED),
        "the certificate expired at ",
        "issue a new one, and put it into {directory}/webhook",
    ),
    Seed(
        a_webhook_certificate_for_another_name,
        *("webhook trust", "root", FAILED),
        f"compute calls {WEBHOOK_HOST}, and the certificate is for other.compute-system.svc",
        f"issue a certificate for {WEBHOOK_HOST}, or correct the registration's clientConfig",
    ),
    Seed(
        a_webhook_certificate_of_another_authority,
        *("webhook trust", "root", FAILED),
        f"compute calls {WEBHOOK_HOST} and refuses it: ",
        "put the authority that signed the certificate into caBundle of compute",
    ),
    Seed(
        an_own_certificate_for_another_service,
        *("webhook trust", "root", FAILED),
        f"compute calls {WEBHOOK_HOST}, and the certificate is for admission.compute-system.svc",
        f"issue a certificate for {WEBHOOK_HOST}, or correct the registration's clientConfig",
    ),
    Seed(
        an_own_certificate_that_a_registration_does_not_trust,
        *("webhook trust", "root", FAILED),
        f"compute calls {WEBHOOK_HOST} and refuses it: ",
        "put the authority that signed the certificate into caBundle of compute",
    ),
    Seed(
        no_webhook_certificate,
        *("webhook server", "", FAILED),
        "certificate file {directory}/webhook/tls.key cannot be read: No such file or directory",
        "provide certificate and key in {directory}/webhook",
    ),
    Seed(
        no_namespace_for_the_lease,
        *("lease", "own cluster", FAILED),
        "there is no namespace nowhere for the lease",
        "kubectl create namespace nowhere, or name another with --leader-elect-namespace",
    ),
    Seed(
        an_unknown_context,
        *("kubeconfig", "", FAILED),
        '--federation-kubeconfig: {directory}/hub.kubeconfig has no context "production"; it has hub',
        "name a context of that file with --federation-context",
    ),
    Seed(
        no_kubeconfig_for_the_hub,
        *("kubeconfig", "", FAILED),
        "--federation-kubeconfig: kubeconfig {directory}/absent cannot be read: No such file or directory",
        "correct the file, or let --federation-kubeconfig name another one",
    ),
    Seed(
        no_kubeconfig_for_a_project,
        *("projects", "project demo", FAILED),
        '{directory}/projects has no kubeconfig for project "demo", whose Instances run here',
        "put its kubeconfig there, as demo.yaml",
    ),
    Seed(
        a_kubeconfig_of_a_project_that_runs_programs,
        *("projects", "project demo", FAILED),
        "kubeconfig {directory}/projects/demo.yaml sends a local file as its token",
        "correct or replace {directory}/projects/demo.yaml",
    ),
    Seed(
        a_cell_name_that_another_cluster_holds,
        *("cell name", "hub", FAILED),
        "cell-dfw is held by the cluster whose namespace kube-system has uid another-cluster",
        "give one of the two another discovery.clusterName",
    ),
    Seed(
        a_cell_that_is_not_a_member,
        *("cell name", "hub", FAILED),
        "the hub has no namespace karmada-es-cell-sin: no Cluster there is called cell-sin",
        "join this cluster to Karmada under that name, or correct discovery.clusterName",
    ),
    Seed(
        a_misspelt_field,
        *("configuration", "", FAILED),
        "config file {directory}/management.yaml, line 8: webhooks is not known",
        "correct it; docs/operator.md describes every flag and field",
    ),
]


def test_there_are_enough_seeds() -> None:
    assert len(SEEDS) >= 12


@pytest.mark.parametrize(("seed_", "alter"), [pytest.param(seed, seed.alter, id=seed.id) for seed in SEEDS])
async def test_a_misconfiguration_is_found_with_the_next_step(seed_: Seed, surroundings: Surroundings) -> None:
    troubles = await surroundings.troubles(await seed_.spoil(surroundings))
    assert [(trouble.check, trouble.plane, trouble.result) for trouble in troubles] == [seed_.expected]
    names = {"{directory}": str(surroundings.directory), "{port}": str(surroundings.port)}
    for text, start in ((troubles[0].found, seed_.found), (troubles[0].advice, seed_.advice)):
        for name, value in names.items():
            start = start.replace(name, value)
        assert text.startswith(start), text
    assert surroundings.writes == []


@pytest.mark.parametrize("flags", ["management", "cell"])
async def test_an_installation_in_order_has_only_fine_findings(flags: str, surroundings: Surroundings) -> None:
    diagnoses = await surroundings.check(getattr(surroundings, flags)())
    assert [diagnosis for diagnosis in diagnoses if diagnosis.result is not Result.FINE or diagnosis.advice] == []
    planes = {
        "management": {"own cluster", "hub", "root", "project demo"},
        "cell": {"own cluster", "hub", "project demo"},
    }
    assert {diagnosis.plane for diagnosis in diagnoses} - {""} == planes[flags]
    assert surroundings.writes == [], "a check changes nothing"


async def test_an_own_certificate_is_compared_with_the_registrations(surroundings: Surroundings) -> None:
    flags = await own_certificate(surroundings)
    secret = await surroundings.client("root").get(SECRET, WEBHOOK_SECRET, NAMESPACE_NAME)
    surroundings.bundle = base64.b64decode(secret.data["ca.crt"])
    [found] = [each for each in await surroundings.check(flags) if each.check == "webhook trust"]
    assert (found.result, found.found) == (FINE, f"compute calls {WEBHOOK_HOST} and trusts it")
    await surroundings.client("root").delete(SECRET, WEBHOOK_SECRET, NAMESPACE_NAME)
    [found] = [each for each in await surroundings.check(flags) if each.check == "webhook trust"]
    sentence = (
        f"compute calls {WEBHOOK_HOST}, and its caBundle was not compared: Secret compute-system/{WEBHOOK_SECRET}"
    )
    assert found.result is FINE
    assert found.found.startswith(f"{sentence} cannot be read: ")


async def test_a_clock_that_differs_is_found_on_every_plane(surroundings: Surroundings) -> None:
    surroundings.late = timedelta(minutes=10)
    troubles = await surroundings.troubles(surroundings.cell())
    assert [(trouble.check, trouble.plane) for trouble in troubles] == [
        ("clock", plane) for plane in ("own cluster", "hub", "project demo")
    ]
    for trouble in troubles:
        assert trouble.result is FAILED
        assert re.fullmatch(r"the server's clock is \d+ s behind this machine's", trouble.found)
        assert trouble.advice == "synchronize the clocks of this machine and the server, for example by NTP"


async def test_everything_wrong_is_found_in_one_run(surroundings: Surroundings) -> None:
    surroundings.kubeconfig("hub", server="https://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        troubles = await surroundings.troubles(
            surroundings.management(
                kubeconfig="/absent", leader_elect_namespace="nowhere", health_probe_bind_address=address
            )
        )
    assert [(trouble.check, trouble.plane) for trouble in troubles] == [
        ("kubeconfig", ""),
        ("connection", "hub"),
        ("health server", ""),
    ]
    assert troubles[-1].advice == "end what listens there, or change --health-probe-bind-address"


async def test_addresses_have_to_be_in_use_where_the_process_runs(surroundings: Surroundings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as running:
        address = f"127.0.0.1:{running.getsockname()[1]}"
        flags = surroundings.management(health_probe_bind_address=address)
        found = await surroundings.check(flags, running=True)
    assert [(each.result, each.found) for each in found if each.check == "health server"] == [(FINE, "it listens")]
    found = await surroundings.check(flags, running=True)
    [trouble] = [each for each in found if each.check == "health server" and each.result is FAILED]
    assert trouble.found == "nobody listens on the address in --health-probe-bind-address"
    assert trouble.advice == "see the log of the process, or leave out --running where it does not run"


async def test_only_a_sample_of_many_projects_is_tried(surroundings: Surroundings) -> None:
    for number in range(command.SAMPLE + 1):
        labels = hub_labels(f"project-{number:02}", "default")
        surroundings.engine.serve(f"project-{number:02}", PROJECT)
        await surroundings.client(CELL_NAME).create(NAMESPACE, NAMESPACE.body(f"ns-of-{number}", labels=labels))
    diagnoses = await surroundings.check(surroundings.cell())
    tried = {diagnosis.plane for diagnosis in diagnoses if diagnosis.plane.startswith("project ")}
    assert len(tried) == command.SAMPLE
    (summary,) = (diagnosis for diagnosis in diagnoses if diagnosis.check == "projects")
    assert summary.found == f"this cell has {command.SAMPLE + 2}, of which {command.SAMPLE} were tried"


async def test_a_server_that_never_answers_is_not_waited_for(surroundings: Surroundings) -> None:
    silent = Scripted(say_nothing)
    async with silent.listening():
        surroundings.kubeconfig("hub", server=f"http://127.0.0.1:{silent.port}")
        diagnoses = await surroundings.check(surroundings.cell(), Patience(call_seconds=0.2))
    (hub,) = (diagnosis for diagnosis in diagnoses if diagnosis.plane == "hub")
    assert (hub.check, hub.result) == ("connection", FAILED)


def arguments(flags: Flags) -> list[str]:
    return [
        f"--{flag.name}={str(value).lower() if isinstance(value, bool) else value}"
        for flag in FLAGS
        if (value := getattr(flags, flag.field)) != flag.default
    ]


@pytest.fixture
def _logs_untouched() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("_logs_untouched")
async def test_the_exit_code_says_whether_anything_failed(
    surroundings: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the same flags as a start, with a table or JSON on standard output."""
    given = arguments(surroundings.cell())
    assert await asyncio.to_thread(process.start, ["check", *given], {}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["CHECK", "PLANE", "RESULT", "FOUND,", "AND", "WHAT", "TO", "DO"]
    assert re.fullmatch(r"0 failed, 0 warnings, \d+ fine\.", lines[-1])
    surroundings.denied = lambda path, review: review["verb"] == "watch" and review["resource"] == "namespaces"
    assert await asyncio.to_thread(process.start, ["check", *given, "-o", "json"], {}) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["counts"]["failed"] == 2
    assert {
        (diagnosis["check"], diagnosis["plane"])
        for diagnosis in content["diagnoses"]
        if diagnosis["result"] == "failed"
    } == {
        ("rights", "own cluster"),
        ("rights", "hub"),
    }
    assert set(content["diagnoses"][0]) == {"check", "plane", "result", "found", "advice"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--nonsense"], "compute-manager: unrecognized arguments: --nonsense; see compute-manager check --help"),
        ([], "compute-manager: --server-config is required: name the config file; see compute-manager check --help"),
        (["-o", "yaml"], "compute-manager: -o/--output: invalid choice"),
    ],
)
def test_a_bad_command_line_is_misuse(given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert process.start(["check", *given], {}) == 2
    assert capsys.readouterr().err.startswith(sentence)
