"""The servers for third-party clients, for `make test-clients`; otherwise nothing is collected.

CLIENTS names the Python that has the clients; CONFORMANCE=<kubeconfig> a server to compare with, instead of a
kube-apiserver that is started for it.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from datum_compute.kube.access.kubeconfig import Endpoint, load, write_kubeconfig
from tests.clients.real import RealServer
from tests.conformance.kinds import Definition
from tests.conformance.server import Server
from tests.https import Background

PYTHON = os.environ.get("CLIENTS", "")
_GIVEN = os.environ.get("CONFORMANCE", "")

collect_ignore = [] if PYTHON else ["test_clients.py", "test_manifests.py", "test_webhook.py"]


class Surroundings(Struct, frozen=True):
    """A server, and what a client needs to reach it."""

    server: Server
    kubeconfig: Path
    kind: Definition


@pytest.fixture(scope="session")
def group() -> str:
    return f"c{uuid.uuid4().hex[:8]}.example.test"


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory, group: str) -> Iterator[Surroundings]:
    background = Background(tmp_path_factory.mktemp("embedded"))
    try:
        yield from _surroundings(background.server.endpoint("demo"), "embedded", tmp_path_factory, group)
    finally:
        background.close()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory, group: str) -> Iterator[Surroundings]:
    if _GIVEN:
        yield from _surroundings(load([Path(_GIVEN)]), "given", tmp_path_factory, group)
        return
    started = RealServer(tmp_path_factory.mktemp("real"))
    try:
        yield from _surroundings(started.endpoint, "real", tmp_path_factory, group)
    finally:
        started.close()


def _surroundings(endpoint: Endpoint, name: str, folders: pytest.TempPathFactory, group: str) -> Iterator[Surroundings]:
    kubeconfig = folders.mktemp(f"{name}-kubeconfig") / "config"
    write_kubeconfig(kubeconfig, {"it": endpoint}, "it")
    server, kind = Server(endpoint, name), Definition.widgets(group)
    kind.create(server)
    yield Surroundings(server, kubeconfig, kind)
    kind.remove(server)
    server.close()
