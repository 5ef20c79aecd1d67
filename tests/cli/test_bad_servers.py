"""Servers that refuse, stumble, break off, say nothing or are not there: sensible retries, then one clear line."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.workload.history import name_of
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer
from tests.cli.conftest import IMAGE, Compute, FakeClock, Result, World, kubeconfig
from tests.cli.server import ApiServer, Rule

READS = (
    ["workloads"],
    ["workloads", "describe", "shop"],
    ["instances"],
    ["status", "shop"],
    ["rollout", "history", "shop"],
    ["quota"],
    ["cities"],
    ["access"],
)
WRITES = (
    ["scale", "shop", "--min=3"],
    ["restart", "shop"],
    ["rollout", "pause", "shop"],
    ["deploy", "shop", "--image=other", "--no-wait"],
)
OF_WORKLOAD = "/workloads"


def ids(words: list[str]) -> str:
    return " ".join(words)


def is_one_line(result: Result) -> bool:
    """`Error: ` and a sentence; indented details and one command to run next may follow."""
    first, *rest = result.err.splitlines()
    return first.startswith("Error: ") and "Traceback" not in result.err and len([line for line in rest if line]) <= 2


@pytest.fixture
def shop(world: World) -> World:
    world.settled()
    return world


# A server that answers, and not well.


@pytest.mark.parametrize("words", READS, ids=ids)
@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_read_survives_four_bad_answers(
    shop: World, compute: Compute, clock: FakeClock, words: list[str], code: int
) -> None:
    shop.api.answer("GET", "/", code, "try later", times=4)
    result = compute(*words)
    assert (result.code, result.err) == (0, "")
    assert len(clock.slept) == 4
    assert sum(clock.slept) < 5


@pytest.mark.parametrize("words", READS, ids=ids)
@pytest.mark.parametrize("code", [429, 500])
def test_a_read_that_fails_five_times_is_one_line(shop: World, compute: Compute, words: list[str], code: int) -> None:
    shop.api.answer("GET", "/", code, "the disk is full", times=100)
    result = compute(*words)
    assert (result.code, result.out) == (1, "")
    assert is_one_line(result)
    assert "the disk is full" in result.err
    assert len(shop.api.requests) == 5


@pytest.mark.parametrize("words", WRITES, ids=ids)
def test_a_write_that_was_refused_temporarily_is_retried_when_the_server_asks(
    shop: World, compute: Compute, clock: FakeClock, words: list[str]
) -> None:
    later = Answer(429, encode({"kind": "Status", "code": 429, "message": "slow down"}), retry_after=7)
    shop.api.rules += [Rule("PUT", OF_WORKLOAD, lambda: later)] * 2
    result = compute(*words)
    assert result.code == 0
    assert clock.slept[:2] == [7.0, 7.0]


def test_a_server_cannot_make_a_command_wait_forever(shop: World, compute: Compute, clock: FakeClock) -> None:
    later = Answer(429, encode({"kind": "Status", "code": 429, "message": "slow down"}), retry_after=86400)
    shop.api.rules += [Rule("GET", OF_WORKLOAD, lambda: later)] * 100
    result = compute("workloads")
    assert (result.code, result.err) == (1, "Error: listing workloads: slow down\n")
    assert max(clock.slept) == 30.0
    assert sum(clock.slept) <= 120.0


@pytest.mark.parametrize("words", WRITES, ids=ids)
def test_a_failed_write_is_reported_and_not_retried(shop: World, compute: Compute, words: list[str]) -> None:
    shop.api.answer("PUT", OF_WORKLOAD, 500, "boom")
    result = compute(*words)
    assert (result.code, result.err) == (1, 'Error: updating workload "shop": boom\n')
    assert [seen.method for seen in shop.api.writes()] == ["PUT"]


@pytest.mark.parametrize("words", WRITES, ids=ids)
def test_a_conflict_is_read_and_edited_again(shop: World, compute: Compute, words: list[str]) -> None:
    shop.api.answer("PUT", OF_WORKLOAD, 409, "modified", times=4, reason="Conflict")
    assert compute(*words).code == 0


@pytest.mark.parametrize("words", WRITES, ids=ids)
def test_five_conflicts_are_enough(shop: World, compute: Compute, words: list[str]) -> None:
    shop.api.answer("PUT", OF_WORKLOAD, 409, "modified", times=100, reason="Conflict")
    result = compute(*words)
    assert result.code == 4
    assert result.err == 'Error: workload "shop" was changed by someone else at the same time; try again\n'
    assert len(shop.api.writes()) == 5


@pytest.mark.parametrize("code", [409, 429, 500])
def test_a_history_that_cannot_be_written_never_fails_the_command(api: ApiServer, compute: Compute, code: int) -> None:
    api.answer("POST", "/configmaps", code, "no", times=100, reason="Conflict" if code == 409 else "")
    result = compute("deploy", "shop", f"--image={IMAGE}", "--city=DFW", "--no-wait")
    assert result.code == 0
    assert "warning: could not write revision history" in result.err
    assert api.get(WORKLOAD, "shop").name == "shop"
    assert name_of("shop") not in {config_map.name for config_map in api.all(CONFIG_MAP)}


# A server that does not finish its sentence.


@pytest.mark.parametrize("words", READS, ids=ids)
@pytest.mark.parametrize(
    "body", [b"", b'{"kind":"WorkloadList","items":[{"meta', b"<html>502</html>", b"\xff\xfe", b"[]"]
)
def test_a_nonsensical_answer_is_reported_in_one_line(
    shop: World, compute: Compute, words: list[str], body: bytes
) -> None:
    shop.api.rules += [Rule("GET", "/", lambda: Answer(200, body))] * 100
    result = compute(*words)
    assert result.code == 1
    assert is_one_line(result)
    assert "makes no sense" in result.err


@pytest.mark.parametrize("words", READS, ids=ids)
def test_a_read_that_breaks_off_is_retried(shop: World, compute: Compute, clock: FakeClock, words: list[str]) -> None:
    shop.api.rules += [Rule("GET", "/", gone)] * 4
    assert compute(*words).code == 0
    assert len(clock.slept) == 4


@pytest.mark.parametrize("words", WRITES, ids=ids)
def test_the_outcome_of_a_write_that_breaks_off_is_unknown(shop: World, compute: Compute, words: list[str]) -> None:
    shop.api.rules.append(Rule("PUT", OF_WORKLOAD, gone))
    result = compute(*words)
    assert result.code == 1
    first, second = result.err.splitlines()
    assert first.startswith('Error: updating workload "shop": ')
    assert "ended the connection before its answer was complete" in first
    assert second == "  It is not known whether the change was made; check before you try again."
    assert [seen.method for seen in shop.api.writes()] == ["PUT"]


def gone() -> Answer:
    raise ConnectionAbortedError


# A server that says nothing, or is not there.


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Each connection is handed to `serve`, until the test is over."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def elsewhere(compute: Compute, folder: Path, port: int, *words: str) -> Result:
    path = kubeconfig(folder / "elsewhere", f"http://127.0.0.1:{port}")
    return compute(*words, "--kubeconfig", str(path))


def until_it_hangs_up(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def test_a_server_that_never_answers(compute: Compute, clock: FakeClock, tmp_path: Path) -> None:
    with listening(until_it_hangs_up) as port:
        result = elsewhere(compute, tmp_path, port, "workloads", "--request-timeout=1s")
    assert result.code == 1
    assert result.err == (
        f"Error: checking access to compute: no answer from 127.0.0.1:{port} in time "
        f'(context "project-demo" of {tmp_path / "elsewhere"})\n'
    )
    assert clock.slept == []


def test_a_server_that_hangs_up_at_once(compute: Compute, clock: FakeClock, tmp_path: Path) -> None:
    with listening(lambda connection: None) as port:
        result = elsewhere(compute, tmp_path, port, "workloads")
    assert result.code == 1
    assert is_one_line(result)
    assert "ended the connection before its answer was complete" in result.err
    assert len(clock.slept) == 4


def test_a_server_that_speaks_something_else(compute: Compute, tmp_path: Path) -> None:
    with listening(lambda connection: connection.sendall(b"220 mail.example ESMTP\r\n")) as port:
        result = elsewhere(compute, tmp_path, port, "workloads")
    assert result.code == 1
    assert is_one_line(result)


def test_a_closed_port_is_an_error(compute: Compute, clock: FakeClock, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = elsewhere(compute, tmp_path, port, "workloads")
    assert (result.code, result.err) == (
        1,
        f"Error: checking access to compute: nothing listens on 127.0.0.1:{port} "
        f'(context "project-demo" of {tmp_path / "elsewhere"})\n',
    )
    assert len(clock.slept) == 4
