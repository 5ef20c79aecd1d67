"""`kube.blocking` over real sockets, with a scripted server."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.blocking import BlockingTransport, Exchange
from datum_compute.kube.errors import Gone, Timeout, Unavailable
from datum_compute.kube.transport import Answer, Call

GET = Call("GET", "/api/v1/things", {"limit": "5"})
PUT = Call("PUT", "/api/v1/things/a", body=b"{}")


def response(code: int, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class ScriptedServer:
    """Answers each request with the next scripted bytes; None closes the connection without an answer."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.tls: ssl.SSLContext | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/root"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(OSError):
                if self.tls is None:
                    self._answer(connection)
                else:
                    with self.tls.wrap_socket(connection, server_side=True) as secured:
                        self._answer(secured)

    def _answer(self, connection: socket.socket) -> None:
        while self.answers:
            request = self._request(connection)
            if not request:
                return
            self.requests.append(request)
            answer = self.answers.pop(0)
            if answer is None:
                return
            connection.sendall(answer)
            if b"Connection: close" in answer or b"%SHORT%" in answer:
                return

    @staticmethod
    def _request(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return b""
            data += piece
        return data

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def make(*answers: bytes | None) -> ScriptedServer:
        servers.append(ScriptedServer(*answers))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


class Client:
    def __init__(self, server: str, **options: object) -> None:
        self.pauses: list[float] = []
        self.traced: list[Exchange] = []
        endpoint = Endpoint(server, token="s3cret")
        self.transport = BlockingTransport(endpoint, pause=self.pauses.append, trace=self.traced.append, **options)  # type: ignore[arg-type]

    def __call__(self, call: Call) -> Answer:
        try:
            return self.transport.call(call)
        finally:
            self.transport.close()


def test_a_call_goes_below_the_root_with_its_token(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(200, b'{"items":[]}'))
    assert Client(server.url, agent="me/1")(GET) == Answer(200, b'{"items":[]}')
    [request] = server.requests
    assert request.startswith(b"GET /root/api/v1/things?limit=5 HTTP/1.1\r\n")
    assert b"Authorization: Bearer s3cret\r\n" in request
    assert b"User-Agent: me/1\r\n" in request


def test_the_connection_is_reused(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(200), response(200), response(200))
    client = Client(server.url)
    for _ in range(3):
        client.transport.call(GET)
    client.transport.close()
    assert server.connections == 1


def test_a_connection_that_the_server_closed_is_replaced_before_a_write(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(200, b"{}", "Connection: close"), response(200))
    client = Client(server.url)
    client.transport.call(GET)
    assert client(PUT).code == 200
    assert server.connections == 2


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_read_is_repeated_four_times(serve: Callable[..., ScriptedServer], code: int) -> None:
    server = serve(*[response(code)] * 4, response(200))
    client = Client(server.url)
    assert client(GET).code == 200
    assert [round(pause, 1) for pause in client.pauses] == sorted(round(pause, 1) for pause in client.pauses)
    assert len(client.pauses) == 4


def test_the_fifth_bad_answer_is_returned(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(*[response(503)] * 5, response(200))
    assert Client(server.url)(GET).code == 503


@pytest.mark.parametrize("code", [400, 403, 404, 409, 410, 422])
def test_a_lasting_error_is_not_retried(serve: Callable[..., ScriptedServer], code: int) -> None:
    server = serve(response(code), response(200))
    assert Client(server.url)(GET).code == code


def test_retry_after_is_respected(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(429, b"{}", "Retry-After: 7"), response(429, b"{}", "Retry-After: 3600"), response(200))
    client = Client(server.url, timeout=60.0)
    client(GET)
    assert client.pauses == [7.0, 30.0]


@pytest.mark.parametrize(
    "answer", [None, b"HTTP/1.1 200 X\r\nContent-Length: 500\r\n\r\n{%SHORT%", b"%SHORT% nonsense\r\n\r\n"]
)
def test_a_read_whose_answer_breaks_off_is_repeated(serve: Callable[..., ScriptedServer], answer: bytes | None) -> None:
    server = serve(answer, answer, response(200))
    assert Client(server.url)(GET).code == 200


@pytest.mark.parametrize("answer", [None, response(500), b"HTTP/1.1 200 X\r\nContent-Length: 500\r\n\r\n{%SHORT%"])
def test_a_write_is_never_repeated(serve: Callable[..., ScriptedServer], answer: bytes | None) -> None:
    server = serve(answer, response(200))
    client = Client(server.url)
    if answer == response(500):
        assert client(PUT).code == 500
    else:
        with pytest.raises(Unavailable, match="ended the connection before its answer was complete"):
            client(PUT)
    assert len(server.requests) == 1


def test_an_unreachable_address_is_an_error(serve: Callable[..., ScriptedServer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}")
    with pytest.raises(Unavailable, match=f"nothing listens on 127.0.0.1:{port}"):
        client(GET)
    assert len(client.pauses) == 4
    assert [(exchange.code, exchange.error) for exchange in client.traced] == [
        (0, f"nothing listens on 127.0.0.1:{port}")
    ] * 5


def test_a_stream_that_fails_to_connect_is_traced_too(serve: Callable[..., ScriptedServer]) -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        client.transport.stream(GET, silence=5)
    assert [exchange.error for exchange in client.traced] == ["nothing listens on 127.0.0.1:1"]


def test_a_call_without_an_answer_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.01)
        with pytest.raises(Timeout, match="no answer from"):
            client(GET)


class Rotated:
    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def authorization(self) -> str:
        return f"Bearer {self.tokens[0]}"

    def renew(self) -> bool:
        self.tokens.pop(0)
        return bool(self.tokens)


def test_a_refused_token_is_renewed_once_for_writes_too(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(401), response(200))
    assert Client(server.url, credentials=Rotated("old", "new"))(PUT).code == 200
    assert b"Bearer new" in server.requests[1]


def test_a_token_that_is_refused_again_stays_refused(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(401), response(401), response(200))
    assert Client(server.url, credentials=Rotated("old", "new", "newer"))(GET).code == 401


def test_a_token_file_is_read_again_when_it_changes(serve: Callable[..., ScriptedServer], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    server = serve(response(200), response(200))
    transport = BlockingTransport(Endpoint(server.url, token_file=str(file)))
    transport.call(GET)
    file.write_text("second")
    transport.call(GET)
    transport.close()
    assert [b"first" in request for request in server.requests] == [True, False]


def test_a_trace_shows_calls_and_never_credentials(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(200, b'{"a":1}'))
    client = Client(server.url)
    client(GET)
    [exchange] = client.traced
    assert (exchange.call, exchange.code, exchange.body) == (GET, 200, b'{"a":1}')
    assert "s3cret" not in repr(exchange)


def test_warnings_of_the_server_come_with_the_answer(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(response(200, b"{}", 'Warning: 299 - "unknown field \\"spec.x\\""', 'Warning: 299 - "and more"'))
    assert Client(server.url)(GET).warnings == ('unknown field "spec.x"', "and more")


def chunked(*lines: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%s\n\r\n" % (len(line) + 1, line) for line in lines)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


def test_a_stream_is_read_line_by_line(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(chunked(b'{"n":1}', b'{"n":2}') + b"0\r\n\r\n")
    with Client(server.url).transport.stream(GET, silence=5) as stream:
        assert list(stream) == [b'{"n":1}\n', b'{"n":2}\n']


def test_a_stream_that_is_refused_says_why(serve: Callable[..., ScriptedServer]) -> None:
    status = b'{"kind":"Status","reason":"Expired","message":"too old","code":410}'
    server = serve(response(410, status))
    with pytest.raises(Gone, match="too old"):
        Client(server.url).transport.stream(GET, silence=5)


def test_a_silent_stream_ends_in_time(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(chunked(b'{"n":1}'), response(200))
    with Client(server.url).transport.stream(GET, silence=0.05) as stream:
        lines = iter(stream)
        assert next(lines) == b'{"n":1}\n'
        with pytest.raises(Timeout):
            next(lines)


def test_closing_a_stream_wakes_the_thread_that_reads_it(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(chunked(b'{"n":1}'), response(200))
    begun = threading.Event()
    got: list[bytes] = []
    with Client(server.url).transport.stream(GET, silence=30) as stream:

        def read() -> None:
            for item in stream:
                got.append(item)
                begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(10)
        stream.close()
        reader.join(10)
        assert not reader.is_alive()
    assert got == [b'{"n":1}\n']


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return Credentials.ensure(tmp_path_factory.mktemp("identity"))


@pytest.fixture
def secure(identity: Credentials, serve: Callable[..., ScriptedServer]) -> ScriptedServer:
    server = serve(response(200))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate, identity.key)
    server.tls = context
    server.url = server.url.replace("http:", "https:")
    return server


def test_a_certificate_of_the_given_authority_is_trusted(identity: Credentials, secure: ScriptedServer) -> None:
    transport = BlockingTransport(Endpoint(secure.url, ca_pem=identity.authority_pem))
    assert transport.call(GET).code == 200
    transport.close()


def test_the_server_name_of_the_certificate_can_be_given(identity: Credentials, secure: ScriptedServer) -> None:
    transport = BlockingTransport(Endpoint(secure.url, ca_pem=identity.authority_pem, server_name="localhost"))
    assert transport.call(GET).code == 200
    transport.close()


def test_an_untrusted_certificate_is_refused_at_once(secure: ScriptedServer) -> None:
    client = Client(secure.url)
    with pytest.raises(Unavailable, match=r"the certificate of 127.0.0.1:[0-9]+ is not trusted"):
        client(GET)
    assert client.pauses == []


def test_verification_can_be_switched_off(secure: ScriptedServer) -> None:
    transport = BlockingTransport(Endpoint(secure.url, insecure=True))
    assert transport.call(GET).code == 200
    transport.close()
