"""The addresses of workloads on this machine, as the command and a browser see them, with a real federation."""

import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from datum_compute.cli.main import main
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.talk.local import Endpoint, Overview
from datum_compute.local import daemon
from datum_compute.local.state import Paths

pytestmark = pytest.mark.timeout(120)


class Result(NamedTuple):
    code: int
    out: str
    err: str
    pages: list[str]  # that a browser was opened with


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


Compute = Callable[..., Result]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("open") / "state"
    daemon.up(folder)
    yield folder
    daemon.down(folder)


@pytest.fixture(scope="module")
def compute(directory: Path) -> Compute:
    def run(line: str, *, terminal: bool = False, kubeconfig: str = "") -> Result:
        stdout, stderr = Terminal() if terminal else StringIO(), StringIO()
        pages: list[str] = []
        environ = {"KUBECONFIG": kubeconfig or str(daemon.kubeconfig_path(directory)), "TERM": "dumb"}
        environment = Environment(
            program="compute", environ=environ, stdin=StringIO(), stdout=stdout, stderr=stderr, browse=pages.append
        )
        code = main(line.split(), environment)
        return Result(code, stdout.getvalue(), stderr.getvalue(), pages)

    for line in (
        "deploy api --image=registry.example/api:1 --city=DFW,AMS --port=8080",
        "deploy batch --image=registry.example/batch:1 --city=DFW",
    ):
        assert run(line).code == 0
    return run


def get(port: int, host: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/", headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("X-Datum-City", ""), answer.read().decode()
    finally:
        connection.close()


def test_the_address_is_printed_and_opened_only_in_a_terminal(compute: Compute, directory: Path) -> None:
    running = daemon.status(directory)
    assert running is not None
    url = f"http://api.localhost:{running.proxy}/"
    assert compute("open api") == (0, f"{url}\n", "", [])
    assert compute("open api --print", terminal=True).pages == []
    assert compute("open api", terminal=True).pages == [url]
    assert compute("open api --city=ams").out == f"http://ams.api.localhost:{running.proxy}/\n"


def test_the_address_answers(compute: Compute, directory: Path) -> None:
    running = daemon.status(directory)
    assert running is not None
    assert get(running.proxy, f"api.localhost:{running.proxy}") == (
        200,
        "DFW",
        "hello from api-default-dfw-0 in DFW (simulated)\n",
    )
    assert get(running.proxy, "ams.api.localhost")[1] == "AMS"
    status, _, text = get(running.proxy, "batch.localhost")
    assert status == 503
    assert "batch-default-dfw-0 has no TCP port (deploy with --port)" in text
    assert get(running.proxy, f"127.0.0.1:{running.proxy}")[0] == 421


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        ("open nope", 3, 'workload "nope" not found in project demo'),
        ("open api --city=SIN", 3, 'workload "api" does not run in SIN; choose one of AMS, DFW'),
        ("open batch", 1, "has no TCP port; name the one that its container listens on with --port"),
    ],
)
def test_what_cannot_be_opened_is_explained(compute: Compute, line: str, code: int, sentence: str) -> None:
    result = compute(line, terminal=True)
    assert (result.code, result.out, result.pages) == (code, "", [])
    assert sentence in result.err


def test_an_instance_of_another_project_makes_nothing_available(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, own = (Endpoint(project, "api", "DFW", "api-0", project == "other", ()) for project in ("other", "demo"))
    overview = Overview("demo", 8088, "containers", (other, own))
    monkeypatch.setattr("datum_compute.cli.commands.open.find_overview", lambda run: overview)
    assert "No instance of api is available yet" in compute("open api").err


def test_a_deploy_ends_with_the_address(compute: Compute, directory: Path) -> None:
    running = daemon.status(directory)
    assert running is not None
    result = compute("deploy api --image=registry.example/api:2")
    assert result.out.splitlines()[-1] == f"    Open:        http://api.localhost:{running.proxy}/"
    assert "Open:" not in compute("deploy batch --image=registry.example/batch:2").out


def test_an_instance_that_is_simulated_has_no_port_here(compute: Compute) -> None:
    assert "\nPorts " not in compute("instances describe api-default-dfw-0").out


def test_the_port_is_the_same_after_a_restart(compute: Compute, directory: Path) -> None:
    daemon.down(directory)
    own = unused_port()  # every other federation of the tests would like to have the usual one
    Paths(directory).proxy_port.write_text(str(own))
    Paths(directory).proxy_port.chmod(0o600)
    assert [daemon.up(directory).proxy, daemon.down(directory), daemon.up(directory).proxy] == [own, True, own]
    assert Paths(directory).proxy_port.read_text() == str(own)
    assert json.loads(Paths(directory).running.read_bytes())["proxy"] == own
    assert os.stat(Paths(directory).proxy_port).st_mode & 0o777 == 0o600


def unused_port() -> int:
    """Below those that the kernel gives to clients, which may take one at any moment."""
    for port in range(15_000 + os.getpid() % 4_000, 20_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
