"""Every overlay renders, and what it says fits together: processes, accounts, roles, ports, volumes and webhooks."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest

from datum_compute import __version__
from datum_compute.admission.webhook import MUTATE, OF_PROJECT, VALIDATE, VALIDATE_DEPLOYMENT
from datum_compute.api.accounts import CELL, MANAGEMENT, NAMESPACE, cell_account
from datum_compute.api.crd import ROLES
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY
from datum_compute.api.networking import NETWORK_BINDING, NETWORK_CONTEXT, SUBNET, SUBNET_CLAIM
from datum_compute.api.permissions import PERMISSIONS, On, When, Who
from datum_compute.api.quota import RESOURCE_REGISTRATION
from datum_compute.api.roles import features, role_name
from datum_compute.kube.meta import Json
from datum_compute.operator.config import MILO, SINGLE
from datum_compute.operator.settings import ENTITLEMENT, LOCATIONS, NETWORK, PODS, QUOTA, Settings
from tests.deploy.rendered import DEPLOY, EXAMPLES, OVERLAYS, Manifests, rendered

CELLS = ("pop-dfw", "pop-ord")

# Optional components, with an overlay that each is for.
VARIANTS = (
    ("overlays/management", "cert-manager"),
    ("overlays/single-cluster", "cert-manager"),
    ("overlays/development", "cert-manager"),
    ("overlays/management-milo", "cert-manager"),
    ("example/demo", "cert-manager-injection"),
    ("overlays/management", "webhook-client-ca"),
    ("overlays/single-cluster", "webhook-client-ca"),
    ("overlays/management", "management-networking"),
    ("overlays/project", "project-networking"),
    ("overlays/cell", "cell-networking"),
    ("overlays/cell", "cell-network-builtin"),
    ("overlays/milo", "quota"),
    ("overlays/single-cluster", "deployment-webhook"),
    ("overlays/milo", "deployment-webhook"),
)

ALL = [(folder,) for folder in (*OVERLAYS, *EXAMPLES)] + list(VARIANTS)
WITH_PROCESS = [
    case
    for case in ALL
    if not case[0].endswith(("/hub", "/milo", "/project", "/demo"))
    and "/hub/" not in case[0]
    and "/demo/" not in case[0]
]


def case_name(case: tuple[str, ...]) -> str:
    return "+".join(case)


every = pytest.mark.parametrize("case", ALL, ids=case_name)
every_process = pytest.mark.parametrize("case", WITH_PROCESS, ids=case_name)


README = (DEPLOY / "README.md").read_text("utf-8")


def test_the_readme_lists_overlays_components_and_secrets() -> None:
    rows = [line.split("|") for line in README.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row[1])}
    folders = {path.name for kind in ("overlays", "components") for path in (DEPLOY / kind).iterdir() if path.is_dir()}
    secrets = {
        volume["secret"]["secretName"]
        for case in WITH_PROCESS
        for volume in rendered(*case).pod["volumes"]
        if "secret" in volume
    }
    # Parts of overlays, which nobody adds by hand.
    parts = {"service-catalog", "iam", "single-cluster", "webhook-server"}
    credentials = {name for name in folders if name.endswith("-credentials")}
    assert listed == (folders | secrets) - parts - credentials | {"single-cluster"}


@every
def test_an_overlay_renders_into_objects_with_names_of_their_own(case: tuple[str, ...]) -> None:
    ids = Counter(
        (
            body["apiVersion"].partition("/")[0],
            body["kind"],
            body["metadata"].get("namespace"),
            body["metadata"]["name"],
        )
        for body in rendered(*case).objects
    )
    assert [found for found, number in ids.items() if number > 1] == []
    assert not [name for *_, name in ids if name.endswith(("CELL", "PROJECT"))]


@every
def test_everything_lives_in_the_namespace_of_compute(case: tuple[str, ...]) -> None:
    namespaces = {body["metadata"]["namespace"] for body in rendered(*case).objects if "namespace" in body["metadata"]}
    assert namespaces <= {NAMESPACE, *(f"karmada-es-{cell}" for cell in CELLS)}


# Processes


@every_process
def test_the_process_would_start_with_its_flags_and_config(case: tuple[str, ...]) -> None:
    manifests = rendered(*case)
    settings = manifests.settings
    assert manifests.flags.server_config == "/config/config.yaml"
    assert (manifests.deployment or {})["spec"]["replicas"] == (2 if settings.leader_elect else 1)
    assert settings.leader_elect or "development" in case[0]


@every_process
def test_every_file_that_the_process_reads_is_mounted(case: tuple[str, ...]) -> None:
    manifests = rendered(*case)
    mounts = {mount["name"]: mount["mountPath"] for mount in manifests.container["volumeMounts"]}
    assert {volume["name"] for volume in manifests.pod["volumes"]} == set(mounts)
    discovery = manifests.config.discovery
    files = [
        manifests.flags.server_config,
        manifests.flags.federation_kubeconfig,
        manifests.flags.webhook_client_ca,
        discovery.discovery_kubeconfig_path,
        discovery.project_kubeconfig_path,
        discovery.quota_kubeconfig_path,
        f"{discovery.kubeconfig_dir}/any" if discovery.kubeconfig_dir else "",
    ]
    folders = {str(PurePosixPath(path).parent) for path in files if path}
    certificates = {"/tmp/k8s-webhook-server/serving-certs"} if "cert-manager" in case else set()
    assert set(mounts.values()) == folders | certificates
    assert all(mount["readOnly"] for mount in manifests.container["volumeMounts"])


@every_process
def test_the_process_is_confined(case: tuple[str, ...]) -> None:
    manifests = rendered(*case)
    assert manifests.pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert manifests.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    labels = manifests.find("Namespace", NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert set(manifests.container["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in manifests.container["resources"]["limits"]


@every_process
def test_the_image_is_that_of_this_version(case: tuple[str, ...]) -> None:
    assert rendered(*case).container["image"] == f"compute-manager:{__version__}"


def ports(manifests: Manifests) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in manifests.container["ports"]}


@every_process
def test_ports_are_those_that_the_process_listens_on(case: tuple[str, ...]) -> None:
    manifests = rendered(*case)
    settings, webhook = manifests.settings, manifests.config.webhook_server
    assert settings.health is not None
    assert settings.metrics is not None
    expected = {"probes": settings.health.port, "metrics": settings.metrics.port}
    assert ports(manifests) == expected | ({"webhook": webhook.port} if webhook is not None else {})


@every_process
def test_probes_ask_for_liveness_and_readiness(case: tuple[str, ...]) -> None:
    container = rendered(*case).container
    probes = {name: container[f"{name}Probe"] for name in ("liveness", "readiness")}
    assert {name: probe["httpGet"] for name, probe in probes.items()} == {
        "liveness": {"path": "/healthz", "port": "probes"},
        "readiness": {"path": "/readyz", "port": "probes"},
    }
    delays = {name: (probe["initialDelaySeconds"], probe["periodSeconds"]) for name, probe in probes.items()}
    assert delays == {"liveness": (15, 20), "readiness": (5, 10)}


@every_process
def test_services_policies_and_budgets_select_the_pods(case: tuple[str, ...]) -> None:
    manifests = rendered(*case)
    labels = (manifests.deployment or {})["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        (manifests.deployment or {})["spec"]["selector"]["matchLabels"],
        *(body["spec"]["selector"] for body in manifests.of("Service") if "selector" in body["spec"]),
        *(body["spec"]["podSelector"]["matchLabels"] for body in manifests.of("NetworkPolicy")),
        *(body["spec"]["selector"]["matchLabels"] for body in manifests.of("PodDisruptionBudget")),
        *(spread["labelSelector"]["matchLabels"] for spread in manifests.pod["topologySpreadConstraints"]),
    ]
    assert all(selector.items() <= labels for selector in selectors)
    budgets = [body["spec"]["minAvailable"] for body in manifests.of("PodDisruptionBudget")]
    assert budgets == ([1] if (manifests.deployment or {})["spec"]["replicas"] > 1 else [])


@every_process
def test_services_and_network_policies_name_ports_of_the_process(case: tuple[str, ...]) -> None:
    manifests = rendered(*case)
    reached = {port["targetPort"] for body in manifests.of("Service") for port in body["spec"].get("ports", ())}
    admitted = {
        port["port"]
        for body in manifests.of("NetworkPolicy")
        for rule in body["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert reached == set(ports(manifests)) - {"probes"}
    assert admitted == set(ports(manifests))


# Accounts and roles


def switched_on(settings: Settings) -> set[When]:
    """The features whose permissions a process with these settings uses."""
    webhook = settings.config.webhook_server
    issued = webhook.tls.self_signed if webhook is not None else None
    conditions = {
        When.ALWAYS: settings.management or settings.cell or settings.projects,
        When.LEADER_ELECTION: settings.leader_elect,
        When.SECURE_METRICS: settings.metrics is not None and settings.config.metrics_server.secure_serving,
        When.WEBHOOK: webhook is not None,
        When.WEBHOOK_CERTIFICATE: issued is not None,
        When.WEBHOOK_AUTHORITY: issued is not None and bool(issued.mutating_webhooks or issued.validating_webhooks),
        When.MILO_DISCOVERY: settings.projects and settings.config.discovery.mode == MILO,
        When.NETWORKING: settings.networking,
        When.PODS: settings.provider == PODS,
        When.ABANDONED_CLAIMS: settings.cell and bool(settings.abandon_claims_after),
        When.EXECUTION_SPACE: settings.cell,
        When.ENTITLEMENT: ENTITLEMENT in settings.builtins,
        When.QUOTA: QUOTA in settings.builtins,
        When.LOCATIONS: LOCATIONS in settings.builtins,
        When.NETWORK: NETWORK in settings.builtins,
    }
    return {when for when, is_on in conditions.items() if is_on}


def needed(settings: Settings, who: Who, on: On) -> set[str]:
    return {role_name(who, on, when) for when in features(who, on) if when in switched_on(settings)}


def roles_of(manifests: Manifests, account: str) -> list[str]:
    return sorted(role for bound, role in manifests.bindings() if bound == account)


@every
def test_every_role_is_bound_once_and_every_binding_has_its_role_and_account(case: tuple[str, ...]) -> None:
    manifests = rendered(*case)
    bindings = list(manifests.bindings())
    assert [found for found, number in Counter(bindings).items() if number > 1] == []
    of_planes = rendered(case[0].rpartition("/")[0]) if "/hub/" in case[0] or "/demo/" in case[0] else manifests
    roles = {body["metadata"]["name"] for body in (*manifests.of("Role", "ClusterRole"), *of_planes.of("ClusterRole"))}
    roles = {name for name in roles if name.startswith("compute-")}
    assert {role for _, role in bindings} <= roles
    accounts = {body["metadata"]["name"] for body in manifests.of("ServiceAccount")}
    assert {account for account, _ in bindings} == accounts
    bound_elsewhere = {"compute-cell-on-hub", "compute-cell-on-project", "compute-user-on-project"}
    assert {body["metadata"]["name"] for body in manifests.of("Role", "ClusterRole")} - {
        role for _, role in bindings
    } <= {*bound_elsewhere, *(f"compute.datumapis.com-{role}" for role in ("viewer", "admin"))}


# The process, the plane that it works on, and what that plane is for it.
PLANES: tuple[tuple[tuple[str, ...], tuple[str, ...], str, tuple[tuple[Who, On], ...]], ...] = (
    (("overlays/management",), ("overlays/management",), MANAGEMENT, ((Who.MANAGEMENT, On.HOST),)),
    (("overlays/management",), ("overlays/project",), MANAGEMENT, ((Who.MANAGEMENT, On.PROJECT),)),
    (("overlays/management",), ("overlays/hub",), MANAGEMENT, ((Who.MANAGEMENT, On.HUB),)),
    (
        ("overlays/management", "management-networking"),
        ("overlays/project", "project-networking"),
        MANAGEMENT,
        ((Who.MANAGEMENT, On.PROJECT),),
    ),
    (("overlays/management-milo",), ("overlays/management-milo",), MANAGEMENT, ((Who.MANAGEMENT, On.HOST),)),
    *(
        ((overlay, "cert-manager"), (overlay, "cert-manager"), MANAGEMENT, ((Who.MANAGEMENT, On.HOST),))
        for overlay in ("overlays/management", "overlays/management-milo")
    ),
    (
        ("overlays/management-milo",),
        ("overlays/milo",),
        MANAGEMENT,
        ((Who.MANAGEMENT, On.ROOT), (Who.MANAGEMENT, On.PROJECT)),
    ),
    (("overlays/cell",), ("overlays/cell",), CELL, ((Who.CELL, On.CELL),)),
    (("overlays/cell-milo",), ("overlays/cell-milo",), CELL, ((Who.CELL, On.CELL),)),
    (("overlays/cell", "cell-networking"), ("overlays/cell", "cell-networking"), CELL, ((Who.CELL, On.CELL),)),
    (
        ("overlays/cell", "cell-network-builtin"),
        ("overlays/cell", "cell-network-builtin"),
        CELL,
        ((Who.CELL, On.CELL),),
    ),
    *(
        ((f"example/{cell}",), (f"example/{plane}/{cell}",), cell_account(cell), ((Who.CELL, on),))
        for cell in CELLS
        for plane, on in (("hub", On.HUB), ("demo", On.PROJECT))
    ),
)


@pytest.mark.parametrize(("process", "plane", "account", "identities"), PLANES)
def test_an_account_has_the_roles_that_its_process_needs_and_no_others(
    process: tuple[str, ...], plane: tuple[str, ...], account: str, identities: tuple[tuple[Who, On], ...]
) -> None:
    settings = rendered(*process).settings
    expected = {role for who, on in identities for role in needed(settings, who, on)}
    assert roles_of(rendered(*plane), account) == sorted(expected)


def test_one_process_that_is_management_and_cell_has_the_roles_of_both() -> None:
    manifests = rendered("overlays/single-cluster")
    expected = {
        role
        for who, on in PERMISSIONS
        if who not in (Who.USER, Who.VIEWER) and on in (On.HOST, On.PROJECT, On.CELL)
        for role in needed(manifests.settings, who, on)
    }
    # One lease and one server of metrics, under the roles of management; a Location is published for networks only.
    expected -= {
        role_name(Who.CELL, On.CELL, when) for when in (When.LEADER_ELECTION, When.SECURE_METRICS, When.LOCATIONS)
    }
    assert roles_of(manifests, MANAGEMENT) == sorted(expected)


def test_admission_alone_needs_neither_lease_nor_controllers() -> None:
    manifests = rendered("overlays/development")
    assert roles_of(manifests, MANAGEMENT) == [
        "compute-management-on-host-secure-metrics",
        "compute-management-on-host-webhook-authority",
        "compute-management-on-host-webhook-certificate",
        "compute-management-on-project",
        "compute-management-on-project-webhook",
    ]
    assert not manifests.settings.management
    assert manifests.config.discovery.mode == SINGLE


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_has_the_name_of_its_accounts(cell: str) -> None:
    assert rendered(f"example/{cell}").settings.cluster_name == cell
    hub = rendered(f"example/hub/{cell}")
    assert [body["metadata"]["name"] for body in hub.of("ServiceAccount")] == [cell_account(cell)]
    assert {body["metadata"]["namespace"] for body in hub.of("Role", "RoleBinding")} == {f"karmada-es-{cell}"}


# Kinds and webhooks


def definitions(manifests: Manifests) -> set[str]:
    return {body["metadata"]["name"] for body in manifests.of("CustomResourceDefinition")}


def test_planes_get_the_kinds_that_they_serve() -> None:
    karmada = {kind.resource for kind in (PROPAGATION_POLICY, CLUSTER)}
    networks = {kind.resource for kind in (NETWORK_BINDING, NETWORK_CONTEXT, SUBNET, SUBNET_CLAIM)}
    served = {role: {kind.resource for kind in kinds} for role, kinds in ROLES.items()}
    assert definitions(rendered("overlays/project")) == served["project"]
    assert definitions(rendered("overlays/hub")) >= served["hub"] - karmada
    assert definitions(rendered("overlays/cell", "cell-network-builtin")) >= served["cell"]
    assert definitions(rendered("overlays/single-cluster")) == (served["project"] | served["cell"]) - networks
    assert RESOURCE_REGISTRATION.resource not in definitions(rendered("overlays/milo"))


def webhooks(manifests: Manifests) -> Iterator[tuple[str, Json]]:
    for body in manifests.of("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in body["webhooks"]:
            yield body["metadata"]["name"], webhook


@pytest.mark.parametrize(
    ("case", "suffix"),
    [
        (("overlays/milo",), ""),
        (("overlays/single-cluster",), ""),
        (("overlays/development",), ""),
        (("example/demo",), f"{OF_PROJECT}demo"),
    ],
)
def test_workloads_are_sent_to_the_service_of_the_webhook(case: tuple[str, ...], suffix: str) -> None:
    found = dict(webhooks(rendered(*case)))
    assert {name: webhook["clientConfig"]["service"]["path"] for name, webhook in found.items()} == {
        "compute-mutating-webhook-configuration": f"{MUTATE}{suffix}",
        "compute-validating-webhook-configuration": f"{VALIDATE}{suffix}",
    }
    service = rendered("overlays/management").find("Service", "webhook-service")
    for webhook in found.values():
        reached = webhook["clientConfig"]["service"]
        assert (reached["name"], reached["namespace"]) == (service["metadata"]["name"], NAMESPACE)
        assert reached["port"] in [port["port"] for port in service["spec"]["ports"]]
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["rules"] == [
            {
                "apiGroups": ["compute.datumapis.com"],
                "apiVersions": ["v1alpha"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["workloads"],
            }
        ]


def test_servers_without_policies_can_have_deployments_checked_by_the_webhook() -> None:
    paths = [
        webhook["clientConfig"]["service"]["path"]
        for _, webhook in webhooks(rendered("overlays/single-cluster", "deployment-webhook"))
    ]
    assert paths == [MUTATE, VALIDATE, VALIDATE_DEPLOYMENT]


def test_the_process_issues_a_certificate_for_the_service_and_the_registrations() -> None:
    manifests = rendered("overlays/single-cluster")
    webhook = manifests.config.webhook_server
    assert webhook is not None
    assert webhook.tls.self_signed is not None
    manifests.find("Service", webhook.tls.self_signed.service_name)
    registered = {name for name, _ in webhooks(manifests)}
    assert registered == {*webhook.tls.self_signed.mutating_webhooks, *webhook.tls.self_signed.validating_webhooks}


def test_operators_get_days_to_give_registrations_on_another_api_server_a_new_authority() -> None:
    webhook = rendered("overlays/management-milo").config.webhook_server
    assert webhook is not None
    assert webhook.tls.self_signed is not None
    assert not webhook.tls.self_signed.mutating_webhooks
    assert not webhook.tls.self_signed.validating_webhooks
    assert webhook.tls.self_signed.overlap_seconds >= 7 * 24 * 3600


@pytest.mark.parametrize(
    "cases",
    [
        [("overlays/single-cluster", "cert-manager")],
        [("overlays/development", "cert-manager")],
        [("overlays/management", "cert-manager"), ("example/demo", "cert-manager-injection")],
    ],
)
def test_cert_manager_issues_for_the_service_and_every_registration_trusts_it(cases: list[tuple[str, ...]]) -> None:
    process = rendered(*cases[0])
    [certificate] = process.of("Certificate")
    assert certificate["spec"]["dnsNames"][0] == f"webhook-service.{NAMESPACE}.svc"
    [mounted] = [volume["secret"] for volume in process.pod["volumes"] if volume["name"] == "webhook-cert"]
    assert mounted == {"secretName": certificate["spec"]["secretName"]}
    injected = {
        body["kind"]: annotations["cert-manager.io/inject-ca-from"]
        for case in cases
        for body in rendered(*case).objects
        if "cert-manager.io/inject-ca-from" in (annotations := body["metadata"].get("annotations", {}))
    }
    source = f"{NAMESPACE}/{certificate['metadata']['name']}"
    assert injected == {"MutatingWebhookConfiguration": source, "ValidatingWebhookConfiguration": source}


def test_cert_manager_leaves_other_annotations_of_a_registration() -> None:
    parent = DEPLOY.parent / "build"
    parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=parent, prefix="render-") as path:
        kustomization = "resources: [../../deploy/overlays/single-cluster]\ncommonAnnotations: {team: edge}\n"
        (Path(path) / "kustomization.yaml").write_text(kustomization, "utf-8")
        manifests = rendered(f"../build/{Path(path).name}", "cert-manager")
    for body in manifests.of("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert set(body["metadata"]["annotations"]) == {"team", "cert-manager.io/inject-ca-from"}


@pytest.mark.parametrize("overlay", ["management", "management-milo", "single-cluster", "development"])
def test_admission_can_be_limited_to_known_api_servers(overlay: str) -> None:
    case = f"overlays/{overlay}"
    assert rendered(case).settings.webhook_client_ca == ""
    assert rendered(case, "webhook-client-ca").settings.webhook_client_ca == "/etc/compute/webhook-clients/ca.crt"


def test_karmada_leaves_the_namespace_of_compute_alone() -> None:
    namespace = rendered("overlays/hub").find("Namespace", NAMESPACE)
    assert namespace["metadata"]["labels"]["namespace.karmada.io/skip-auto-propagation"] == "true"


def test_a_cluster_that_is_project_and_cell_lets_karmada_write_in_the_namespaces_of_the_cell() -> None:
    binding = rendered("overlays/single-cluster").find(
        "ValidatingAdmissionPolicyBinding", "compute-deployments-on-project"
    )
    [expression] = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert expression == {"key": "meta.datumapis.com/upstream-cluster-name", "operator": "DoesNotExist"}
