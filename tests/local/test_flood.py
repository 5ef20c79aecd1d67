"""The local federation under a flood of clients that never get to the point."""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from datum_compute.kube.access.kubeconfig import load
from datum_compute.local import daemon
from tests.conftest import count
from tests.flood import ANSWER_SECONDS, GRANTED_BYTES, Target, flooding, observe

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "federation"
    daemon.down(tmp_path / "federation")


def test_a_flood_of_connections_costs_little_and_holds_nobody_up(directory: Path) -> None:
    running = daemon.up(directory)
    tls = load([daemon.kubeconfig_path(directory)], "root").tls()

    def ask() -> None:
        with urlopen(f"{running.url}/healthz", context=tls, timeout=20) as answer:
            assert answer.read() == b"ok"

    with flooding([Target(running.port, tls=True, path="/api/v1/namespaces")], count(500, 10_000)) as opened:
        observed = observe(running.pid, ask, opened)
    print(f"grown by {observed.grown / 1e6:.1f} MB, slowest answer {observed.slowest:.2f} s")
    assert observed.grown < GRANTED_BYTES
    assert observed.slowest < ANSWER_SECONDS
