"""No silence without a word: a server or a helper that hangs is named after five seconds, and given up in time."""

import os
import threading
from pathlib import Path

import pytest

from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer
from tests.cli.conftest import Compute, FakeClock, World, kubeconfig
from tests.cli.server import ApiServer, Rule
from tests.cli.test_bad_servers import elsewhere, listening, until_it_hangs_up


@pytest.fixture
def shop(world: World) -> World:
    world.settled()
    return world


def waiting_for(compute: Compute, api: ApiServer) -> str:
    address = api.url.removeprefix("http://")
    return f'Still waiting for {address} (context "project-demo" of {compute.environ["KUBECONFIG"]})...\n'


@pytest.mark.parametrize("words", [["workloads"], ["status", "shop"], ["instances", "-o", "json"], ["quota"]])
def test_a_slow_server_is_named_once(shop: World, compute: Compute, clock: FakeClock, words: list[str]) -> None:
    shop.api.before("GET", "/", lambda: clock.turn(6), times=2)
    result = compute(*words)
    assert (result.code, result.err) == (0, waiting_for(compute, shop.api))


def test_a_slow_write_is_named_too(shop: World, compute: Compute, clock: FakeClock) -> None:
    shop.api.before("PUT", "/workloads", lambda: clock.turn(6))
    result = compute("scale", "shop", "--min=3")
    assert (result.code, result.err) == (0, waiting_for(compute, shop.api))


def test_an_answer_in_time_is_not_announced(shop: World, compute: Compute, clock: FakeClock) -> None:
    shop.api.before("GET", "/", lambda: clock.turn(4), times=3)
    assert compute("workloads").err == ""


def test_quiet_leaves_the_announcement_out(shop: World, compute: Compute, clock: FakeClock) -> None:
    shop.api.before("GET", "/", lambda: clock.turn(6))
    assert compute("workloads", "-q").err == ""


def test_tries_together_take_no_longer_than_one_answer_may(shop: World, compute: Compute, clock: FakeClock) -> None:
    """Each try fails after 12 seconds: 30 seconds end in the third."""
    busy = Answer(503, encode({"kind": "Status", "code": 503, "message": "busy"}))

    def late() -> Answer:
        clock.turn(12)
        return busy

    shop.api.rules += [Rule("GET", "/", late)] * 5
    result = compute("workloads")
    assert result.code == 1
    assert "Error: checking access to compute: no answer from " in result.err
    assert len(shop.api.requests) == 3


def test_a_server_that_hangs_is_called_once(compute: Compute, tmp_path: Path) -> None:
    connections = []

    def hang(connection: object) -> None:
        connections.append(connection)
        until_it_hangs_up(connection)  # type: ignore[arg-type]

    with listening(hang) as port:
        result = elsewhere(compute, tmp_path, port, "workloads", "--request-timeout=1s")
    assert result.code == 1
    assert f"no answer from 127.0.0.1:{port} in time" in result.err
    assert len(connections) == 1


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_server_that_begins_an_answer_is_given_up_in_time_as_well(
    compute: Compute, clock: FakeClock, tmp_path: Path, start: bytes
) -> None:
    def trickle(connection: object) -> None:
        connection.recv(65536)  # type: ignore[attr-defined]
        connection.sendall(start)  # type: ignore[attr-defined]
        clock.turn(31)
        until_it_hangs_up(connection)  # type: ignore[arg-type]

    with listening(trickle) as port:
        result = elsewhere(compute, tmp_path, port, "workloads")
    assert result.code == 1
    assert f"no answer from 127.0.0.1:{port} in time" in result.err.splitlines()[-1]
    assert clock.slept == []


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    """A credentials helper that reports when it is called, and answers when it is released."""
    for name in ("asked", "go"):
        os.mkfifo(tmp_path / name)
    path = tmp_path / "datumctl"
    path.write_text(f"#!/bin/sh\necho asked > '{tmp_path}/asked'\ncat '{tmp_path}/go'\n")
    path.chmod(0o755)
    return path


def test_a_slow_helper_is_named(shop: World, compute: Compute, clock: FakeClock, helper: Path, tmp_path: Path) -> None:
    def meanwhile() -> None:
        (tmp_path / "asked").read_text()
        clock.turn(6)
        (tmp_path / "go").write_text("token\n")

    thread = threading.Thread(target=meanwhile, daemon=True)
    thread.start()
    environ = {"DATUM_API_HOST": shop.api.url, "DATUM_PROJECT": "demo", "DATUM_CREDENTIALS_HELPER": str(helper)}
    result = compute("workloads", environ=environ | {"DATUM_COMPUTE_SKIP_ACCESS_CHECK": "1"})
    thread.join(60)
    assert (result.code, result.err) == (0, "Still waiting for credentials (DATUM_API_HOST)...\n")


def test_a_helper_that_hangs_is_killed(shop: World, compute: Compute, tmp_path: Path) -> None:
    path = tmp_path / "datumctl"
    path.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    path.chmod(0o755)
    environ = {"DATUM_API_HOST": shop.api.url, "DATUM_PROJECT": "demo", "DATUM_CREDENTIALS_HELPER": str(path)}
    result = compute("workloads", "--request-timeout=1s", environ=environ)
    assert (result.code, result.out) == (7, "")
    assert result.err == (
        f"Error: getting credentials: {path} gave no token in 1s; run it by hand to see why\n\n{path} auth get-token\n"
    )


def test_a_credential_plugin_that_hangs_is_given_up(shop: World, compute: Compute, tmp_path: Path) -> None:
    program = tmp_path / "plugin"
    program.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
    program.chmod(0o755)
    path = kubeconfig(tmp_path / "k", shop.api.project_url())
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    path.write_text(path.read_text().replace('{"token": "s3cret"}', str({"exec": exec_}).replace("'", '"')))
    result = compute("workloads", "--request-timeout=1s", f"--kubeconfig={path}")
    assert (result.code, result.out) == (7, "")
    assert result.err == (
        'Error: the credential plugin "plugin" printed nothing in 1 seconds; run it by hand to see why\n'
    )
