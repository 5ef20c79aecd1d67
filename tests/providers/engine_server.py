"""The engine in memory behind the Docker Engine API, on a unix socket. Entry point: `EngineServer`.

It answers as Docker or Podman does, and badly where a test wants that.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.kube.meta import Json, encode
from datum_compute.providers.engine.interface import EngineAway, Refused
from tests.providers.engine_boxes import Dialect, framed, inspection
from tests.providers.engine_model import EngineModel
from tests.providers.engine_sessions import ModelSession


class Answer(Enum):
    """How an answer may go wrong."""

    NONE = "nothing is ever said"
    CLOSED = "the connection is closed instead"
    HALF = "it breaks off in the middle"
    GARBAGE = "it is not JSON"


class Fault(Struct):
    method: str
    path: str  # a part of it
    answer: Answer | tuple[int, str]  # or a code and a body
    times: int


class Execution(Struct):
    container: str
    body: Json
    session: ModelSession | None = None
    ended: bool = False
    code: int = 0


class EngineServer:
    """Serves a model within `serving`. `api` and `minimum` are the versions that it offers."""

    def __init__(self, model: EngineModel, path: Path) -> None:
        self.model = model
        self.path = str(path)
        self.api = model.info.api
        self.minimum = "1.44" if model.dialect is Dialect.DOCKER else "1.24"
        self.requests: list[str] = []
        self.executions: dict[str, Execution] = {}
        self._faults: list[Fault] = []
        self._numbers = itertools.count(1)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def fault(self, method: str, path: str, answer: Answer | tuple[int, str], times: int = 1) -> None:
        """The next requests of a method whose path contains `path` are answered so."""
        self._faults.append(Fault(method, path, answer, times))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        application = web.Application(middlewares=[self._middleware], client_max_size=1 << 26)
        application.add_routes(self._routes())
        runner = web.AppRunner(application, shutdown_timeout=0, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.UnixSite(runner, f"{self.path}.inner").start()
        # aiohttp does not let go of a connection, as commands need it; so somebody else accepts them.
        front = await asyncio.start_unix_server(self._accept, self.path)
        try:
            yield
        finally:
            front.close()
            self.break_connections()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await runner.cleanup()
            os.unlink(self.path)

    def break_connections(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    # Connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with suppress(OSError, EOFError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
                if method == "POST" and "/exec/" in target and target.endswith("/start"):
                    await self._upgrade(target, head, reader, writer)
                else:
                    await self._pass_on(head, reader, writer)
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(f"{self.path}.inner")
        inner_writer.write(head)
        ways = [asyncio.ensure_future(_copy(reader, inner_writer)), asyncio.ensure_future(_copy(inner_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            inner_writer.close()

    async def _upgrade(
        self, target: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        await reader.readexactly(length)
        self.requests.append(f"POST {target}")
        execution = self.executions[target.split("/")[-2]]
        body = execution.body
        command = Command(body["Cmd"], stdin=body["AttachStdin"], tty=body["Tty"])
        try:
            session = execution.session = await self.model.exec(execution.container, command)
        except Unstartable as refused:
            text = encode({"message": str(refused)})
            writer.write(b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n0\r\n\r\n")
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        feeding = asyncio.ensure_future(_feed(reader, writer, session))
        try:
            async for stream, data in session.output():
                writer.write(data if command.tty else framed(stream, data))
                await writer.drain()
            execution.code, execution.ended = await session.exit_code(), not session.closed
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    # Requests

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        self.requests.append(f"{request.method} {request.path_qs}")
        fault = self._next_fault(request)
        if fault is not None:
            return await self._answer_badly(request, fault)
        version = request.match_info.get("version")
        if version and tuple(map(int, version.split("."))) < tuple(map(int, self.minimum.split("."))):
            return _json({"message": f"client version {version} is too old"}, 400)
        try:
            return await handler(request)
        except Refused as refused:
            return _json({"message": refused.message, "cause": "because", "response": refused.code}, refused.code)
        except EngineAway:
            _abort(request)
            return web.Response()

    def _next_fault(self, request: web.Request) -> Answer | tuple[int, str] | None:
        for fault in self._faults:
            if fault.times and fault.method == request.method and fault.path in request.path:
                fault.times -= 1
                return fault.answer
        return None

    async def _answer_badly(self, request: web.Request, answer: Answer | tuple[int, str]) -> web.StreamResponse:
        match answer:
            case (code, body):
                return web.Response(status=code, text=body)
            case Answer.NONE:
                await asyncio.Event().wait()
            case Answer.GARBAGE:
                return web.Response(text="<html>this is no engine</html>")
            case Answer.HALF:
                response = web.StreamResponse(headers={"Content-Length": "1000"})
                await response.prepare(request)
                await response.write(b'{"Id": "ab')
        _abort(request)
        return web.Response()

    def _routes(self) -> list[web.RouteDef]:
        root = "/v{version:[0-9.]+}"
        return [
            web.get("/_ping", self._ping),
            web.get("/version", self._version),
            web.get("/info", self._info),
            web.get(f"{root}/containers/json", self._list),
            web.post(f"{root}/containers/create", self._create),
            web.get(f"{root}/containers/{{id}}/json", self._inspect),
            web.post(f"{root}/containers/{{id}}/start", self._start),
            web.post(f"{root}/containers/{{id}}/stop", self._stop),
            web.delete(f"{root}/containers/{{id}}", self._remove),
            web.get(f"{root}/containers/{{id}}/logs", self._logs),
            web.post(f"{root}/containers/{{id}}/exec", self._exec),
            web.get(f"{root}/exec/{{id}}/json", self._execution),
            web.post(f"{root}/exec/{{id}}/resize", self._resize),
            web.get(f"{root}/images/{{name:.+}}/json", self._image),
            web.post(f"{root}/images/create", self._pull),
            web.get(f"{root}/networks", self._networks),
            web.get(f"{root}/networks/{{name}}", self._network),
            web.post(f"{root}/networks/create", self._create_network),
            web.delete(f"{root}/networks/{{name}}", self._remove_network),
            web.get(f"{root}/events", self._events),
        ]

    @property
    def _docker(self) -> bool:
        return self.model.dialect is Dialect.DOCKER

    async def _ping(self, request: web.Request) -> web.Response:
        if self.model.silent:
            await asyncio.Event().wait()
        return web.Response(text="OK", headers={"Api-Version": self.api})

    async def _version(self, request: web.Request) -> web.Response:
        name = "Engine" if self._docker else "Podman Engine"
        info = self.model.info
        return _json(
            {"Components": [{"Name": name}], "Version": info.version, "ApiVersion": self.api,
             "MinAPIVersion": self.minimum}
        )  # fmt: skip

    async def _info(self, request: web.Request) -> web.Response:
        info = self.model.info
        return _json(
            {"NCPU": info.cpus, "MemoryLimit": info.limits_memory, "CpuCfsQuota": info.limits_cpu,
             "PidsLimit": info.limits_processes}
        )  # fmt: skip

    async def _list(self, request: web.Request) -> web.Response:
        assert request.query["all"] == "true"
        return _json(
            [
                {"Id": found.id, "Names": [f"/{found.name}"], "Labels": found.labels, "State": found.state,
                 "Created": found.created}
                for found in await self.model.containers(_labels(request))
            ]
        )  # fmt: skip

    async def _create(self, request: web.Request) -> web.Response:
        id = await self.model.create(request.query["name"], await request.json())
        return _json({"Id": id, "Warnings": []}, 201)

    async def _inspect(self, request: web.Request) -> web.Response:
        found = await self.model.inspect(request.match_info["id"])
        if found is None:
            return _json({"message": "no such container"}, 404)
        return _json(inspection(self.model.boxes[found.id], self.model.dialect))

    async def _start(self, request: web.Request) -> web.Response:
        box = self.model.box(request.match_info["id"])
        code = 304 if box.status == "running" else 204
        await self.model.start(box.id)
        return web.Response(status=code)

    async def _stop(self, request: web.Request) -> web.Response:
        found = await self.model.inspect(request.match_info["id"])
        if found is None:
            return _json({"message": "no such container"}, 404)
        code = 204 if found.state.status == "running" else 304
        await self.model.stop(found.id, float(request.query["t"]))
        return web.Response(status=code)

    async def _remove(self, request: web.Request) -> web.Response:
        assert (request.query["force"], request.query["v"]) == ("true", "true")
        if await self.model.inspect(request.match_info["id"]) is None:
            return _json({"message": "no such container"}, 404)
        await self.model.remove(request.match_info["id"])
        return web.Response(status=204)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        assert [query[name] for name in ("follow", "stdout", "stderr", "timestamps")] == ["1"] * 4
        if await self.model.inspect(request.match_info["id"]) is None:
            return _json({"message": "no such container"}, 404)
        return await self._streamed(request, self.model.logs(request.match_info["id"], _tail(query["tail"])))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        filters = msgspec.json.decode(request.query["filters"])
        assert filters["type"] == ["container"]
        assert int(request.query["since"]) > 0

        async def lines() -> AsyncIterator[bytes]:
            async with self.model.events(_labels(request)) as events:
                async for event in events:
                    actor = {"ID": event.id, "Attributes": event.labels}
                    yield encode({"Type": "container", "Action": event.action, "Actor": actor}) + b"\n"

        return await self._streamed(request, lines())

    async def _streamed(self, request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        response = web.StreamResponse()
        if self._docker:  # Podman says nothing before there is something to say
            await response.prepare(request)
        async with aclosing(chunks) as stream:  # type: ignore[type-var]
            async for chunk in stream:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(chunk)
        if not response.prepared:
            await response.prepare(request)
        return response

    async def _exec(self, request: web.Request) -> web.Response:
        box = self.model.box(request.match_info["id"])
        if box.status != "running":
            return _json({"message": "container state improper"}, 409 if self._docker else 500)
        id = f"e{next(self._numbers)}"
        self.executions[id] = Execution(box.id, await request.json())
        return _json({"Id": id}, 201)

    async def _execution(self, request: web.Request) -> web.Response:
        execution = self.executions[request.match_info["id"]]
        return _json({"Running": not execution.ended, "ExitCode": execution.code if execution.ended else None})

    async def _resize(self, request: web.Request) -> web.Response:
        session = self.executions[request.match_info["id"]].session
        assert session is not None
        await session.resize(int(request.query["w"]), int(request.query["h"]))
        return web.Response(status=200 if self._docker else 201)

    async def _image(self, request: web.Request) -> web.Response:
        there = await self.model.has_image(request.match_info["name"])
        return _json({"Id": "sha256:0"}) if there else _json({"message": "no such image"}, 404)

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        name, tag = request.query["fromImage"], request.query["tag"]
        reference = f"{name}{'@' if tag.startswith('sha256:') else ':'}{tag}"
        response = web.StreamResponse()
        async with aclosing(self.model.pull(reference, request.headers.get("X-Registry-Auth", ""))) as steps:
            async for step in steps:
                if step.error and self._docker and not response.prepared:
                    return _json({"message": step.error}, 404)
                if not response.prepared:
                    await response.prepare(request)
                detail = {"current": round((step.fraction or 0) * 1000), "total": 1000}
                progress = {"status": "Downloading", "id": "layer", "progressDetail": detail}
                error = {"error": step.error, "errorDetail": {"message": step.error}}
                await response.write(encode(error if step.error else progress) + b"\r\n")
        if not response.prepared:
            await response.prepare(request)
        return response

    async def _networks(self, request: web.Request) -> web.Response:
        names = await self.model.networks(_labels(request))
        return _json([{"Name": name, "Labels": self.model.networks_there[name]} for name in names])

    async def _network(self, request: web.Request) -> web.Response:
        there = request.match_info["name"] in self.model.networks_there
        return _json({"Name": request.match_info["name"]}) if there else _json({"message": "no such network"}, 404)

    async def _create_network(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["Name"] in self.model.networks_there:
            return _json({"message": f"network {body['Name']} already exists"}, 409 if self._docker else 500)
        await self.model.create_network(body["Name"], body["Labels"])
        return _json({"Id": body["Name"]}, 201)

    async def _remove_network(self, request: web.Request) -> web.Response:
        if request.match_info["name"] not in self.model.networks_there:
            return _json({"message": "no such network"}, 404)
        await self.model.remove_network(request.match_info["name"])
        return web.Response(status=204)


def _json(value: object, code: int = 200) -> web.Response:
    return web.Response(body=encode(value), status=code, content_type="application/json")


def _labels(request: web.Request) -> dict[str, str]:
    filters = msgspec.json.decode(request.query["filters"])
    return {label.partition("=")[0]: label.partition("=")[2] for label in filters.get("label", [])}


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _feed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: ModelSession) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            await session.write(data)
        if not writer.is_closing():
            await session.end_input()
            return
    await session.close()  # the client is gone


def _tail(text: str) -> int | None:
    return None if text == "all" else int(text)
