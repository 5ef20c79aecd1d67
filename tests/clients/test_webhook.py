"""A kube-apiserver calls the webhooks of two replicas; no call fails while their certificate and they change."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.clients.installation import CITY, Installation, ask, workload
from tests.conformance.server import Server
from tests.operator.processes import until

DUE_SECONDS = 15.0
WORKERS = 4
_PAUSE_SECONDS = 0.02


class Load:
    """Good Workloads from several clients, one after the other each."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.admitted = 0
        self.failures: list[Any] = []

    def add(self, workers: int) -> None:
        for _ in range(workers):
            self._threads.append(threading.Thread(target=self._work))
            self._threads[-1].start()

    def _work(self) -> None:
        server = Server(self._installation.real.endpoint, "real")
        try:
            while not self._over.wait(_PAUSE_SECONDS):
                reply = ask(server, workload(CITY))
                if reply.code == 201:
                    self.admitted += 1
                else:
                    self.failures.append((reply.code, reply.message))
        except Exception as error:
            self.failures.append(error)
        finally:
            server.close()

    def until_more(self, number: int) -> None:
        goal = self.admitted + number
        until(lambda: self.admitted >= goal or bool(self.failures), f"{number} more are admitted")

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def under_load(installation: Installation) -> Iterator[Load]:
    load = Load(installation)
    load.add(WORKERS)
    try:
        load.until_more(20)
        yield load
    finally:
        load.end()


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installed = Installation(tmp_path_factory.mktemp("webhook"), DUE_SECONDS)
    installed.until_called()
    yield installed
    installed.close()


def test_a_workload_is_refused_with_all_errors_at_once(installation: Installation) -> None:
    server = Server(installation.real.endpoint, "real")
    try:
        refused = ask(server, workload("XXX", CITY, "YYY", **{"compute.datumapis.com/mine": "yes"}))
    finally:
        server.close()
    assert refused.failure == (422, "Invalid")
    assert 'admission webhook "vworkload.kb.io" denied the request' in refused.message
    assert [field for _, field in refused.causes] == [
        "spec.placements[0].cityCodes[0]",
        "spec.placements[0].cityCodes[2]",
        "spec.template.metadata.labels[compute.datumapis.com/mine]",
    ]


def test_a_certificate_is_renewed_without_a_failed_call(installation: Installation) -> None:
    with under_load(installation) as load:
        old = installation.certificates()
        assert len(old) == 1
        until(lambda: len(installation.authorities()) == 2, "both authorities are trusted")
        until(lambda: not installation.certificates() & old, "all replicas serve the new certificate")
        assert len(installation.authorities()) == 2
        before = sum(installation.balancer.connections.values())
        load.add(2 * WORKERS)  # so that new connections are opened
        load.until_more(100)
        assert sum(installation.balancer.connections.values()) > before
        until(lambda: len(installation.authorities()) == 1, "the old authority is not trusted any more")
        load.until_more(100)
    print(f"{load.admitted} calls")
    assert load.failures == []
    assert len(installation.certificates()) == 1
    assert not installation.certificates() & old


def test_a_replica_stops_without_a_failed_call(installation: Installation) -> None:
    leaving, staying = installation.replicas
    with under_load(installation) as load:
        load.add(WORKERS)
        load.until_more(100)
        assert all(installation.balancer.connections[replica.name] for replica in (leaving, staying))
        assert leaving.terminate() == 0
        load.until_more(100)
    print(f"{load.admitted} calls")
    assert load.failures == []
    assert staying.process.poll() is None
