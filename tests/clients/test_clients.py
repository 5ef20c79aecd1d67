"""Third-party clients, unmodified, get the same results on the embedded engine and on a kube-apiserver."""

import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.build import binary
from tests.clients.conftest import PYTHON, Surroundings
from tests.conformance.server import until

SCRIPTS = Path(__file__).parent.parent.parent / "clients"

Seen = dict[str, Any]  # by step


def seen(script: str, namespace: str, on: Surroundings) -> Seen:
    on.server.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(on.kubeconfig.parent),
        "KUBECONFIG": str(on.kubeconfig),
        "NAMESPACE": namespace,
        "GROUP": on.kind.group,
        "HELM": str(binary("helm")),
        "KUBECTL": str(binary("kubectl")),
    }
    done = subprocess.run(
        [str(Path(PYTHON).absolute()), str(SCRIPTS / f"{script}.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{script} on {on.server.name}: {done.stderr[-4000:]}"
    on.server.delete(f"/api/v1/namespaces/{namespace}")
    until(f"the end of {namespace}", lambda: on.server.gone(f"/api/v1/namespaces/{namespace}"))
    return dict(msgspec.json.decode(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("script", "steps"),
    [
        ("official", {"widgets are served": ["widgets", "widgets/status"], "may I": True}),
        ("official_asyncio", {"conflict": [409, "Conflict"], "list": ["asyncio"]}),
        ("with_kr8s", {"get": ["kr8s"], "exists": False}),
        ("with_lightkube", {"list": ["light"], "gone": [404, "NotFound"]}),
        ("with_kopf", {"seen": [["created", 1], ["updated", 1, 2], ["deleted", 2]]}),
        ("with_programs", {"rolled back": "1", "uninstall": 'release "app" uninstalled\n', "may I": "yes\n"}),
    ],
)
def test_a_client_works_on_both_servers(script: str, steps: Seen, embedded: Surroundings, real: Surroundings) -> None:
    namespace = f"clients-{uuid.uuid4().hex[:10]}"
    there, here = seen(script, namespace, real), seen(script, namespace, embedded)
    assert here == there
    assert steps.items() <= here.items()
