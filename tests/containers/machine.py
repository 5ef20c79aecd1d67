"""A user at a machine with a container engine, who runs a local federation there. Entry point: `Machine`."""

import http.client
import json
import subprocess
import sys
from pathlib import Path

from datum_compute.api.labels import LOCAL
from datum_compute.kube.meta import Json
from datum_compute.local.containers import recall
from datum_compute.local.state import Paths
from tests.containers.podman import HELLO, Podman

COMPUTE = Path(sys.executable).with_name("compute")


class Machine:
    """Called with the words of a command, it returns what the command printed, after checking its exit code."""

    def __init__(self, podman: Podman, directory: Path) -> None:
        self.podman = podman
        self.directory = directory
        self.environ = podman.environment | {
            "DATUM_COMPUTE_LOCAL_DIR": str(directory),
            "DATUM_COMPUTE_INSTANCES": "auto",
        }

    def __call__(self, line: str, code: int = 0) -> str:
        done = subprocess.run(
            [COMPUTE, *line.split()], env=self.environ, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == code, f"compute {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @property
    def status(self) -> Json:
        text = self("local status -o json")
        status: Json = json.loads(text)
        return status

    @property
    def id(self) -> str:
        return recall(Paths(self.directory)).record.id

    def ours(self) -> dict[str, str]:
        """States of our containers by id."""
        return {entry["Id"]: entry["State"] for entry in self.podman.containers(**{LOCAL: self.id})}

    def deploy(self, image: str = HELLO) -> None:
        self(f"deploy web --image={image} --city=DFW,AMS --min=2 --port=8080 --timeout=60s")

    def get(self, host: str = "web.localhost") -> tuple[int, str, str]:
        """Status, instance and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", "/", headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.headers.get("X-Datum-Instance", ""), answer.read().decode()
        finally:
            connection.close()

    def up(self, flags: str = "") -> str:
        text = self(f"local up {flags}")
        self.port: int = self.status["proxy"]
        return text
