"""Credentials that are rotated under open connections, and connections through a proxy."""

import asyncio
import base64
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.kube.access.credentials import EndpointCredentials
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Unavailable
from datum_compute.kube.files import write_private
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Answer, Call
from tests.https import (
    Proxy,
    Scripted,
    answering,
    client_certificate,
    open_stream,
    send_piece,
    server_tls,
)
from tests.kube.program import Program

GET = Call("GET", "/api/v1/namespaces")
POST = Call("POST", "/api/v1/namespaces", body=b"{}")


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return Credentials.ensure(tmp_path_factory.mktemp("identity"))


class Gate:
    """A server that lets one token in; `on_refusal` happens before a refusal is sent."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.on_refusal: Callable[[], object] = lambda: None
        self.server = Scripted(self._handle)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = self.server.requests[-1]
        await reader.readexactly(2 if b"Content-Length: 2\r\n" in head else 0)
        if f"Authorization: Bearer {self.token}\r\n".encode() not in head:
            self.on_refusal()
            await answering(b'{"message":"who are you"}', 401)(reader, writer)
        elif b"watch=true" in head:
            open_stream(writer)
            send_piece(writer, b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}\n')
            await reader.read()
        else:
            await answering(b"{}")(reader, writer)


@pytest.mark.parametrize("call", [GET, POST])
def test_a_refused_call_is_made_once_more_with_what_is_in_the_file_by_then(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    gate = Gate("two")
    gate.on_refusal = lambda: write_private(file, b"two")

    async def scenario() -> None:
        async with gate.server.serving({"token_file": str(file)}) as transport:
            assert (await transport.call(call)).code == 200
            assert (await transport.call(call)).code == 200

    asyncio.run(scenario())
    assert gate.server.sent("Authorization") == ["Bearer one", "Bearer two", "Bearer two"]


def test_a_one_shot_call_is_made_once_more_as_well(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    gate = Gate("two")
    gate.on_refusal = lambda: write_private(file, b"two")

    async def scenario() -> None:
        async with gate.server.listening():
            blocking = BlockingTransport(Endpoint(gate.server.url, token_file=str(file)))
            assert (await asyncio.to_thread(blocking.call, POST)).code == 200
            blocking.close()

    asyncio.run(scenario())
    assert gate.server.sent("Authorization") == ["Bearer one", "Bearer two"]


def test_a_call_that_is_refused_again_stays_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0")
    gate = Gate("never")
    gate.on_refusal = lambda: write_private(file, str(len(gate.server.requests)).encode())

    async def scenario() -> None:
        async with gate.server.serving({"token_file": str(file)}) as transport:
            assert (await transport.call(GET)).code == 401

    asyncio.run(scenario())
    assert gate.server.sent("Authorization") == ["Bearer 0", "Bearer 1"]


def test_a_refused_call_without_newer_credentials_is_made_once() -> None:
    gate = Gate("two")

    async def scenario() -> None:
        async with gate.server.serving({"token": "one"}) as transport:
            assert await transport.call(POST) == Answer(401, b'{"message":"who are you"}')

    asyncio.run(scenario())
    assert len(gate.server.requests) == 1


def test_a_watch_continues_with_the_rotated_token(tmp_path: Path) -> None:
    """The token is revoked while the watch runs, and the new one appears only after the first refusal."""
    file = tmp_path / "token"
    file.write_text("one")
    gate = Gate("one")
    gate.on_refusal = lambda: write_private(file, b"two")
    seen: list[str] = []

    async def scenario() -> None:
        async with gate.server.serving({"token_file": str(file)}) as transport:
            client = Client("plane", transport)
            async with client.watch(NAMESPACE, "5", timeout_seconds=60) as events:
                seen.append((await anext(events)).resource_version)
                gate.token = "two"
                gate.server.cut()
                with suppress(Unavailable):
                    await anext(events)
            async with client.watch(NAMESPACE, "7", timeout_seconds=60) as events:
                seen.append((await anext(events)).resource_version)

    asyncio.run(scenario())
    assert seen == ["7", "7"]
    assert gate.server.sent("Authorization") == ["Bearer one", "Bearer one", "Bearer two"]


def test_a_plugin_is_asked_again_when_its_token_is_refused(tmp_path: Path) -> None:
    program = Program(tmp_path, token="one")
    gate = Gate("two")
    gate.on_refusal = lambda: program.gives(token="two")

    async def scenario() -> None:
        async with gate.server.listening():
            endpoint = program.endpoint(gate.server.url)
            transport = HttpTransport(endpoint)
            answers = await asyncio.gather(*(transport.call(GET) for _ in range(5)))
            assert {answer.code for answer in answers} == {200}
            await transport.close()

    asyncio.run(scenario())
    assert program.runs == 2


def test_a_plugin_that_fails_makes_the_plane_unavailable_with_its_words(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.prints("", code=1, stderr="log in again")

    async def scenario() -> None:
        gate = Gate("one")
        async with gate.server.listening():
            transport = HttpTransport(program.endpoint(gate.server.url))
            with pytest.raises(Unavailable, match='plugin "plugin" failed with code 1: log in again'):
                await transport.call(GET)
            with pytest.raises(Unavailable, match="log in again"):
                async with transport.stream(GET):
                    pass
            await transport.close()
        assert gate.server.requests == []

    asyncio.run(scenario())


def test_transports_of_one_host_may_share_a_plugin(tmp_path: Path) -> None:
    program = Program(tmp_path, token="one")
    gate = Gate("one")

    async def scenario() -> None:
        async with gate.server.listening():
            endpoint = program.endpoint(gate.server.url)
            shared = EndpointCredentials(endpoint)
            for name in ("a", "b"):
                transport = HttpTransport(endpoint.at("/planes/{project}", project=name), credentials=shared)
                assert (await transport.call(GET)).code == 200
                await transport.close()

    asyncio.run(scenario())
    assert program.runs == 1
    assert [head.split()[1] for head in gate.server.requests] == [
        b"/planes/a/api/v1/namespaces",
        b"/planes/b/api/v1/namespaces",
    ]


# Client certificates


class Guests:
    """A server that asks for certificates and notes who came."""

    def __init__(self, identity: Credentials, *certificates: str) -> None:
        self.names: list[str] = []
        self.server = Scripted(self._handle, server_tls(identity, "".join(certificates)))

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.names.append(writer.get_extra_info("peercert")["subject"][0][0][1])
        await answering(b"{}")(reader, writer)


def test_a_client_certificate_says_who_calls(identity: Credentials) -> None:
    certificate, key = client_certificate("somebody")
    guests = Guests(identity, certificate)
    options: Json = {"ca_pem": identity.authority_pem, "client_cert": certificate, "client_key": key}

    async def scenario() -> None:
        async with guests.server.serving(options) as transport:
            assert (await transport.call(GET)).code == 200
            blocking = BlockingTransport(Endpoint(guests.server.url, **options))
            assert (await asyncio.to_thread(blocking.call, GET)).code == 200
            blocking.close()

    asyncio.run(scenario())
    assert guests.names == ["somebody", "somebody"]


def test_certificate_files_are_taken_up_when_both_are_replaced(identity: Credentials, tmp_path: Path) -> None:
    (old, old_key), (new, new_key) = client_certificate("old"), client_certificate("new")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    guests = Guests(identity, old, new)
    files = {
        "ca_pem": identity.authority_pem,
        "client_cert_file": str(certificate),
        "client_key_file": str(key),
    }

    async def scenario() -> None:
        async with guests.server.serving(files) as transport:
            for path, text in [(certificate, old), (key, old_key), (certificate, new), (key, new_key)]:
                write_private(path, text.encode())
                if key.exists():  # between the two steps of a rotation too
                    assert (await transport.call(GET)).code == 200

    asyncio.run(scenario())
    assert guests.names == ["old", "old", "new"]
    assert guests.server.connections == 2


def test_a_plugin_may_give_the_certificate_of_a_connection(identity: Credentials, tmp_path: Path) -> None:
    certificate, key = client_certificate("issued")
    program = Program(tmp_path, clientCertificateData=certificate, clientKeyData=key)
    guests = Guests(identity, certificate)

    async def scenario() -> None:
        plugin = program.endpoint("https://unused.test").plugin
        async with guests.server.serving({"ca_pem": identity.authority_pem, "plugin": plugin}) as transport:
            assert (await transport.call(GET)).code == 200

    asyncio.run(scenario())
    assert guests.names == ["issued"]


# Proxies


async def both(endpoint: Endpoint) -> list[Answer]:
    """What the two HTTP transports bring back."""
    transport = HttpTransport(endpoint)
    blocking = BlockingTransport(endpoint, pause=lambda _: None)
    try:
        return [await transport.call(GET), await asyncio.to_thread(blocking.call, GET)]
    finally:
        await transport.close()
        blocking.close()


@pytest.mark.parametrize("server_name", ["", "localhost"])
def test_connections_go_through_the_proxy(identity: Credentials, server_name: str) -> None:
    server, proxy = Scripted(answering(b"{}"), server_tls(identity)), Proxy()

    async def scenario() -> None:
        async with server.listening(), proxy.listening() as address:
            endpoint = Endpoint(
                server.url, ca_pem=identity.authority_pem, proxy=f"http://{address}", server_name=server_name
            )
            assert await both(endpoint) == [Answer(200, b"{}")] * 2
        assert proxy.tunnels == [f"127.0.0.1:{server.port}"] * 2

    asyncio.run(scenario())


def test_a_proxy_may_require_credentials(identity: Credentials) -> None:
    login = base64.b64encode(b"me:s3cret").decode()
    server, proxy = Scripted(answering(b"{}"), server_tls(identity)), Proxy(f"Basic {login}")

    async def scenario() -> None:
        async with server.listening(), proxy.listening() as address:

            def through(url: str) -> Endpoint:
                return Endpoint(server.url, ca_pem=identity.authority_pem, proxy=url)

            assert await both(through(f"http://me:s3cret@{address}")) == [Answer(200, b"{}")] * 2
            transport = HttpTransport(through(f"http://me:wr0ng@{address}"))
            with pytest.raises(Unavailable, match=r"the proxy refused to connect to .*: it answered 407") as error:
                await transport.call(GET)
            await transport.close()
            assert "wr0ng" not in str(error.value)

    asyncio.run(scenario())


def test_a_missing_proxy_is_named() -> None:
    async def scenario() -> None:
        async with Proxy().listening() as address:
            pass
        endpoint = Endpoint("https://server.test", proxy=f"http://{address}")
        transport, blocking = HttpTransport(endpoint), BlockingTransport(endpoint, pause=lambda _: None)
        with pytest.raises(Unavailable, match=r"the proxy to server\.test:443 cannot be reached"):
            await transport.call(GET)
        with pytest.raises(Unavailable, match=f"nothing listens on the proxy {address}"):
            await asyncio.to_thread(blocking.call, GET)
        await transport.close()

    asyncio.run(scenario())


def test_one_shot_calls_refuse_a_proxy_they_cannot_use() -> None:
    blocking = BlockingTransport(Endpoint("https://server.test", proxy="https://proxy.test"))
    with pytest.raises(KubeconfigError, match=r"the proxy of https://server\.test has no http:// address"):
        blocking.call(GET)
