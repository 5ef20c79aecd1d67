"""`compute logs --follow` over what happens to four instances in two cities: numbered lines, none lost, none twice."""

import json
import subprocess
from collections import defaultdict
from datetime import datetime
from pathlib import Path

from datum_compute.kube.meta import Json
from tests.containers.machine import COMPUTE, Machine
from tests.containers.podman import HELLO, HELLO_2, until

EVERY = "20ms"
LATE_SECONDS = 0.3

MANIFEST = """\
apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata:
  name: web
spec:
  template:
    spec:
      runtime:
        resources:
          instanceType: datumcloud/d1-standard-2
        sandbox:
          containers:
            - name: app
              image: {image}
              env:
                - name: EVERY
                  value: {every}
              ports:
                - name: http
                  port: 8080
      networkInterfaces:
        - network:
            name: default
  placements:
    - name: default
      cityCodes: [DFW, AMS]
      scaleSettings:
        minReplicas: 2
"""


class Follower:
    """A terminal that follows the workload, with its lines in a file."""

    def __init__(self, machine: Machine, output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            command = [str(COMPUTE), "logs", "web", "--follow", "--tail=-1", "-o", "json"]
            self.process = subprocess.Popen(command, env=machine.environ, stdout=file, stderr=subprocess.DEVNULL)

    def entries(self) -> list[Json]:
        whole = self._output.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def runs(self) -> dict[tuple[str, str], list[str]]:
        """The lines of each generation of each instance, in the order in which they arrived."""
        runs = defaultdict(list)
        for entry in self.entries():
            runs[entry["instance"], entry["generation"]].append(entry["line"])
        return runs

    def has_seen_the_end_of(self, count: int) -> bool:
        return sum(lines[-1].startswith("stopped after ") for lines in self.runs().values()) >= count


def deploy(machine: Machine, folder: Path, image: str) -> None:
    manifest = folder / "web.yaml"
    manifest.write_text(MANIFEST.format(image=image, every=EVERY))
    machine(f"deploy -f {manifest} -y --timeout=100s")


def test_no_line_is_lost_or_repeated_over_a_roll_and_a_deletion(machine: Machine, tmp_path: Path) -> None:
    machine.up()
    deploy(machine, tmp_path, HELLO)
    follower = Follower(machine, tmp_path / "lines")
    try:
        until("lines arrive", lambda: len(follower.runs()) == 4, 30)
        deploy(machine, tmp_path, HELLO_2)
        until("the roll has been seen", lambda: follower.has_seen_the_end_of(4) and len(follower.runs()) == 8, 30)
        machine("destroy web -y --wait")
        until("the end of all has been seen", lambda: follower.has_seen_the_end_of(8), 30)
    finally:
        follower.process.terminate()
        follower.process.wait(10)
    runs = follower.runs()
    assert len(runs) == 8
    for (instance, _), lines in runs.items():
        count = len(lines) - 2
        numbered = [f"line {number}" for number in range(1, count + 1)]
        assert lines == ["listening on :8080", *numbered, f"stopped after {count}"], instance
        assert count > 10, instance
    times = [datetime.fromisoformat(entry["timestamp"][:26] + "+00:00").timestamp() for entry in follower.entries()]
    latest = times[0]
    for time in times:
        assert time > latest - LATE_SECONDS
        latest = max(latest, time)
