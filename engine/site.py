"""What every command line is built from, and the description of a process. Entry points: `Site`, `Process`."""

import base64
from pathlib import Path

from msgspec import Struct

from datum_compute.kube.access.kubeconfig import Endpoint
from engine.certificates import Certificates
from engine.settings import HOST_PLANE, Folder, Plane, Settings

HOST = "127.0.0.1"


class Process(Struct, frozen=True):
    name: str
    binary: str
    arguments: tuple[str, ...]
    ready: str  # address that answers 200 as soon as the process can be used


class Site(Struct, frozen=True):
    """One engine: its files, its ports, its certificates."""

    folder: Folder
    settings: Settings
    certificates: Certificates

    def port(self, listener: str) -> int:
        return self.settings.ports[listener]

    def address(self, listener: str) -> str:
        return f"{HOST}:{self.port(listener)}"

    def url(self, listener: str) -> str:
        return f"https://{self.address(listener)}"

    def services(self, plane: Plane) -> tuple[str, ...]:
        """How an API server reaches Services: there is no network of them, and only one plane of a test needs it."""
        if not self.settings.empty or plane.name != HOST_PLANE:
            return ()
        return (f"--egress-selector-config-file={self.folder.egress}",)

    def kubeconfig(self, plane: str) -> Path:
        return self.folder.kubeconfig(plane)

    @property
    def authority(self) -> str:
        """The authority's certificate as objects carry it."""
        return base64.b64encode(self.certificates.authority.read_bytes()).decode()

    def admin(self, listener: str) -> Endpoint:
        """How the administrator of the engine, who may do everything, calls a server."""
        return Endpoint(
            self.url(listener),
            ca_pem=self.certificates.authority.read_text("ascii"),
            client_cert=self.certificates.certificate("admin").read_text("ascii"),
            client_key=self.certificates.key("admin").read_text("ascii"),
        )

    def serving(self) -> tuple[str, ...]:
        """The flags by which a program of Kubernetes finds its server certificate."""
        server = self.certificates
        return (f"--tls-cert-file={server.certificate('server')}", f"--tls-private-key-file={server.key('server')}")

    def etcd(self, store: str, prefix: str) -> tuple[str, ...]:
        """The flags by which an API server keeps its objects apart from all others in one etcd."""
        return (
            f"--etcd-servers={self.url(store)}",
            f"--etcd-prefix=/{prefix}",
            f"--etcd-cafile={self.certificates.authority}",
            f"--etcd-certfile={self.certificates.certificate('admin')}",
            f"--etcd-keyfile={self.certificates.key('admin')}",
        )
