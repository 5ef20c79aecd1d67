"""Serves an ASGI application on a socket, within limits. Entry point: `AsgiServer`."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn

from datum_compute.runtime.serving.connections import Connection, Connections, Limits, Tls
from datum_compute.runtime.serving.websockets import PING_SECONDS

_LAST_SECONDS = 2  # for answers under way when the server stops
_BACKLOG = 1024  # connections that wait in the kernel to be accepted
_ACCEPTED_AT_ONCE = 16  # few, so that earlier ones make progress and are not displaced


class AsgiServer(uvicorn.Server):
    """Leaves signals to the process and logs nothing: applications log their own failures, and malformed requests are
    not worth a line. `websockets` says on which paths the application is ready for WebSockets."""

    def __init__(
        self,
        application: Any,
        *,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        websockets: Callable[[str], bool] = lambda path: False,
    ) -> None:
        limits = limits or Limits()
        self._tls = tls
        self._websockets = websockets
        self._connections = Connections(limits)
        super().__init__(
            uvicorn.Config(
                application,
                interface="asgi3",
                ws="none",  # `Connection` brings its own
                ws_max_size=limits.message_bytes,
                ws_ping_interval=PING_SECONDS,
                ws_ping_timeout=None,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
                timeout_graceful_shutdown=_LAST_SECONDS,
            )
        )

    async def start(self, listening: socket.socket, name: str) -> asyncio.Task[None]:
        """Returns when requests are answered; the task ends, and closes the socket, after `should_exit` is set."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        try:
            await self.startup([listening])
        except BaseException:
            listening.close()
            raise
        return asyncio.create_task(self._serve([listening]), name=name)

    def drain(self) -> None:
        """From now on, every answer asks its client to close the connection."""
        self._connections.draining = True

    # Overrides of uvicorn

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.BaseProtocol:
            http = Connection(
                self._connections,
                self._websockets,
                config=self.config,
                server_state=self.server_state,
                app_state={},
                _loop=loop,
            )
            return http if self._tls is None else Tls(http, self._tls, loop)

        self.servers = []
        for listening in sockets or ():
            self.servers.append(await loop.create_server(connection, sock=listening, backlog=_ACCEPTED_AT_ONCE))
            listening.listen(_BACKLOG)
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        self._connections.expire()
        return await super().on_tick(counter)

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self.main_loop()
        self._connections.drop_waiting()
        await self.shutdown(sockets)
