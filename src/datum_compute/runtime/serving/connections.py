"""Connections of unknown clients, within limits. Entry points: `Limits`, `Connections`, `Connection`.

A client may be slow, silent or hostile. Its cost is bounded before it sends anything: connections count from the moment
they are accepted, including the TLS handshake, and each stage of a request has a deadline and a share.
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import Any
from urllib.parse import unquote

import httptools
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from datum_compute.runtime.serving.peers import client_certificate
from datum_compute.runtime.serving.websockets import WebSocket

_GATHERED_BYTES = 64 * 1024
_UNREAD_BYTES = 256 * 1024  # of a body that arrives after its answer
_LINGER_SECONDS = 1.0  # for a client under TLS to stop sending and read its answer
_TLS_BUFFER_BYTES = 16 * 1024  # a TLS record; asyncio's default of 256 KiB is most of an idle connection's memory
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class Limits(Struct, frozen=True):
    """What a server grants all its clients together (`connections`) and each of them (all other fields)."""

    connections: int = 256
    head_bytes: int = 64 * 1024  # request line and header fields
    head_fields: int = 200
    head_seconds: float = 20.0  # from the accepted connection to the end of the header
    body_seconds: float = 60.0
    idle_seconds: float = 120.0  # longer than clients keep connections, so that they are the ones to close them
    stall_seconds: float = 60.0  # for a client to read the rest of an answer
    grace_seconds: float = 5.0  # for an error answer, and for the end of any answer, before it is cut off
    message_bytes: int = 256 * 1024  # of a WebSocket


class Stage(Enum):
    HEAD = auto()  # no complete header yet: silent, in its TLS handshake, or sending it
    BODY = auto()  # no complete body yet
    IDLE = auto()  # between two requests
    STALLED = auto()  # does not read its answer
    CLOSING = auto()  # the end of its last answer is under way
    ANSWER = auto()  # the application is answering, perhaps for long, as with a watch or a WebSocket


_WAITING = (Stage.HEAD, Stage.BODY, Stage.IDLE, Stage.STALLED, Stage.CLOSING)


class Connections:
    """The connections of one server by stage, the oldest in each first.

    Every stage except `ANSWER` may have a sixth of all connections: one more displaces the oldest of its stage. So
    whatever clients do, new ones are accepted and the application has connections to answer. When answers take more
    than their share and all connections are in use, those without a complete header are closed first.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.draining = False  # whether connections end with their next answer
        self._share = max(1, limits.connections // (len(_WAITING) + 1))
        self._since: dict[Stage, dict[Connection, float]] = {stage: {} for stage in Stage}
        self._seconds = {
            Stage.HEAD: limits.head_seconds,
            Stage.BODY: limits.body_seconds + limits.grace_seconds,
            Stage.IDLE: limits.idle_seconds,
            Stage.STALLED: limits.stall_seconds,
            Stage.CLOSING: limits.grace_seconds,
        }

    def __len__(self) -> int:
        return sum(map(len, self._since.values()))

    def admit(self, connection: "Connection") -> None:
        if len(self) >= self.limits.connections and not self._displace():
            connection.drop()
            return
        self.move(connection, Stage.HEAD)

    def move(self, connection: "Connection", stage: Stage) -> None:
        """A connection that stays in its stage keeps its deadline."""
        if connection.stage is stage:
            return
        self.leave(connection)
        connection.stage = stage
        members = self._since[stage]
        members[connection] = connection.loop.time()
        if stage in _WAITING and len(members) > self._share:
            self._drop(next(iter(members)))

    def leave(self, connection: "Connection") -> None:
        if connection.stage is not None:
            self._since[connection.stage].pop(connection, None)
            connection.stage = None

    def expire(self) -> None:
        """Drops connections past their deadline; to be called a few times per second."""
        now = asyncio.get_running_loop().time()
        for stage, seconds in self._seconds.items():
            for connection in self._older(stage, now - seconds):
                self._drop(connection)

    def drop_waiting(self) -> None:
        """For a server that stops: drops connections that have not sent a request."""
        for connection in list(self._since[Stage.HEAD]):
            self._drop(connection)

    def _older(self, stage: Stage, moment: float) -> list["Connection"]:
        def oldest_first() -> Iterator[Connection]:
            for connection, since in self._since[stage].items():
                if since > moment:
                    return
                yield connection

        return list(oldest_first())

    def _displace(self) -> bool:
        for stage in _WAITING:
            for connection in self._since[stage]:
                self._drop(connection)
                return True
        return False

    def _drop(self, connection: "Connection") -> None:
        if connection.stage is Stage.IDLE:
            connection.close()  # its last answer may still be under way
        else:
            self.leave(connection)
            connection.drop()


class Connection(HttpToolsProtocol):
    """One client with its stage; it sends requests one after the other.

    `websockets` says on which paths a client may change to a WebSocket. On others its request is one like any other.
    """

    stage: Stage | None = None  # set by `Connections`

    def __init__(self, connections: Connections, websockets: Callable[[str], bool], **of_server: Any) -> None:
        super().__init__(**of_server)
        self._websockets = websockets
        self._all = connections
        self._limits = connections.limits
        self._socket: asyncio.BaseTransport | None = None
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        self._unread_bytes = 0
        self._ending = False  # further input is ignored
        self._presented: dict[str, Any] | None = None  # a certificate of the client
        self._is_websocket = False  # from the end of the header on

    # Life cycle

    def accepted(self, socket: asyncio.BaseTransport) -> None:
        """`socket` is the transport to close, below TLS."""
        self._socket = socket
        self._all.admit(self)

    def left(self) -> None:
        self._all.leave(self)
        self.parser = None  # type: ignore[assignment]  # breaks a cycle that would wait for the garbage collector

    def drop(self) -> None:
        assert isinstance(self._socket, asyncio.WriteTransport)
        self._socket.abort()

    def close(self) -> None:
        """Closes in an orderly way: an abrupt end would reset an answer that a client still sending has not read."""
        self._ending = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        elif self._in_head or self._in_body:
            self.loop.call_later(_LINGER_SECONDS, self.transport.close)  # TLS cannot close half of a connection
        else:
            self.transport.close()
        self._update_stage()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._socket is None:
            self.accepted(transport)
        super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self.left()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # its timer would keep the connection in memory

    # Input

    def data_received(self, data: bytes) -> None:
        while data and not self._ending and not self._is_websocket and not self.transport.is_closing():
            room = self._limits.head_bytes - self._head_bytes if self._in_head else len(data)
            piece, data = data[:room], data[room:]
            if self._in_head:
                self._head_bytes += len(piece)
            super().data_received(piece)
            if self._in_head and self._head_bytes >= self._limits.head_bytes:
                self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._presented is None:  # the handshake is over by now
            self._presented = client_certificate(self.transport)
        if self._presented:
            self.scope["extensions"] = dict(self._presented)
        if not self._in_head:  # the first request began with the connection
            self._in_head, self._head_bytes = True, 0
        self._update_stage()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.head_fields:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        if self._ending:
            return
        self._in_head, self._in_body, self._unread_bytes = False, True, 0
        self._is_websocket = self._changes_to_websocket()
        super().on_headers_complete()
        if self._all.draining and not self._is_websocket:
            self.cycle.keep_alive = False
        self._update_stage()

    def on_body(self, body: bytes) -> None:
        if not self._in_body or self._is_websocket:
            return
        super().on_body(body)
        if self.cycle.response_complete:  # nobody wanted it; a little more is read, to keep the connection
            self._unread_bytes += len(body)
            if self._unread_bytes > _UNREAD_BYTES:
                self.close()

    def on_message_complete(self) -> None:
        if not self._in_body:
            return
        self._in_body = False
        super().on_message_complete()
        self._update_stage()

    def _refuse_head(self) -> None:
        if not self._ending:
            self.transport.write(_TOO_LARGE)
            self.close()

    # Change to a WebSocket

    def _changes_to_websocket(self) -> bool:
        if (
            not self.parser.should_upgrade()
            or self._get_upgrade() != b"websocket"
            or self.parser.get_method() != b"GET"
        ):
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # the answer to its last request would end up between the messages
        path = httptools.parse_url(self.url).path
        return self._websockets(unquote(path.decode("ascii")))

    def _should_upgrade_to_ws(self) -> bool:
        return self._is_websocket

    def handle_websocket_upgrade(self) -> None:
        grace = self._limits.grace_seconds
        self.ws_protocol_class = partial(WebSocket, self.left, self.drop, self._unsent, grace)  # type: ignore[assignment]
        super().handle_websocket_upgrade()

    def _unsent(self) -> int:
        assert isinstance(self._socket, asyncio.WriteTransport)
        return self.transport.get_write_buffer_size() + self._socket.get_write_buffer_size()

    # Output

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_stage()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_stage()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_stage()

    def _update_stage(self) -> None:
        if self.stage is not None:  # otherwise it was dropped
            self._all.move(self, self._current_stage())

    def _current_stage(self) -> Stage:
        if self._ending or self.transport.is_closing():
            return Stage.CLOSING
        if self.flow.write_paused:
            return Stage.STALLED
        if self._in_head:
            return Stage.HEAD
        if self._in_body:
            return Stage.BODY
        if self._is_websocket or (self.cycle is not None and not self.cycle.response_complete):
            return Stage.ANSWER
        return Stage.IDLE


class Tls(SSLProtocol):
    """TLS below a connection, so that it is counted from the first byte, with a buffer of modest size."""

    max_size = _TLS_BUFFER_BYTES

    def __init__(self, connection: Connection, context: ssl.SSLContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, connection, context, None, server_side=True)  # type: ignore[arg-type]
        self._connection: Connection | None = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._connection is not None
        self._connection.accepted(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        assert self._connection is not None
        self._connection.left()  # before a handshake nothing else reports the end
        super().connection_lost(exc)
        self._connection = None  # breaks a cycle, as above


class _Gathering:
    """A transport that sends everything written in one step of the loop together, such as a head with its body.

    Encrypting and sending each piece alone would be most of the cost of an answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._send)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _GATHERED_BYTES:  # so that a client that does not read is noticed
            self._send()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def write_eof(self) -> None:
        self._send()
        self._transport.write_eof()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        pieces, self._pieces, self._size = self._pieces, [], 0
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))
