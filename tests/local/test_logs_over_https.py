"""Logs over HTTPS: with the token, until the server stops, and with clients that take nothing."""

import asyncio
import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from datum_compute.embedded.https.extensions import Extension
from datum_compute.federation.lines import STDOUT, Line, Origin
from datum_compute.federation.roles import PROJECT
from datum_compute.local.logs import Logs
from datum_compute.runtime import SystemClock
from datum_compute.telemetry.gateway import GROUP, ROOT, VERSION
from tests.https import DEMO, Background

API = {"query": '{datum_workload_name="api"}'}
ORIGIN = Origin("demo", "default", "api", "default", "DFW", "api-default-dfw-0", "uid-1", "app")


class Served:
    def __init__(self, directory: Path) -> None:
        self.logs = Logs(SystemClock())
        self.background = Background(directory, extensions=[Extension(GROUP, VERSION, PROJECT, self.logs.gateway)])

    def write(self, *texts: str) -> None:
        lines = [Line(time.time_ns(), STDOUT, text) for text in texts]
        self.background.read(lambda: self.logs.ring.add(ORIGIN, lines))

    def tail(self) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1",
            self.background.server.port,
            context=self.background.server.endpoint("root").tls(),
            timeout=20,
        )
        headers = {"Authorization": f"Bearer {self.background.credentials.token}"}
        connection.request("GET", f"{DEMO}{ROOT}tail?{urlencode(API)}", headers=headers)
        return connection, connection.getresponse()

    def open_tails(self) -> int:
        return self.background.read(lambda: sum(self.logs.gateway._tails.values()))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    served.background.read(lambda: served.logs.ring.started(ORIGIN, time.time_ns()))
    yield served
    served.background.close()


def texts(frame: bytes) -> list[str]:
    document: dict[str, Any] = msgspec.json.decode(frame)
    return [text for stream in document["streams"] for _, text in stream["values"]]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_lines_are_read_with_the_token_only(served: Served) -> None:
    served.write("hello")
    path = f"{DEMO}{ROOT}query_range?{urlencode(API)}"
    reply = served.background.ask("GET", path)
    assert reply.code == 200
    assert reply.json["data"]["result"][0]["values"][0][1] == "hello"
    refused = served.background.ask("GET", path, token="wrong")
    assert (refused.code, refused.json["kind"]) == (401, "Status")
    assert served.background.ask("GET", f"/planes/cell-dfw{ROOT}query_range?{urlencode(API)}").code == 404


def test_the_group_is_discovered_without_resources(served: Served) -> None:
    document = served.background.ask("GET", f"{DEMO}/apis/{GROUP}/{VERSION}").json
    assert (document["kind"], document["resources"]) == ("APIResourceList", [])


def test_a_line_arrives_as_soon_as_it_is_written(served: Served) -> None:
    served.write("before")
    connection, answer = served.tail()
    try:
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert texts(answer.readline()) == ["before"]
        served.write("after")
        assert texts(answer.readline()) == ["after"]
    finally:
        connection.close()
    wait_until(lambda: served.open_tails() == 0)


def test_a_tail_ends_in_an_orderly_way_when_the_server_stops(served: Served) -> None:
    connection, answer = served.tail()
    try:
        served.write("last")
        assert texts(answer.readline()) == ["last"]
        stopping = asyncio.run_coroutine_threadsafe(served.background.server.stop(), served.background.loop)
        assert answer.read() == b""
    finally:
        connection.close()
    stopping.result(timeout=20)


def test_a_client_that_takes_nothing_is_closed_and_holds_up_nobody(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datum_compute.telemetry.tail.STALL_SECONDS", 0.5)
    connection, _ = served.tail()
    other, answer = served.tail()
    try:
        sent = 0

        def is_closed() -> bool:
            nonlocal sent
            served.write(*(f"{number} {'x' * 1000}" for number in range(sent, sent + 100)))
            sent += 100
            while texts_of_frame := texts(answer.readline()):
                if int(texts_of_frame[-1].split()[0]) == sent - 1:
                    break
            return served.open_tails() == 1

        wait_until(is_closed)
        assert sent > 100
    finally:
        connection.close()
        other.close()
