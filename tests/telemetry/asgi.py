"""A client of an ASGI handler, in the same process. Entry points: `ask`, `Open`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from datum_compute.kube.meta import Json
from datum_compute.telemetry.gateway import ROOT, Gateway

Parameter = Sequence[tuple[str, str]] | dict[str, str]


def scope(name: str, parameters: Parameter = (), method: str = "GET") -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": f"{ROOT}{name}",
        "query_string": urlencode(parameters).encode(),
        "headers": [],
    }


async def ask(gateway: Gateway, name: str, parameters: Parameter = (), method: str = "GET") -> tuple[int, Json]:
    """One request and its whole answer."""
    opened = Open(gateway, name, parameters, method=method)
    await opened.ended()
    return opened.code, msgspec.json.decode(opened.body)


class Open:
    """A request whose answer is read as it comes. While `stalled`, the client takes nothing."""

    def __init__(
        self, gateway: Gateway, name: str, parameters: Parameter = (), *, plane: str = "demo", method: str = "GET"
    ) -> None:
        self.code = 0
        self.headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self.complete = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._gone = asyncio.Event()
        handler: Callable[..., Awaitable[None]] = gateway
        request = scope(name, parameters, method)
        self._task = asyncio.ensure_future(handler(plane, request["path"], request, self._receive, self._send))

    def stall(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def frames(self) -> list[Json]:
        return [msgspec.json.decode(line) for line in self.body.splitlines()]

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Instance and text of each line, frame by frame in the order of time."""
        found: list[tuple[str, str]] = []
        for frame in self.frames:
            values = [
                (int(time), stream["stream"]["datum_instance_name"], text)
                for stream in frame.get("streams", ())
                for time, text in stream["values"]
            ]
            found += [(instance, text) for _, instance, text in sorted(values, key=lambda value: value[0])]
        return found

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.lines]

    @property
    def notices(self) -> list[Json]:
        return [frame["notice"] for frame in self.frames if "notice" in frame]

    @property
    def dropped(self) -> int:
        return sum(entry["count"] for frame in self.frames for entry in frame.get("dropped_entries", ()))

    def done(self) -> bool:
        return self._task.done()

    async def ended(self) -> None:
        await self._task

    async def leave(self) -> None:
        self._gone.set()
        await self._task

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self._flows.wait()
        if message["type"] == "http.response.start":
            assert self.code == 0, "a second answer"
            self.code = message["status"]
            self.headers = {key.decode(): value.decode() for key, value in message["headers"]}
        else:
            assert self.code
            assert not self.complete
            self._pieces.append(message["body"])
            self.complete = not message.get("more_body", False)
