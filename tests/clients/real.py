"""One kube-apiserver with its etcd and controllers, as small as it can be. Entry point: `RealServer`."""

import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from datum_compute.kube.access.kubeconfig import Endpoint, write_kubeconfig
from engine.build import binary
from tests.conformance.server import Server

_HOST = "127.0.0.1"
_SECONDS = 120.0
# Without these nothing is garbage-collected, and namespaces never finish deleting.
_CONTROLLERS = "namespace-controller,garbage-collector-controller"


class RealServer:
    """The processes run until `close`; `endpoint` is that of the administrator."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        etcd, peer, port, controllers = _free_ports(4)
        token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f'{token},administrator,administrator,"system:masters"\n')
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "accounts.key").write_bytes(pem)
        try:
            self._start(
                "etcd",
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls=http://{_HOST}:{etcd}",
                f"--advertise-client-urls=http://{_HOST}:{etcd}",
                f"--listen-peer-urls=http://{_HOST}:{peer}",
                f"--initial-advertise-peer-urls=http://{_HOST}:{peer}",
                f"--initial-cluster=default=http://{_HOST}:{peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            )
            self._start(
                "kube-apiserver",
                f"--etcd-servers=http://{_HOST}:{etcd}",
                f"--bind-address={_HOST}",
                f"--advertise-address={_HOST}",
                f"--secure-port={port}",
                f"--cert-dir={folder / 'certificates'}",
                f"--token-auth-file={folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--endpoint-reconciler-type=none",
                "--disable-admission-plugins=ServiceAccount",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://clients.test",
                f"--service-account-key-file={folder / 'accounts.key'}",
                f"--service-account-signing-key-file={folder / 'accounts.key'}",
            )
            certificate = folder / "certificates" / "apiserver.crt"
            self._until(certificate.exists, "the kube-apiserver showing a certificate")
            self.endpoint = Endpoint(
                f"https://{_HOST}:{port}", ca_pem=certificate.read_text(), token=token, namespace="default"
            )
            self._until(self._is_ready, "the kube-apiserver being ready")
            write_kubeconfig(folder / "config", {"it": self.endpoint}, "it")
            self._start(
                "kube-controller-manager",
                f"--kubeconfig={folder / 'config'}",
                f"--bind-address={_HOST}",
                f"--secure-port={controllers}",
                f"--controllers={_CONTROLLERS}",
                "--leader-elect=false",
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(timeout=60)

    def _start(self, name: str, *arguments: str) -> None:
        with open(self._folder / f"{name}.log", "wb") as log:
            self._processes.append(
                subprocess.Popen([binary(name), *arguments], stdout=log, stderr=log, cwd=self._folder)
            )

    def _is_ready(self) -> bool:
        server = Server(self.endpoint, "real")
        try:
            return (
                server.ask("GET", "/readyz").code == 200 and server.ask("GET", "/api/v1/namespaces/default").code == 200
            )
        except OSError:
            return False
        finally:
            server.close()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            for process in self._processes:
                if process.poll() is not None:
                    raise AssertionError(f"{process.args!r} ended; see the logs in {self._folder}")
            assert time.monotonic() < deadline, f"{what} did not happen in time; see the logs in {self._folder}"
            time.sleep(0.1)


def _free_ports(number: int) -> Sequence[int]:
    sockets = [socket.create_server((_HOST, 0)) for _ in range(number)]
    ports = [socket_.getsockname()[1] for socket_ in sockets]
    for socket_ in sockets:
        socket_.close()
    return ports
