"""Karmada on the hub: its kinds, its processes, and the cells as its members. Entry points: `LISTENERS`, `prepare`,
`aggregated_server`, `webhook`, `controllers`, `scheduler`, `register`, `join`, `joined`.

Karmada's definitions and webhook configurations are read from its module, the same that its programs are built from.
"""

import base64
from pathlib import Path

from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.kube.meta import Json
from engine.api import Api, condition
from engine.planes import REPOSITORY, documents, install_definitions
from engine.settings import HUB_PLANE, Plane
from engine.site import HOST, Process, Site

_SYSTEM = "karmada-system"
_MEMBERS = "karmada-cluster"
_SERVER = "karmada-aggregated-apiserver"
_WEBHOOK = "karmada-webhook"
_CONTROLLERS = "karmada-controller-manager"
_SCHEDULER = "karmada-scheduler"

LISTENERS = (_SERVER, _WEBHOOK, _CONTROLLERS, _SCHEDULER)

# Enough that the limits of Karmada's clients are never what a test measures.
_RATES = ("--kube-api-qps=400", "--kube-api-burst=800")

_YEAR = 365 * 24 * 3600


def aggregated_server(site: Site) -> Process:
    """Serves Cluster, which it keeps beside the objects of the hub. It needs the hub's API server to start."""
    hub = next(plane for plane in site.settings.planes if plane.name == HUB_PLANE)
    kubeconfig = site.kubeconfig(HUB_PLANE)
    arguments = (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={HOST}",
        f"--secure-port={site.port(_SERVER)}",
        *site.serving(),
        *site.etcd(hub.store, "karmada"),
        *_RATES,
    )
    return Process(_SERVER, _SERVER, arguments, f"{site.url(_SERVER)}/readyz")


def webhook(site: Site) -> Process:
    """Required, because it stamps the ids of policies by which the controllers find what they claimed."""
    arguments = (
        f"--kubeconfig={site.kubeconfig(HUB_PLANE)}",
        f"--bind-address={HOST}",
        f"--secure-port={site.port(_WEBHOOK)}",
        f"--cert-dir={site.certificates.folder}",
        "--tls-cert-file-name=server.crt",
        "--tls-private-key-file-name=server.key",
        "--health-probe-bind-address=0",
        "--metrics-bind-address=0",
        *_RATES,
    )
    return Process(_WEBHOOK, _WEBHOOK, arguments, f"{site.url(_WEBHOOK)}/readyz/")


def controllers(site: Site) -> Process:
    arguments = (
        f"--kubeconfig={site.kubeconfig(HUB_PLANE)}",
        "--leader-elect=false",
        "--cluster-status-update-frequency=10s",
        f"--health-probe-bind-address={site.address(_CONTROLLERS)}",
        "--metrics-bind-address=0",
        "--cluster-api-qps=400",
        "--cluster-api-burst=800",
        *_RATES,
    )
    return Process(_CONTROLLERS, _CONTROLLERS, arguments, f"http://{site.address(_CONTROLLERS)}/healthz")


def scheduler(site: Site) -> Process:
    arguments = (
        f"--kubeconfig={site.kubeconfig(HUB_PLANE)}",
        "--leader-elect=false",
        "--enable-scheduler-estimator=false",
        f"--health-probe-bind-address={site.address(_SCHEDULER)}",
        "--metrics-bind-address=0",
        *_RATES,
    )
    return Process(_SCHEDULER, _SCHEDULER, arguments, f"http://{site.address(_SCHEDULER)}/healthz")


def prepare(site: Site, hub: Api, sources: Path) -> None:
    """Creates what Karmada's processes need at start: its namespaces and kinds."""
    for namespace in (_SYSTEM, _MEMBERS):
        hub.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    install_definitions(hub, definitions(sources, site.url(_WEBHOOK), site.authority))


