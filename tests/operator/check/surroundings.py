"""The planes of a small installation over real HTTPS, which a test can spoil. Entry point: `Surroundings`."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509

from datum_compute.api.crd import by_role
from datum_compute.api.karmada import CLUSTER, RESOURCE_BINDING, WORK, execution_space
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.embedded.https.application import Application
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, HUB, PROJECT, ROOT
from datum_compute.kube.access.kubeconfig import Endpoint, write_kubeconfig
from datum_compute.kube.authority import SERVER, Pair, issue, new_authority
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from datum_compute.local.engine import compute_engine
from datum_compute.operator.check.command import diagnoses
from datum_compute.operator.check.diagnoses import Diagnosis, Result
from datum_compute.operator.check.gathering import Patience
from datum_compute.operator.flags import Flags
from datum_compute.runtime.serving.asgi import AsgiServer
from datum_compute.runtime.serving.connections import Limits

CELL_NAME, PROJECT_NAME, CITY = "cell-dfw", "demo", "DFW"
NAMESPACE_NAME = "compute-system"
PLANES = {"root": ROOT, "hub": HUB, CELL_NAME: CELL, PROJECT_NAME: PROJECT}
WEBHOOK_HOST = "compute.compute-system.svc"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

Alter = Callable[[str, Json], Json | None]
"""Another definition in place of one that planes of a role serve; None to leave it out."""


def unaltered(role: str, definition: Json) -> Json | None:
    return definition


class Surroundings:
    """Everything is as it should be until a test changes it. `check` runs the check on it."""

    def __init__(self, directory: Path, alter: Alter) -> None:
        self.directory = directory
        self._alter = alter
        self.credentials = Credentials.ensure(directory / "credentials")
        self.engine = compute_engine(definitions=self._definitions)
        self._application = Application(self.engine, self.credentials.token, self.engine.clock, lambda: True, Limits())
        self.denied: Callable[[str, Json], bool] = lambda path, attributes: False
        self.writes: list[str] = []  # methods and paths of what would change a plane
        self.late = timedelta()  # by which the clock of this machine is ahead
        self.authority = new_authority("webhooks", datetime.now(UTC), 30)
        self.bundle = self.authority.certificate_pem
        self.certificate(self.authority)

    def _definitions(self, role: str) -> list[Json]:
        definitions = [*by_role(role), *([_plain(RESOURCE_BINDING), _plain(WORK)] if role == HUB else [])]
        altered = (self._alter(role, definition) for definition in definitions)
        return [definition for definition in altered if definition is not None]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        for plane, role in PLANES.items():
            self.engine.serve(plane, role)
        work = asyncio.create_task(self.engine.run())
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.credentials.certificate, self.credentials.key)
        server = AsgiServer(self._answer, tls=tls)
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        task = await server.start(listening, "planes")
        for plane in PLANES:
            self.kubeconfig(plane)
        await self._fill()
        try:
            yield
        finally:
            server.should_exit = True
            work.cancel()
            await asyncio.gather(task, work, return_exceptions=True)
            self.engine.close()

    async def _fill(self) -> None:
        for plane in ("root", CELL_NAME):
            for namespace in (NAMESPACE_NAME, "kube-system"):
                await self.client(plane).create(NAMESPACE, NAMESPACE.body(namespace))
        await self.client("hub").create(NAMESPACE, NAMESPACE.body(execution_space(CELL_NAME)))
        labels = hub_labels(PROJECT_NAME, "default")
        await self.client(CELL_NAME).create(NAMESPACE, NAMESPACE.body("ns-1", labels=labels))
        await self.cluster(CELL_NAME, CITY)
        await self.project(PROJECT_NAME)

    async def project(self, name: str) -> None:
        project = await self.client("root").create(PROJECT_KIND, PROJECT_KIND.body(name) | {"spec": {}})
        await self.client("root").replace_status(PROJECT_KIND, project, _READY)

    async def cluster(self, name: str, city: str, *, ready: bool = True) -> None:
        labels = {TOPOLOGY_CITY: city} if city else {}
        cluster = await self.client("hub").create(CLUSTER, CLUSTER.body(name, labels=labels) | {"spec": {}})
        if ready:
            await self.client("hub").replace_status(CLUSTER, cluster, _READY)

    def client(self, plane: str) -> Client:
        return self.engine.client(plane)

    def endpoint(self, plane: str) -> Endpoint:
        path = "" if plane == "root" else f"/planes/{plane}"
        server = f"https://127.0.0.1:{self.port}{path}"
        credentials = self.credentials
        return Endpoint(server, ca_pem=credentials.authority_pem, token=credentials.token)

    def kubeconfig(self, plane: str, path: Path | None = None, **changed: Any) -> Path:
        path = path or self.directory / f"{plane}.kubeconfig"
        endpoint = msgspec.structs.replace(self.endpoint(plane), **changed)
        write_kubeconfig(path, {plane: endpoint}, plane)
        return path

    def certificate(self, authority: Pair, host: str = WEBHOOK_HOST, *, since: timedelta = timedelta()) -> None:
        """Gives the webhook a certificate that is valid for 30 days, from `since` ago."""
        names = [x509.DNSName(host)]
        pair = issue(authority, host, datetime.now(UTC) - since, 30, purposes=[SERVER], names=names)
        folder = self.directory / "webhook"
        folder.mkdir(exist_ok=True)
        (folder / "tls.crt").write_bytes(pair.certificate_pem)
        (folder / "tls.key").write_bytes(pair.key_pem)

    # Runs of the check

    def management(self, **flags: Any) -> Flags:
        return self._flags(
            "management",
            f"""
