"""A kube-apiserver accepts everything that the overlays contain, in a server dry run.

Kinds of others whose definitions are not at hand are left out: those of cert-manager, of the Prometheus operator, of
Karmada (which the tests of the real engine apply), and the documents for Milo's catalog and permissions.
"""

import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

from datum_compute.api.services import SERVICE_ENTITLEMENT
from datum_compute.kube.meta import Json
from engine.build import binary
from tests.clients.conftest import Surroundings
from tests.deploy.rendered import DEPLOY, rendered
from tests.deploy.test_overlays import ALL, CELLS, case_name

ABSENT = (
    "cert-manager.io",
    "monitoring.coreos.com",
    "config.karmada.io",
    "iam.miloapis.com",
    SERVICE_ENTITLEMENT.group,
)
ABSENT_KINDS = ("GrantCreationPolicy",)

Apply = Callable[..., str]


@pytest.fixture(scope="module")
def apply(real: Surroundings) -> Iterator[Apply]:
    """Applies objects as kubectl does; the kinds and namespaces that they need are there already."""

    def run(*arguments: str, objects: list[Json]) -> str:
        text = yaml.safe_dump_all(objects)
        command = [str(binary("kubectl")), f"--kubeconfig={real.kubeconfig}", *arguments, "-f", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr  # as for a Pod that the namespace would refuse
        return done.stdout

    needed = [
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"karmada-es-{cell}"}} for cell in CELLS),
        *rendered("namespace").objects,
        *(body for folder in sorted((DEPLOY / "crd").iterdir()) for body in rendered(f"crd/{folder.name}").objects),
    ]
    run("apply", "--server-side", objects=needed)
    definitions = [body for body in needed if body["kind"] == "CustomResourceDefinition"]
    run("wait", "--for=condition=Established", "--timeout=60s", objects=definitions)
    yield run
    run("delete", "--wait=false", objects=needed)


def at_hand(body: Json) -> bool:
    return body["apiVersion"].partition("/")[0] not in ABSENT and body["kind"] not in ABSENT_KINDS


@pytest.mark.parametrize("case", ALL, ids=case_name)
def test_a_kube_apiserver_accepts_an_overlay(case: tuple[str, ...], apply: Apply) -> None:
    objects = [body for body in rendered(*case).objects if at_hand(body)]
    answer = apply("apply", "--server-side", "--dry-run=server", "--validate=strict", objects=objects)
    assert len(answer.splitlines()) == len(objects)
    assert all(line.endswith("(server dry run)") for line in answer.splitlines())


def test_a_misspelt_field_is_not_accepted(apply: Apply) -> None:
    [service] = [
        body for body in rendered("overlays/development").of("Service") if "webhook" in body["metadata"]["name"]
    ]
    wrong = service | {"spec": service["spec"] | {"selektor": {}}}
    with pytest.raises(AssertionError, match="selektor"):
        apply("apply", "--server-side", "--dry-run=server", "--validate=strict", objects=[wrong])
