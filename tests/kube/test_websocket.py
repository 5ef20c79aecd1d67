"""A WebSocket without an event loop: how it is asked for, and what it makes of what a server sends."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request, TextMessage

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.blocking import BlockingTransport, Exchange
from datum_compute.kube.errors import ApiError, Forbidden, MethodNotAllowed, TooManyRequests, Unauthorized
from datum_compute.kube.transport import Broken
from datum_compute.kube.websocket import WebSocket

Answer = Callable[[bytes], bytes]


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


class Renewable:
    """Credentials that are renewed once."""

    def __init__(self) -> None:
        self.token = "old"

    def authorization(self) -> str:
        return f"Bearer {self.token}"

    def renew(self) -> bool:
        fresh, self.token = self.token != "new", "new"
        return fresh


def ask(listening: socket.socket, *answers: Answer, traced: list[Exchange] | None = None) -> WebSocket:
    """Asks a server that answers one connection after the other."""

    def serve() -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                text = answer(head)
                connection.sendall(text)
                if b" 101 " in text[:20]:
                    connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    port = listening.getsockname()[1]
    trace = traced.append if traced is not None else None
    transport = BlockingTransport(Endpoint(f"http://127.0.0.1:{port}/base"), credentials=Renewable(), trace=trace)
    try:
        return transport.websocket("/run", "command=secret", "v5.channel.k8s.io")
    except BaseException:
        thread.join()
        raise


def plain(code: int, body: bytes = b"") -> Answer:
    return lambda head: b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (code, len(body), body)


def accepted(head: bytes, subprotocol: str | None = "v5.channel.k8s.io") -> bytes:
    server = WSConnection(ConnectionType.SERVER)
    server.receive_data(head)
    (request,) = server.events()
    assert isinstance(request, Request)
    assert (request.target, request.subprotocols) == ("/base/run?command=secret", ["v5.channel.k8s.io"])
    return server.send(AcceptConnection(subprotocol=subprotocol)) + server.send(BytesMessage(data=b"\1hello"))


def test_what_comes_with_the_answer_is_received(listening: socket.socket) -> None:
    traced: list[Exchange] = []
    link = ask(listening, accepted, traced=traced)
    assert link.receive() == [b"\1hello"]
    link.close()
    assert [(exchange.call.path, exchange.call.query, exchange.code) for exchange in traced] == [("/run", {}, 101)]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (plain(403, b'{"kind":"Status","reason":"Forbidden","message":"you may not"}'), Forbidden, "you may not"),
        (plain(429, b'{"reason":"TooManyRequests","message":"3 already"}'), TooManyRequests, "3 already"),
        (plain(200, b"{}"), MethodNotAllowed, "does not have a WebSocket there"),
        (lambda head: accepted(head, None), MethodNotAllowed, "does not have a WebSocket there"),
        (lambda head: b"HTTP/1.1 500 X\r\nconnection: close\r\n\r\nno", ApiError, "no"),
        (lambda head: b"SSH-2.0-x\r\n\r\n", Broken, "makes no sense"),
        (lambda head: b"", Broken, "ended the connection"),
    ],
)
def test_a_server_that_refuses_says_why(
    listening: socket.socket, answer: Answer, error: type[ApiError], words: str
) -> None:
    with pytest.raises(error, match=words):
        ask(listening, answer)


def test_expired_credentials_are_renewed_once(listening: socket.socket) -> None:
    tokens: list[bytes] = []

    def refuse(head: bytes) -> bytes:
        tokens.append(head.partition(b"Bearer ")[2].split(b"\r\n")[0])
        return plain(401)(head)

    with pytest.raises(Unauthorized):
        ask(listening, refuse, refuse)
    assert tokens == [b"old", b"new"]


class Pair:
    """A WebSocket and the server at its other end."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.link = WebSocket(ours, Connection(ConnectionType.CLIENT))
        self.server = Connection(ConnectionType.SERVER)

    def send(self, *events: BytesMessage | TextMessage | Ping | CloseConnection) -> None:
        self.socket.sendall(b"".join(self.server.send(event) for event in events))

    def read(self) -> list[object]:
        self.link.wait([], 0)
        self.server.receive_data(self.socket.recv(1_000_000))
        return list(self.server.events())

    def close(self) -> None:
        self.link.close()
        self.socket.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    both = Pair()
    yield both
    both.close()


def test_a_message_in_pieces_is_one_message(pair: Pair) -> None:
    whole = pair.server.send(BytesMessage(data=b"\1first, ", message_finished=False))
    whole += pair.server.send(BytesMessage(data=b"second", message_finished=True))
    for start in range(0, len(whole) - 1):
        pair.socket.sendall(whole[start : start + 1])
        assert pair.link.receive() == []
    pair.socket.sendall(whole[-1:])
    assert pair.link.receive() == [b"\1first, second"]


def test_a_ping_is_answered_and_counts_as_a_sign_of_life(pair: Pair) -> None:
    pair.send(Ping(payload=b"1234"), TextMessage(data="what"))
    assert pair.link.receive() == []
    assert pair.link.received > 0
    (pong,) = pair.read()
    assert type(pong).__name__ == "Pong"


def test_what_was_sent_before_the_end_is_received(pair: Pair) -> None:
    pair.send(BytesMessage(data=b"\1last"), CloseConnection(code=1009, reason="too much"))
    assert (pair.link.receive(), pair.link.closed, pair.link.reason) == ([b"\1last"], True, "too much")


def test_a_server_that_goes_away_is_noticed_when_sending_and_when_receiving(pair: Pair) -> None:
    pair.send(BytesMessage(data=b"\1last"))
    pair.socket.close()
    for _ in range(3):
        pair.link.send(b"\0x")
        pair.link.flush()
    assert (pair.link.receive(), pair.link.closed) == ([b"\1last"], True)


def test_messages_that_make_no_sense_end_it(pair: Pair) -> None:
    pair.socket.sendall(b"\xff\xff\xff\xff")
    assert (pair.link.receive(), pair.link.closed) == ([], True)


def test_much_is_sent_as_far_as_the_server_takes_it(pair: Pair) -> None:
    for _ in range(100):
        pair.link.send(b"\0" + b"x" * 50_000)
    pair.link.flush()
    assert pair.link.unsent > 1_000_000
    received = 0
    while received < 100:
        received += sum(isinstance(event, BytesMessage) and event.message_finished for event in pair.read())
    assert pair.link.unsent == 0
