"""The local federation through unmodified kubectl, with the kubeconfig that it writes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import kubectl as client
from tests.conformance.server import until
from tests.conftest import own_environ

pytestmark = pytest.mark.timeout(180)

COMPUTE = Path(sys.executable).with_name("compute")
Run = Callable[[str], str]


@pytest.fixture
def compute(tmp_path: Path) -> Iterator[Run]:
    environ = own_environ()
    environ["DATUM_COMPUTE_LOCAL_DIR"] = str(tmp_path / "state")

    def typed(line: str) -> str:
        done = subprocess.run(
            [COMPUTE, *line.split()], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"compute {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    yield typed
    typed("local down")


@pytest.fixture
def kubectl(compute: Run, tmp_path: Path) -> Run:
    program = client.program()
    compute("local up --limit=instances=3")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": compute("local kubeconfig").strip()}

    def typed(line: str) -> str:
        done = subprocess.run(
            [program, *line.split()], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"kubectl {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    return typed


def _events(kubectl: Run, kind: str, name: str) -> set[str]:
    """Of one object, as `TYPE REASON MESSAGE`."""
    columns = "custom-columns=:.type,:.reason,:.message"
    about = f"involvedObject.kind={kind},involvedObject.name={name}"
    lines = kubectl(f"get events --no-headers -o {columns} --field-selector={about}").splitlines()
    return {" ".join(line.split()) for line in lines}


def test_normal_events_cover_the_life_of_a_workload(compute: Run, kubectl: Run) -> None:
    expected = {
        ("Workload", "web"): {
            "Normal Created Created deployment web-default-dfw in DFW",
            "Normal RolledOut All instances run the newest template",
        },
        ("Instance", "web-default-dfw-0"): {
            "Normal Created Created in DFW",
            "Normal Started Instance is ready",
        },
    }
    compute("deploy web --image=registry.example/web:1 --city=DFW --min=1")
    until("the events of a first deploy", lambda: {about: _events(kubectl, *about) for about in expected} == expected)

    compute("scale web --min=4")
    expected["Workload", "web"] |= {"Normal Scaled Scaled deployment web-default-dfw from 1 to 4"}
    expected["Instance", "web-default-dfw-3"] = {
        "Normal Created Created in DFW",
        "Normal QuotaExceeded Requested 1 instance, 0 available.",
    }
    until(
        "those of a scaling beyond the quota",
        lambda: {about: _events(kubectl, *about) for about in expected} == expected,
    )

    compute("local down")
    compute("local up --limit=instances=4")
    expected["Instance", "web-default-dfw-3"] |= {
        "Normal QuotaAvailable All requested resources are available",
        "Normal Started Instance is ready",
    }
    until("those of a higher limit", lambda: {about: _events(kubectl, *about) for about in expected} == expected)


def test_every_context_has_the_namespace_that_it_names(kubectl: Run) -> None:
    contexts = kubectl("config get-contexts -o name").split()
    assert {"root", "hub", "cell-dfw", "project-demo"} <= set(contexts)
    for context in contexts:
        assert kubectl(f"--context={context} get namespace default -o name") == "namespace/default\n"
