"""An ASGI application behind a socket, served by a task of this loop. Entry points: `config`, `AsgiServer`."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

_LAST_SECONDS = 2  # for answers that are under way when a server stops


def config(application: Any, **more: Any) -> uvicorn.Config:
    """Says nothing of its own: applications log what fails in them, and junk from clients is nobody's concern."""
    quiet: dict[str, Any] = {
        "interface": "asgi3",
        "http": "httptools",
        "ws": "none",
        "lifespan": "off",
        "log_config": None,
        "log_level": "critical",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_graceful_shutdown": _LAST_SECONDS,
    }
    return uvicorn.Config(application, **(quiet | more))


class AsgiServer(uvicorn.Server):
    """Leaves signals to the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = asyncio.Event()

    async def start(self, listening: socket.socket, name: str) -> asyncio.Task[None]:
        """Returns when calls are answered; the task ends after `should_exit` is set."""
        serving = asyncio.create_task(self.serve([listening]), name=name)
        started = asyncio.create_task(self._ready.wait())
        await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if serving.done():
            listening.close()
            serving.result()
        return serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
