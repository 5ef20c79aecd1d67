"""A kube-apiserver, and two replicas of compute-manager behind a balancer that it calls for admission.

Entry point: `Installation`. The replicas run under the generated roles and issue their certificate themselves.
"""

import base64
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from msgspec.structs import replace

from datum_compute.api.accounts import NAMESPACE
from datum_compute.api.crd import by_role
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.permissions import VALIDATING_WEBHOOKS, WEBHOOK_SECRET, WEBHOOK_SERVICE, On, When, Who
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.access.kubeconfig import write_kubeconfig
from datum_compute.kube.meta import Json
from datum_compute.operator.certificates import SECRET
from datum_compute.operator.issuer import MADE_HERE, VALID_DAYS, VALIDATING, data_of, new_certificate
from datum_compute.operator.rotation import RENEWED_AFTER, Contents
from engine.api import Api
from engine.identities import Identity, admit
from engine.planes import REPOSITORY, documents, install_definitions
from tests.balancer import Balancer
from tests.clients.real import RealServer
from tests.conformance.server import Reply, Server
from tests.operator.processes import Manager, until
from tests.scenarios.federation import placement, template

CITY = "DFW"
HOST = "127.0.0.1"
OVERLAP_SECONDS = 6
_SWITCHES = (When.WEBHOOK, When.WEBHOOK_CERTIFICATE, When.WEBHOOK_AUTHORITY)
_WORKLOADS = WORKLOAD.path("default")


class Installation:
    """`due_seconds` is the time until the certificate has to be renewed."""

    def __init__(self, folder: Path, due_seconds: float) -> None:
        self._due_seconds = due_seconds
        self._closing: list[Callable[[], None]] = []
        try:
            self._start(folder)
        except BaseException:
            self.close()
            raise

    def _start(self, folder: Path) -> None:
        (folder / "real").mkdir()
        self.real = RealServer(folder / "real")
        self._closing.append(self.real.close)
        self.api = Api("real", self.real.endpoint)
        self._closing.append(self.api.close)
        install_definitions(self.api, by_role("project"))
        identity = Identity(Who.MANAGEMENT, "real", (On.HOST, On.PROJECT))
        token = admit(self.api, identity, _SWITCHES)
        kubeconfig = folder / "management.kubeconfig"
        write_kubeconfig(kubeconfig, {"it": replace(self.real.endpoint, token=token, namespace=NAMESPACE)}, "it")
        self.api.create(LOCATION_BINDING.body("dfw") | {"spec": {"topology": {TOPOLOGY_CITY: CITY}}})
        self._issue_long_ago()
        self.balancer = Balancer()
        self._closing.append(self.balancer.close)
        self._register()
        self.replicas = [self._replica(folder, name, kubeconfig) for name in ("first", "second")]
        for replica in self.replicas:
            replica.until_ready()
            self.balancer.follow(replica)

    def _issue_long_ago(self) -> None:
        """Leaves a certificate as a replica issued it when it is about to be renewed."""
        hosts = frozenset({f"{WEBHOOK_SERVICE}.{NAMESPACE}.svc", HOST})
        old = datetime.now(UTC) + timedelta(seconds=self._due_seconds) - RENEWED_AFTER * timedelta(days=VALID_DAYS)
        serving = new_certificate(hosts, old)
        body = SECRET.body(WEBHOOK_SECRET, NAMESPACE, labels=MADE_HERE)
        data = data_of(Contents(serving, None, (serving.authority,)))
        self.api.create(body | {"type": "kubernetes.io/tls", "data": data})

    def _register(self) -> None:
        """As shipped, but by URL: there is no network of Services here."""
        for body in documents((REPOSITORY / "deploy" / "webhook" / "webhooks.yaml").read_text("utf-8")):
            for webhook in body["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://{HOST}:{self.balancer.port}{path}"}
            self.api.create(body)

    def _replica(self, folder: Path, name: str, kubeconfig: Path) -> Manager:
        tls = f"{{selfSigned: {{hosts: [{HOST}], overlapSeconds: {OVERLAP_SECONDS}}}}}"
        replica = Manager(
            folder,
            name,
            f"webhookServer: {{host: {HOST}, port: 0, tls: {tls}}}\n",
            f"--kubeconfig={kubeconfig}",
            "--shutdown-delay-seconds=3",
        )
        self._closing.append(replica.close)
        return replica

    def authorities(self) -> list[x509.Certificate]:
        """Those that the kube-apiserver is told to trust."""
        found = self.api.get(VALIDATING.api_version, VALIDATING.name, VALIDATING_WEBHOOKS)
        pem = base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", ""))
        return x509.load_pem_x509_certificates(pem) if pem else []

    def certificates(self) -> set[str]:
        """Those that the replicas serve."""
        return {ssl.get_server_certificate((HOST, replica.port("webhook"))) for replica in self.replicas}

    def until_called(self) -> None:
        """Webhooks are called soon after they are registered."""
        server = Server(self.real.endpoint, "real")
        try:
            until(lambda: ask(server, workload("XXX")).code == 422, "the webhooks are called")
            until(lambda: ask(server, workload(CITY)).code == 201, "the offered city is admitted")
        finally:
            server.close()

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


def workload(*cities: str, **labels: str) -> Json:
    spec = {"template": template(labels=labels), "placements": [placement("main", cities, 1)]}
    return WORKLOAD.body("web", "default") | {"spec": spec}


def ask(server: Server, body: Json) -> Reply:
    return server.ask("POST", _WORKLOADS, body, dryRun="All")