discovery:
  mode: milo
  discoveryKubeconfigPath: {self.directory}/root.kubeconfig
  projectKubeconfigPath: {self.directory}/root.kubeconfig
webhookServer: {{host: 127.0.0.1, port: 0, tls: {{certDir: {self.directory}/webhook}}}}
""",
            {
                "kubeconfig": f"{self.directory}/root.kubeconfig",
                "enable_management_controllers": True,
                "builtins": "quota,entitlement,locations",
            }
            | flags,
        )

    def cell(self, **flags: Any) -> Flags:
        return self._flags(
            "cell",
            f"discovery: {{clusterName: {CELL_NAME}, quotaKubeconfigPath: {self.directory}/root.kubeconfig}}",
            self._of_cell | flags,
        )

    def cell_without_milo(self, **flags: Any) -> Flags:
        (self.directory / "projects").mkdir(exist_ok=True)
        return self._flags(
            "cell-without-milo",
            f"discovery: {{mode: kubeconfigs, clusterName: {CELL_NAME}, kubeconfigDir: {self.directory}/projects}}",
            self._of_cell | flags,
        )

    @property
    def _of_cell(self) -> dict[str, Any]:
        return {"kubeconfig": f"{self.directory}/{CELL_NAME}.kubeconfig", "enable_cell_controllers": True}

    def _flags(self, name: str, config: str, flags: Mapping[str, Any]) -> Flags:
        file = self.directory / f"{name}.yaml"
        file.write_text(f"apiVersion: apiserver.config.datumapis.com/v1alpha1\nkind: WorkloadOperator\n{config}")
        usual: Mapping[str, Any] = {
            "server_config": str(file),
            "federation_kubeconfig": f"{self.directory}/hub.kubeconfig",
            "leader_elect": True,
            "leader_elect_namespace": NAMESPACE_NAME,
            "health_probe_bind_address": "127.0.0.1:0",
        }
        return Flags(**{**usual, **flags})

    def with_config(self, flags: Flags, old: str, new: str) -> Flags:
        """The same flags, with something else in the config file."""
        file = Path(flags.server_config)
        file.write_text(file.read_text().replace(old, new, 1))
        return flags

    async def check(
        self,
        flags: Flags,
        patience: Patience = Patience(),  # noqa: B008, frozen
        *,
        running: bool = False,
    ) -> list[Diagnosis]:
        return await diagnoses(flags, {}, lambda: datetime.now(UTC) + self.late, patience, running=running)

    async def troubles(self, flags: Flags) -> list[Diagnosis]:
        return [diagnosis for diagnosis in await self.check(flags) if diagnosis.result is not Result.FINE]

    # In front of the engine

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        path, method = scope["path"], scope["method"]
        if path == REGISTRATIONS:
            await _send(send, {"items": [self._registration()], "metadata": {"resourceVersion": "1"}})
            return
        if path.startswith("/apis/admissionregistration.k8s.io"):
            await _send(send, {"items": [], "metadata": {"resourceVersion": "1"}})
            return
        body = (await receive())["body"] if method != "GET" else b""
        if path.endswith(REVIEWS):
            attributes = msgspec.json.decode(body)["spec"]["resourceAttributes"]
            if self.denied(path, attributes):
                await _send(send, {"metadata": {}, "status": {"allowed": False}}, 201)
                return
        elif method != "GET" and b"dryRun=All" not in scope["query_string"] and not path.endswith("selfsubjectreviews"):
            self.writes.append(f"{method} {path}")
        await self._application(scope, _replayed(body), send)

    def _registration(self) -> Json:
        service = {
            "name": "compute",
            "namespace": NAMESPACE_NAME,
            "path": "/validate-compute-datumapis-com-v1alpha-workload",
        }
        config = {"service": service, "caBundle": base64.b64encode(self.bundle).decode()}
        return {"metadata": {"name": "compute"}, "webhooks": [{"name": "w", "clientConfig": config}]}


_READY: Json = {
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
}


def _plain(kind: Kind[Any]) -> Json:
    """The definition of a kind of Karmada that the embedded hub does not serve."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind.name, "listKind": f"{kind.name}List", "plural": kind.plural, "singular": kind.name.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {"group": kind.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _replayed(body: bytes) -> Any:
    async def receive() -> Json:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _send(send: Any, content: Json, code: int = 200) -> None:
    body = msgspec.json.encode(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
