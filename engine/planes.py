"""Planes made of etcd, kube-apiserver and kube-controller-manager. Entry points: `listeners`, `store_listeners`,
`etcd`, `api_server`, `controllers`, `egress`, `install_kinds`.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

from datum_compute.api import GROUP
from datum_compute.api.crd import by_role
from datum_compute.federation.roles import HUB
from datum_compute.kube.meta import Json
from engine.api import Api, condition, until
from engine.certificates import FRONT_PROXY
from engine.settings import Plane
from engine.site import HOST, Process, Site

REPOSITORY = Path(__file__).parent.parent


# Without these nothing is garbage-collected, namespaces never finish deleting, and no aggregated role has rules.
_CONTROLLERS = (
    "namespace-controller",
    "garbage-collector-controller",
    "clusterrole-aggregation-controller",
    "serviceaccount-token-controller",
)


def store_listeners(store: str) -> tuple[str, str]:
    return store, f"{store}-peer"


def listeners(plane: Plane) -> tuple[str, str]:
    return plane.server, f"{plane.name}-controllers"


def etcd(site: Site, store: str) -> Process:
    """Only holders of our certificates may read it, because it holds every secret of its planes."""
    pki = site.certificates
    certificate, key, authority = pki.certificate("server"), pki.key("server"), pki.authority
    client, peer = map(site.url, store_listeners(store))
    arguments = (
        "--name=engine",
        f"--data-dir={site.folder.store(store)}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=engine={peer}",
        f"--cert-file={certificate}",
        f"--key-file={key}",
        "--client-cert-auth",
        f"--trusted-ca-file={authority}",
        f"--peer-cert-file={certificate}",
        f"--peer-key-file={key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={authority}",
        "--unsafe-no-fsync",  # nothing here has to survive the machine, and everything is faster
        "--log-level=warn",
    )
    return Process(store, "etcd", arguments, f"{client}/readyz")


def api_server(site: Site, plane: Plane) -> Process:
    pki = site.certificates
    arguments = (
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        f"--secure-port={site.port(plane.server)}",
        *site.serving(),
        *site.etcd(plane.store, plane.name),
        *site.services(plane),
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=StorageObjectInUseProtection,ServiceAccount",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--client-ca-file={pki.authority}",
        f"--service-account-issuer=https://{plane.name}.engine",
        f"--service-account-key-file={pki.service_account_public}",
        f"--service-account-signing-key-file={pki.service_account_private}",
        f"--requestheader-client-ca-file={pki.authority}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki.certificate(FRONT_PROXY)}",
        f"--proxy-client-key-file={pki.key(FRONT_PROXY)}",
    )
    return Process(plane.server, "kube-apiserver", arguments, f"{site.url(plane.server)}/readyz")


def controllers(site: Site, plane: Plane) -> Process:
    _, name = listeners(plane)
    arguments = (
        f"--kubeconfig={site.kubeconfig(plane.name)}",
        f"--bind-address={HOST}",
        f"--secure-port={site.port(name)}",
        *site.serving(),
        f"--controllers={','.join(_CONTROLLERS)}",
        "--leader-elect=false",
        f"--root-ca-file={site.certificates.authority}",
        f"--service-account-private-key-file={site.certificates.service_account_private}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )
    return Process(name, "kube-controller-manager", arguments, f"{site.url(name)}/healthz")


def egress(socket: Path) -> str:
    """The configuration by which an API server sends what it has for Services through a socket, by HTTP CONNECT."""
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(socket)}}}
    return yaml.safe_dump(
        {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        }
    )


def install_kinds(api: Api, plane: Plane) -> None:
    """The compute kinds everywhere; projects and cells also get those of Milo and the network operator."""
    install_definitions(api, [*_ours(), *(_of_others(plane.role) if plane.role != HUB else ())])


def install_definitions(api: Api, definitions: Sequence[Json]) -> None:
    """Applies them all, then waits until all are served."""
    for definition in definitions:
        api.apply(definition)
    for definition in definitions:
        name = definition["metadata"]["name"]
        until(f"{name} being served by {api.plane}", lambda name=name: _established(api, name))  # type: ignore[misc]


def documents(text: str) -> list[Json]:
    """The objects of a YAML text; by the fast parser, because Karmada's take the slow one seconds."""
    found = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [body for body in found if body]


def _established(api: Api, name: str) -> bool:
    found = api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", name)
    return condition(found, "Established") == "True"


def _ours() -> list[Json]:
    files = sorted((REPOSITORY / "deploy" / "crd" / "compute").glob(f"{GROUP}_*.yaml"))
    return [body for file in files for body in documents(file.read_text("utf-8"))]


def _of_others(role: str) -> list[Json]:
    ours = {definition["metadata"]["name"] for definition in _ours()}
    return [definition for definition in by_role(role) if definition["metadata"]["name"] not in ours]
