"""API groups that are answered by handlers: who is let in, what discovery shows, and how answers end."""

import asyncio
import http.client
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from datum_compute.embedded.https.application import Application
from datum_compute.embedded.https.extensions import Extension, Message, Receive, Scope, Send
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.errors import Forbidden
from datum_compute.local.engine import compute_engine
from datum_compute.runtime import SystemClock
from datum_compute.runtime.serving.connections import Limits
from tests.https import DEMO, Background

ROOT = "/apis/echo.example.com/v1"


async def echo(plane: str, path: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was given; some paths fail, or go on until the client has gone."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    if path.endswith("/forbidden"):
        raise Forbidden("nobody may")
    if path.endswith("/broken"):
        raise RuntimeError("broken")
    follows = path.endswith("/follow")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    body = msgspec.json.encode([plane, path, scope["method"], scope["query_string"].decode()])
    await send({"type": "http.response.body", "body": body, "more_body": follows})
    if follows:
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b" end"})


ECHO = Extension("echo.example.com", "v1", PROJECT, echo, websockets=True)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    folder = tmp_path_factory.mktemp("extensions")
    background = Background(folder, extensions=[ECHO], documents={"/about/v1/self": lambda: {"answer": 42}})
    yield background
    background.close()


def test_a_handler_gets_the_plane_and_the_path_below_its_root(api: Background) -> None:
    for root in (DEMO, "/projects/demo/control-plane", "/planes/demo"):
        reply = api.ask("GET", f"{root}{ROOT}/some/path?query=1")
        assert reply.code == 200
        assert msgspec.json.decode(reply.body) == ["demo", f"{ROOT}/some/path", "GET", "query=1"]


def test_a_document_is_read_with_the_token_and_never_written(api: Background) -> None:
    assert api.ask("GET", "/about/v1/self").json == {"answer": 42}
    assert api.ask("GET", "/about/v1/self", token="wrong").code == 401
    assert api.ask("POST", "/about/v1/self", {"answer": 43}).code == 405
    assert api.ask("GET", "/about/v1/other").code == 404
    assert api.ask("GET", f"{DEMO}/about/v1/self").code == 404, "it belongs to no plane"


def test_a_handler_is_not_reached_without_the_token(api: Background) -> None:
    reply = api.ask("GET", f"{DEMO}{ROOT}/some/path", token="wrong")
    assert (reply.code, reply.json["reason"]) == (401, "Unauthorized")


def test_an_error_of_a_handler_is_a_status(api: Background) -> None:
    assert api.ask("GET", f"{DEMO}{ROOT}/forbidden").json["message"] == "nobody may"
    broken = api.ask("GET", f"{DEMO}{ROOT}/broken")
    assert (broken.code, broken.json["reason"]) == (500, "InternalError")


def test_other_planes_do_not_serve_it(api: Background) -> None:
    for root in ("", "/planes/hub", "/planes/cell-dfw"):
        assert api.ask("GET", f"{root}{ROOT}/some/path").code == 404
        assert api.ask("GET", f"{root}{ROOT}").code == 404


def test_discovery_shows_the_group_without_resources(api: Background) -> None:
    for path in (ROOT, f"{ROOT}/"):
        document = api.ask("GET", f"{DEMO}{path}").json
        assert document == {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": "echo.example.com/v1",
            "resources": [],
        }
    groups = [group["name"] for group in api.ask("GET", f"{DEMO}/apis").json["groups"]]
    assert groups.count("echo.example.com") == 1
    assert api.ask("GET", f"{DEMO}/apis/echo.example.com").json["preferredVersion"]["version"] == "v1"
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    whole = api.ask("GET", f"{DEMO}/apis", headers={"Accept": accept}).json
    [group] = [item for item in whole["items"] if item["metadata"]["name"] == "echo.example.com"]
    assert group["versions"] == [{"version": "v1", "resources": [], "freshness": "Current"}]
    assert "echo.example.com" not in [group["name"] for group in api.ask("GET", "/planes/hub/apis").json["groups"]]


def test_an_endless_answer_ends_when_the_server_stops(tmp_path: Any) -> None:
    background = Background(tmp_path, extensions=[ECHO])
    connection = http.client.HTTPSConnection(
        "127.0.0.1", background.server.port, context=background.server.endpoint("root").tls(), timeout=20
    )
    try:
        headers = {"Authorization": f"Bearer {background.credentials.token}"}
        connection.request("GET", f"{DEMO}{ROOT}/follow", headers=headers)
        answer = connection.getresponse()
        assert answer.read(1) == b"["
        stopping = asyncio.run_coroutine_threadsafe(background.server.stop(), background.loop)
        assert answer.read().endswith(b" end")
        connection.close()
        stopping.result(timeout=20)
    finally:
        connection.close()
        background.close()


# WebSockets


def websocket(path: str, token: str) -> list[Message]:
    """What the application sends for a handshake."""
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        messages.append(message)

    async def answer() -> None:
        engine = compute_engine()
        engine.serve("demo", PROJECT)
        application = Application(engine, "secret", SystemClock(), lambda: True, Limits(), [ECHO])
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
        }
        await application(scope, receive, send)
        engine.close()

    asyncio.run(answer())
    return messages


def test_a_websocket_reaches_the_handler() -> None:
    assert websocket(f"{DEMO}{ROOT}/socket", "secret") == [{"type": "websocket.accept"}]


@pytest.mark.parametrize(
    ("path", "token", "code"),
    [(f"{DEMO}{ROOT}/socket", "wrong", 401), (f"{DEMO}/api/v1/namespaces", "secret", 404)],
)
def test_a_refused_websocket_is_answered_as_any_request(path: str, token: str, code: int) -> None:
    start, body = websocket(path, token)
    assert (start["type"], start["status"]) == ("http.response.start", code)
    assert body["type"] == "http.response.body"
    assert msgspec.json.decode(body["body"])["code"] == code


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_a_client_changes_to_a_websocket_where_a_handler_has_one(api: Background) -> None:
    assert api.ask("GET", f"{DEMO}{ROOT}/socket", headers=HANDSHAKE).code == 101


def test_a_client_without_the_token_gets_no_websocket(api: Background) -> None:
    refused = api.ask("GET", f"{DEMO}{ROOT}/socket", headers=HANDSHAKE, token="wrong")
    assert (refused.code, refused.json["kind"]) == (401, "Status")


@pytest.mark.parametrize("path", ["/readyz", f"{DEMO}/api", f"/planes/hub{ROOT}/socket"])
def test_elsewhere_a_request_for_a_websocket_is_any_request(api: Background, path: str) -> None:
    assert api.ask("GET", path, headers=HANDSHAKE).body == api.ask("GET", path).body


# A failure after the answer began


def test_a_failure_after_the_answer_began_sends_no_second_answer() -> None:
    async def failing(plane: str, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("broken")

    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def answer(receive: Callable[[], Awaitable[Message]]) -> None:
        engine = compute_engine()
        engine.serve("demo", PROJECT)
        extension = Extension("echo.example.com", "v1", PROJECT, failing)
        application = Application(engine, "secret", SystemClock(), lambda: True, Limits(), [extension])
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"{DEMO}{ROOT}/x",
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer secret")],
        }
        await application(scope, receive, send)
        engine.close()

    async def receive() -> Message:
        return {"type": "http.request"}

    asyncio.run(answer(receive))
    assert [message["type"] for message in messages] == ["http.response.start"]
