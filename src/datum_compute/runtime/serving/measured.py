"""Metrics of an ASGI application that answers API servers. Entry point: `Measured`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from datum_compute.runtime.telemetry.table import CODES, OTHER, WEBHOOK_IN_FLIGHT, WEBHOOK_REQUESTS, WEBHOOK_TIME

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]


class Measured:
    """Counts and times the requests to each of `paths`, and whatever is below it; others are not counted."""

    def __init__(self, application: Application, paths: Sequence[str], registry: CollectorRegistry | None) -> None:
        self._application = application
        self._paths = paths
        self._requests = WEBHOOK_REQUESTS.counter(registry)
        self._seconds = WEBHOOK_TIME.histogram(registry)
        self._in_flight = WEBHOOK_IN_FLIGHT.gauge(registry)
        for path in paths:  # so that a path without requests is known to have none
            self._requests.labels(path, "200")
            self._seconds.labels(path)
            self._in_flight.labels(path)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        path = next((path for path in self._paths if f"{scope['path']}/".startswith(f"{path}/")), None)
        if path is None:
            await self._application(scope, receive, send)
            return
        code = "500"  # where the application crashes before it answers

        async def sending(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = str(message["status"])
            await send(message)

        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with self._in_flight.labels(path).track_inprogress():
                await self._application(scope, receive, sending)
        finally:
            self._seconds.labels(path).observe(loop.time() - began)
            self._requests.labels(path, code if code in CODES else OTHER).inc()
