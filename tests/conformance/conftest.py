"""The servers that have to agree: ours, and a real kube-apiserver where there is one.

What is checked was first seen on the real one. It runs on ours in `make test`; with ENGINE=1 also on a plane of the
real engine, and with CONFORMANCE=<kubeconfig> also on whatever that names, as its administrator.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.api.crd import OURS, definition
from datum_compute.kube.access.kubeconfig import Endpoint, load
from tests.conformance.kinds import DEFINITIONS, Definition, Place
from tests.conformance.server import Server, until
from tests.conftest import ENGINE
from tests.engine.running import running_engine
from tests.https import Background
from tests.kubectl import Kubectl, program

_GIVEN = os.environ.get("CONFORMANCE", "")
_SERVERS = ["embedded", *(["engine"] if ENGINE else []), *(["outside"] if _GIVEN else [])]


@pytest.fixture(
    scope="session", params=[pytest.param(name, marks=[pytest.mark.engine] if ENGINE else []) for name in _SERVERS]
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    background: Background | None = None
    match request.param:
        case "embedded":
            background = Background(tmp_path_factory.mktemp("conformance"))
            endpoint: Endpoint = background.server.endpoint("demo")
        case "engine":
            endpoint = load([running_engine().folder.kubeconfig("project-b")])
        case _:
            endpoint = load([Path(_GIVEN)])
    server = Server(endpoint, request.param)
    yield server
    server.close()
    if background:
        background.close()


@pytest.fixture(scope="session")
def kubectl(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    return Kubectl(program(), tmp_path_factory.mktemp("kubectl"), {"it": server.endpoint}, "it")


@pytest.fixture(scope="session")
def compute(server: Server) -> Iterator[None]:
    """Installs the kinds of this package for the session where they are not served yet."""
    missing = [kind for kind in OURS if server.ask("GET", f"{DEFINITIONS}/{kind.resource}").code == 404]
    missing = [kind for kind in missing if server.ask("GET", kind.path()).code == 404]  # built in
    for kind in missing:
        server.create(DEFINITIONS, definition(kind))
    for kind in missing:
        until(f"{kind.resource} being served", lambda kind=kind: server.ask("GET", kind.path()).code == 200)  # type: ignore[misc]
    yield
    for kind in missing:
        server.delete(f"{DEFINITIONS}/{kind.resource}")


@pytest.fixture(scope="session")
def group(server: Server) -> str:
    """An API group that nobody else uses."""
    return f"c{uuid.uuid4().hex[:8]}.example.test"


@pytest.fixture(scope="session")
def widgets(server: Server, group: str) -> Iterator[Definition]:
    """A namespaced kind with a status subresource, a schema and columns."""
    yield from _defined(server, Definition.widgets(group))


@pytest.fixture(scope="session")
def gadgets(server: Server, group: str) -> Iterator[Definition]:
    """A cluster-scoped kind without a status subresource."""
    yield from _defined(server, Definition.gadgets(group))


def _defined(server: Server, definition: Definition) -> Iterator[Definition]:
    definition.create(server)
    yield definition
    definition.remove(server)


@pytest.fixture
def place(server: Server, widgets: Definition) -> Iterator[Place]:
    """A new namespace for a test; its deletion is not waited for, but nothing in it can block it."""
    place = Place(server, f"conformance-{uuid.uuid4().hex[:10]}", widgets)
    server.create("/api/v1/namespaces", place.namespace())
    yield place
    place.release()
    server.delete(f"/api/v1/namespaces/{place.name}")


@pytest.fixture
def name() -> str:
    """A name for a cluster-scoped object; tests share that scope."""
    return f"only-{uuid.uuid4().hex[:10]}"
