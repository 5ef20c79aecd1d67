"""compute-manager under a flood of clients that never get to the point."""

from collections.abc import Callable
from typing import Any

import pytest

from datum_compute.admission.webhook import VALIDATE
from datum_compute.api.permissions import MANAGEMENT_LEASE
from datum_compute.kube.kinds import LEASE
from datum_compute.kube.meta import as_dict
from tests.conftest import count
from tests.flood import ANSWER_SECONDS, GRANTED_BYTES, Target, flooding, observe
from tests.operator.processes import HOST_NAMESPACE, PROJECT_NAME, Manager, Site, until

pytestmark = pytest.mark.timeout(600)

Start = Callable[..., Manager]


def _lease(site: Site) -> tuple[str, str]:
    lease = site.do(lambda: site.client("root").get(LEASE, MANAGEMENT_LEASE, HOST_NAMESPACE))
    spec = as_dict(lease.spec_json)
    return spec["holderIdentity"], spec["renewTime"]


def test_a_flood_of_connections_costs_little_and_holds_nobody_up(site: Site, start: Start) -> None:
    credentials = site.background.credentials
    tls = f"{{certDir: {credentials.directory}, certName: server.crt, keyName: server.key}}"
    manager = start(
        "management",
        f"""
discovery:
  mode: milo
  discoveryKubeconfigPath: {site.directory}/root.kubeconfig
  projectKubeconfigPath: {site.directory}/root.kubeconfig
metricsServer: {{bindAddress: "127.0.0.1:0"}}
webhookServer: {{host: 127.0.0.1, port: 0, tls: {tls}}}
""",
        f"--kubeconfig={site.directory}/root.kubeconfig",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--enable-management-controllers",
        "--leader-elect",
        f"--leader-elect-namespace={HOST_NAMESPACE}",
    )
    manager.until_ready()
    until(lambda: any(line.get("event") == "leading" for line in manager.lines()), "it leads")
    holder, renewed = _lease(site)
    targets = [
        Target(manager.port("health"), tls=False, path="/healthz"),
        Target(manager.port("metrics"), tls=True, path="/metrics"),
        Target(manager.port("webhook"), tls=True, path=VALIDATE),
    ]

    def ask() -> None:
        assert manager.get("/healthz")[0] == 200

    with flooding(targets, count(500, 10_000)) as opened:
        observed = observe(manager.process.pid, ask, opened)
        until(lambda: _lease(site)[1] > renewed, "the lease is renewed")
        assert _lease(site)[0] == holder
        assert manager.get("/metrics", "metrics", tls=True)[0] == 401
        assert _review(manager)["uid"] == "1"
    print(f"grown by {observed.grown / 1e6:.1f} MB, slowest answer {observed.slowest:.2f} s")
    assert observed.grown < GRANTED_BYTES
    assert observed.slowest < ANSWER_SECONDS
    assert manager.terminate() == 0


def _review(manager: Manager) -> Any:
    user = {"username": "ada", "extra": {"iam.miloapis.com/parent-name": [PROJECT_NAME]}}
    request = {"uid": "1", "operation": "DELETE", "namespace": "default", "name": "web", "userInfo": user}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return manager.post(VALIDATE, "webhook", review)["response"]
