"""A local federation whose instances are containers of a real engine, used by its commands and a browser."""

import os
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

from datum_compute.api.labels import LOCAL
from datum_compute.kube.meta import encode
from datum_compute.local import daemon
from datum_compute.local.state import Paths
from tests.containers.machine import Machine
from tests.containers.podman import HELLO, HELLO_2, Podman, until

CITY = "compute.datumapis.com/city"
A_SECOND = 20


class Visitors:
    """Ask for a page again and again, on a thread of their own, until they are told to leave."""

    def __init__(self, machine: Machine) -> None:
        self.failures: list[tuple[int, str]] = []
        self.answers: Counter[str] = Counter()  # by instance
        self._machine = machine
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._visit)

    def __enter__(self) -> "Visitors":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()

    def _visit(self) -> None:
        while not self._leave.wait(1 / A_SECOND):
            try:
                status, instance, text = self._machine.get()
            except OSError as error:
                status, instance, text = 0, "", str(error)
            if status == 200:
                self.answers[instance] += 1
            else:
                self.failures.append((status, text))

    def until(self, count: int) -> None:
        wanted = self.answers.total() + count
        until("visitors are answered", lambda: bool(self.failures) or self.answers.total() >= wanted, 60)


def test_instances_really_run_and_each_answers(machine: Machine) -> None:
    assert "  Instances:  containers of Podman " in machine.up()
    machine.deploy()
    assert set(machine.ours().values()) == {"running"}
    names = {machine.get(host)[1] for host in ("web.localhost", "ams.web.localhost") for _ in range(2)}
    assert names == {f"web-default-{city}-{number}" for city in ("dfw", "ams") for number in (0, 1)}
    described = machine("instances describe web-default-dfw-0")
    (address,) = (line.split(" at ")[1] for line in described.splitlines() if line.startswith("Ports"))
    assert address in machine("instances")
    status = machine.status
    assert (status["instances"], status["engine"]["address"], status["running"]) == (
        "containers",
        machine.podman.address,
        4,
    )


def test_the_demo_builds_an_image_and_shows_its_log_and_its_answers(podman: Podman, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "demo" / "containers"
    environ = podman.environment | {"DEMO_FOLDER": str(tmp_path)}
    environ.pop("DATUM_COMPUTE_INSTANCES", None)
    try:
        done = subprocess.run([script], env=environ, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "  Instances:  containers of Podman " in done.stdout
        assert "200 hello from hello-default-dfw-0 (X-Datum-City: DFW)" in done.stdout
        assert "200 hello from hello-default-ams-0 (X-Datum-City: AMS)" in done.stdout
        assert "[default-dfw-0]" in done.stdout.partition("$ compute logs hello")[2]
        assert "listening on :8080" in done.stdout
    finally:
        daemon.reset(tmp_path / "state")
    assert podman.containers() == []


def test_no_request_fails_over_a_roll_or_a_stopped_city(machine: Machine) -> None:
    machine.up()
    machine.deploy()
    with Visitors(machine) as visitors:
        visitors.until(A_SECOND)
        machine.deploy(HELLO_2)
        visitors.until(A_SECOND)
        for entry in machine.podman.containers(**{CITY: "DFW"}):
            machine.podman.call("POST", f"/v1.41/containers/{entry['Id']}/stop?t=1")
        visitors.until(3 * A_SECOND)
    assert visitors.failures == []
    assert {name[-5:-2] for name in visitors.answers} >= {"dfw"}
    assert "version 2" in machine.get()[2]


def test_containers_outlive_a_killed_federation_and_are_stopped_and_started_with_it(machine: Machine) -> None:
    machine.up()
    machine.deploy()
    before = machine.ours()
    os.kill(machine.status["pid"], signal.SIGKILL)
    until("the federation is dead", lambda: daemon.status(machine.directory) is None, 10)
    assert machine.ours() == before
    machine.up()
    machine("rollout status web --timeout=60s")
    assert machine.ours() == before, "adopted as they are"

    os.kill(machine.status["pid"], signal.SIGKILL)
    until("the federation is dead", lambda: daemon.status(machine.directory) is None, 10)
    assert "4 containers were stopped." in machine("local down"), "also after it was killed"
    assert machine.ours() == dict.fromkeys(before, "exited")
    machine.up()
    machine("rollout status web --timeout=60s")
    until("all run again", lambda: machine.ours() == before, 30)
    assert "4 containers were stopped." in machine("local down")


def test_a_restart_while_a_rollout_is_blocked_leaves_what_works(machine: Machine) -> None:
    machine.up()
    machine.deploy()
    machine("deploy web --image=127.0.0.1:9/absent:1 --city=DFW,AMS --min=2 --port=8080 --timeout=8s", code=5)
    before = {entry["Id"] for entry in machine.podman.containers(**{LOCAL: machine.id})}
    assert len(before) == 2, "the first ones of both cities"
    machine("local down")
    machine.up()
    until("they run again", lambda: set(machine.ours().values()) == {"running"}, 30)
    with Visitors(machine) as visitors:
        visitors.until(5 * A_SECOND)
    assert visitors.failures == []
    assert set(machine.ours()) == before


def test_a_reset_removes_ours_and_nothing_else(machine: Machine) -> None:
    machine.up()
    machine.deploy()
    similar = {"Image": HELLO, "Cmd": ["sleep"], "Labels": {LOCAL: "f" * 32}}
    name = f"datum-{machine.id[:8]}-demo-web-default-dfw-9"
    assert machine.podman.call("POST", f"/v1.41/containers/create?name={name}", encode(similar))[0] == 201
    text = machine("local reset -y")
    assert "4 containers were removed." in text
    assert f"Images stay: {HELLO}." in text
    assert [entry["Names"] for entry in machine.podman.containers()] == [[f"/{name}"]]
    assert [network for network in machine.podman.networks() if network.startswith("datum-")] == []
    assert not Paths(machine.directory).containers.exists()


def test_containers_out_of_reach_hold_up_a_reset_unless_they_are_left(machine: Machine) -> None:
    machine.up()
    machine.deploy()
    label = f"{LOCAL}={machine.id}"
    machine("local down")
    machine.podman.stop()
    try:
        refused = machine("local reset -y", code=1)
        assert "the containers could not be removed, so nothing was" in refused
        assert "leave them behind with 'compute local reset --leave-containers'" in refused
        assert Paths(machine.directory).log.exists()
        waiting = machine.up()
        assert "which does not answer" in waiting
        assert "'compute local up --instances=simulated --leave-containers'" in waiting
        machine("local down")
        assert "cannot be removed now" in machine("local up --instances=simulated", code=1)
        assert label in machine("local reset -y --leave-containers")
    finally:
        machine.podman.start()
    assert len(machine.podman.containers()) == 4


def test_a_simulation_takes_over_and_gives_back(machine: Machine) -> None:
    machine.up()
    machine.deploy()
    machine("local down")
    assert "  Instances:  simulated\n" in machine.up("--instances=simulated")
    assert machine.podman.containers() == []
    machine("rollout status web --timeout=60s")
    assert machine.get()[2].endswith("(simulated)\n")
    machine("local down")
    text = machine.up()
    assert "answers; 'compute local down', then 'compute local up --instances=containers' runs them there" in text
    machine("local down")
    machine.up("--instances=containers")
    until("all run", lambda: list(machine.ours().values()) == ["running"] * 4, 60)
    until("they answer", lambda: machine.get()[2].startswith("hello from web-default-"), 30)
    assert "simulated" not in machine.get()[2]