def register(site: Site, hub: Api, sources: Path) -> None:
    """Makes the hub call Karmada's own API server and webhook, which must be ready."""
    hub.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _SERVER, "namespace": _SYSTEM},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
    )
    hub.apply(
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1alpha1.cluster.karmada.io"},
            "spec": {
                "group": "cluster.karmada.io",
                "version": "v1alpha1",
                "groupPriorityMinimum": 2000,
                "versionPriority": 10,
                "caBundle": site.authority,
                "service": {"name": _SERVER, "namespace": _SYSTEM, "port": site.port(_SERVER)},
            },
        }
    )
    for configuration in webhook_configurations(sources, site.url(_WEBHOOK), site.authority):
        hub.apply(configuration)


def registered(hub: Api) -> bool:
    found = hub.get("apiregistration.k8s.io/v1", "APIService", "v1alpha1.cluster.karmada.io")
    return condition(found, "Available") == "True"


def interpreter() -> Json:
    """Deploys the interpreter by which Karmada returns the status of our kind, as on every hub."""
    file = REPOSITORY / "deploy" / "hub" / "workloaddeployment-interpreter.yaml"
    [found] = documents(file.read_text("utf-8"))
    return found


def join(site: Site, hub: Api, member: Api, cell: Plane) -> None:
    """Makes a cell a member by creating objects alone."""
    for body in _accounts(cell):
        member.apply(body)
    names = {"secretRef": cell.name, "impersonatorSecretRef": f"{cell.name}-impersonator"}
    for secret, account in zip(names.values(), _account_names(cell), strict=True):
        _ensure_token(site, hub, member, secret, account)
    references = {key: {"namespace": _MEMBERS, "name": name} for key, name in names.items()}
    hub.apply(
        {
            "apiVersion": "cluster.karmada.io/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": cell.name, "labels": {TOPOLOGY_CITY: cell.city} if cell.city else {}},
            "spec": {"syncMode": "Push", "apiEndpoint": site.url(cell.server), **references},
        }
    )


def joined(hub: Api, cell: Plane) -> bool:
    return condition(hub.get("cluster.karmada.io/v1alpha1", "Cluster", cell.name), "Ready") == "True"


def definitions(sources: Path, webhook_url: str, authority: str) -> list[Json]:
    """Karmada's definitions with their patches, as its kustomization puts them together."""
    folder = sources / "charts" / "karmada" / "_crds"
    [kustomization] = documents((folder / "kustomization.yaml").read_text("utf-8"))
    found = {}
    for file in kustomization["resources"]:
        [definition] = documents((folder / file).read_text("utf-8"))
        found[definition["metadata"]["name"]] = definition
    for entry in kustomization["patches"]:
        text = (folder / entry["path"]).read_text("utf-8")
        text = text.replace("https://{{name}}.{{namespace}}.svc:443", webhook_url).replace("{{caBundle}}", authority)
        [patch] = documents(text)
        name = patch["metadata"]["name"]
        found[name] = _merged(found[name], patch)
    return list(found.values())


def webhook_configurations(sources: Path, webhook_url: str, authority: str) -> list[Json]:
    text = (sources / "artifacts" / "deploy" / "webhook-configuration.yaml").read_text("utf-8")
    text = text.replace(f"https://{_WEBHOOK}.{_SYSTEM}.svc:443", webhook_url).replace("{{caBundle}}", authority)
    return documents(text)


def _account_names(cell: Plane) -> tuple[str, str]:
    return f"karmada-{cell.name}", "karmada-impersonator"


def _accounts(cell: Plane) -> list[Json]:
    """The accounts in the member that Karmada acts as, and that may impersonate others."""
    account, impersonator = _account_names(cell)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _MEMBERS}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": _MEMBERS}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": impersonator, "namespace": _MEMBERS}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": account},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": _MEMBERS}],
        },
    ]


def _ensure_token(site: Site, hub: Api, member: Api, secret: str, account: str) -> None:
    """Only once: a new token would make Karmada build all its clients again."""
    if hub.find("v1", "Secret", secret, _MEMBERS) is not None:
        return
    token = member.token(account, _MEMBERS, seconds=10 * _YEAR)
    data = {"token": base64.b64encode(token.encode()).decode(), "caBundle": site.authority}
    metadata = {"name": secret, "namespace": _MEMBERS}
    hub.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def _merged(base: Json, patch: Json) -> Json:
    """Maps are merged, everything else is replaced."""
    result = dict(base)
    for key, value in patch.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
