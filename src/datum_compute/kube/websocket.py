"""A WebSocket without an event loop, for a program that waits for several things at once. Entry points: `shake_hands`,
`WebSocket`."""

import select
import socket
import ssl
from collections import deque
from collections.abc import Sequence

from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from datum_compute.kube.transport import Broken

_PIECE = 64 * 1024
_LARGEST_REFUSAL = 1024 * 1024
_LARGEST_MESSAGE = 16 * 1024 * 1024


class Refusal(Exception):
    """The server answered the request for a WebSocket with something else."""

    def __init__(self, code: int, body: bytes) -> None:
        super().__init__(f"the server answered {code}")
        self.code = code
        self.body = body


def shake_hands(
    opened: socket.socket, host: str, target: str, headers: Sequence[tuple[str, str]], subprotocol: str
) -> "WebSocket":
    """Asks for a WebSocket on a connection. Raises `Refusal`, `OSError`, or `Broken` for an answer that is no HTTP."""
    connection = WSConnection(ConnectionType.CLIENT)
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    request = Request(host=host, target=target, extra_headers=fields, subprotocols=[subprotocol])
    try:
        opened.sendall(connection.send(request))
        refused: RejectConnection | None = None
        body = b""
        while True:
            data = opened.recv(_PIECE)
            if not data and refused is None:
                raise Broken("the server ended the connection before its answer was complete")
            connection.receive_data(data or None)
            for event in connection.events():
                match event:
                    case AcceptConnection() if event.subprotocol != subprotocol:
                        raise Refusal(200, b"")
                    case AcceptConnection():
                        return WebSocket(opened, connection)
                    case RejectConnection():
                        refused = event
                    case RejectData():
                        body += event.data
                        if event.body_finished and refused is not None:
                            raise Refusal(refused.status_code, body)
            if refused is not None and (not data or not refused.has_body or len(body) > _LARGEST_REFUSAL):
                raise Refusal(refused.status_code, body)
    except ProtocolError:
        raise Broken("the server's answer makes no sense") from None


class WebSocket:
    """An open WebSocket whose socket does not block. Used by one thread, which waits with `wait`.

    `closed` once nothing more can be received, with the `reason` of the server, if it gave one.
    """

    def __init__(self, opened: socket.socket, connection: WSConnection | Connection) -> None:
        self._socket = opened
        self._connection = connection
        self._unsent = bytearray()
        self._pieces: list[bytes] = []
        self._size = 0
        self._messages: deque[bytes] = deque()
        self.received = 0  # bytes
        self.closed = False
        self.reason = ""
        opened.setblocking(False)
        self._understand()  # what came together with the answer

    @property
    def unsent(self) -> int:
        """Bytes that the server has not taken yet."""
        return len(self._unsent)

    def wait(self, others: Sequence[int], seconds: float) -> list[int]:
        """Waits until there is something to receive or one of the file descriptors can be read, which are returned.
        Sends meanwhile."""
        self.flush()
        if self._messages or self.closed or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            seconds = 0
        number = self._socket.fileno()
        writing = [number] if self._unsent else []
        readable, writable, _ = select.select([number, *others], writing, [], seconds)
        if writable:
            self.flush()
        return [ready for ready in readable if ready != number]

    def send(self, data: bytes) -> None:
        """Queues a message; `wait` sends it."""
        if not self.closed and self._connection.state is ConnectionState.OPEN:
            self._unsent += self._connection.send(BytesMessage(data=data))

    def receive(self) -> list[bytes]:
        """All messages that have arrived."""
        while not self.closed:
            try:
                data = self._socket.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                data = b""
            self.received += len(data)
            if data:
                self._take(data)
            else:
                self.closed = True
            if len(self._messages) > 16:  # enough for now
                break
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def flush(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent[:_PIECE])
                del self._unsent[:sent]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._unsent.clear()  # what the server sent before it went is still received

    def close(self) -> None:
        """Says goodbye without waiting for an answer."""
        if self._connection.state is ConnectionState.OPEN:
            self._unsent += self._connection.send(CloseConnection(code=1000))
            self.flush()
        self._socket.close()

    def _take(self, data: bytes) -> None:
        try:
            self._connection.receive_data(data)
            self._understand()
        except ProtocolError:
            self.closed, self.reason = True, "the server's messages make no sense"

    def _understand(self) -> None:
        for event in self._connection.events():
            match event:
                case BytesMessage():
                    self._add(bytes(event.data), event.message_finished)
                case TextMessage():
                    pass  # there are none in what is spoken here
                case Ping():
                    self._unsent += self._connection.send(event.response())
                case CloseConnection():
                    if self._connection.state is ConnectionState.REMOTE_CLOSING:
                        self._unsent += self._connection.send(event.response())
                    self.closed, self.reason = True, event.reason or ""

    def _add(self, data: bytes, is_finished: bool) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _LARGEST_MESSAGE:
            self.closed, self.reason = True, "the server sent a message that is too large"
        if is_finished:
            self._messages.append(b"".join(self._pieces))
            self._pieces, self._size = [], 0
