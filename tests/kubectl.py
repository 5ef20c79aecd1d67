"""Unmodified kubectl as people run it: the one from KUBECTL, from PATH or of the real engine. Tests
that need it are skipped where there is none. Entry points: `Kubectl`, `program`.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import yaml

from datum_compute.kube.access.kubeconfig import Endpoint, write_kubeconfig
from datum_compute.kube.meta import Json


class Kubectl:
    """Calling it gives what kubectl printed; `home` gets a kubeconfig of `contexts`."""

    def __init__(self, program: str, home: Path, contexts: Mapping[str, Endpoint], current: str) -> None:
        self.home = home
        self._program = program
        self._tokens = [endpoint.token for endpoint in contexts.values() if endpoint.token]
        write_kubeconfig(home / "config", contexts, current)
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(home / "config")}

    def run(self, *arguments: str, manifest: Json | None = None) -> subprocess.CompletedProcess[str]:
        command = [self._program, *arguments, *(["-f", "-"] if manifest else [])]
        return subprocess.run(
            command,
            env=self._environment,
            input=yaml.safe_dump(manifest) if manifest else "",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def __call__(self, *arguments: str, manifest: Json | None = None) -> str:
        done = self.run(*arguments, manifest=manifest)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def refused(self, *arguments: str, manifest: Json | None = None) -> str:
        done = self.run(*arguments, manifest=manifest)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)}: {done.stdout}"
        assert not any(token in done.stderr for token in self._tokens)
        return done.stderr

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._program, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def program() -> str:
    """Where kubectl is; a test that needs it is skipped where there is none that fits."""
    found = os.environ.get("KUBECTL") or shutil.which("kubectl") or _of_the_engine()
    if not found:
        pytest.skip("no kubectl in PATH, and KUBECTL does not name one: nothing was checked against a real client")
    if (minor := _minor(found)) < 29:
        pytest.skip(f"{found} is 1.{minor}; before 1.29 kubectl asks for OpenAPI v2, which is not served")
    return found


def _of_the_engine() -> str:
    """The one that `make engine` built, if it ever did."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return next((str(found) for found in sorted(cache.glob("datum-compute/engine/kubernetes-*/kubectl"))), "")


def _minor(program: str) -> int:
    """The minor version of a kubectl; one that does not know its own is taken as new."""
    answer = subprocess.run([program, "version", "--client", "--output=json"], capture_output=True, check=True).stdout
    return int(msgspec.json.decode(answer)["clientVersion"].get("minor", "").rstrip("+") or 99)
