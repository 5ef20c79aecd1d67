"""Commands of users in their Instances, over WebSocket. Entry points: `Door`, `Access`, `Limits`."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from datum_compute.federation.lines import STDERR
from datum_compute.federation.sessions import Command, Runner, Session, Unstartable
from datum_compute.kube.errors import (
    ApiError,
    BadRequest,
    NotFound,
    ServerError,
    Timeout,
    TooManyRequests,
    Unavailable,
    Unsupported,
)
from datum_compute.runtime.tasks import first
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import SUBPROTOCOL, Ended, EndOfInput, Exited, Input, Resize, from_client
from datum_compute.telemetry.exec.places import Place, Places, container_of
from datum_compute.telemetry.exec.request import place_of, program, request_of

Scope = Mapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_START_SECONDS = 30.0  # from the request to a running command
_LOST_SECONDS = 5.0  # between two looks whether a client is still there that has sent more than the command reads
_FAREWELL_SECONDS = 5.0  # for a client to read why its session ended
_WAITING_BYTES = 1024 * 1024  # of input that the command has not read
_MESSAGE_BYTES = 64 * 1024
_LONGEST_CALLER = 256
_KILLED = 137
_NEWS_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class Caller(Struct, frozen=True):
    """Who runs a command; `name` is what an event says about them."""

    project: str
    name: str


class Access(Protocol):
    def __call__(self, plane: str, scope: Scope, namespace: str, instance: str, /) -> Awaitable[Caller]:
        """Who a request is from, if they may run commands in this Instance.

        `plane` is the plane that the path of the request names, and `scope` the request as ASGI has it. Raises an
        `ApiError`: `Unauthorized`, `Forbidden`, or `Unavailable` if that cannot be found out.
        """
        ...


class Limits(Struct, frozen=True):
    """Sessions at a time, and how long one may take: without a byte, and in all. None is for ever."""

    of_instance: int = 3
    of_project: int = 10
    idle_seconds: float | None = None
    seconds: float | None = None


class NotRunning(ApiError):
    """The Instance does not run, or not any more."""

    code, reason = 409, "NotRunning"


class Door:
    """A handler of the path of `request`. Every session is recorded on the Instance before it begins, and ends
    when the Instance does."""

    def __init__(self, access: Access, places: Places, runner: Runner | None, limits: Limits | None = None) -> None:
        """Without a runner, Instances are only simulated."""
        self._access = access
        self._places = places
        self._runner = runner
        self._limits = limits or Limits()
        self._sessions: Counter[tuple[str, ...]] = Counter()

    async def __call__(self, plane: str, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        namespace, instance = place_of(path)
        caller = await self._access(plane, scope, namespace, instance)
        if scope["type"] != "websocket":
            raise BadRequest("running a command takes a WebSocket")
        if SUBPROTOCOL not in scope["subprotocols"]:
            raise BadRequest(f"running a command takes a WebSocket with the subprotocol {SUBPROTOCOL}")
        command = request_of(path, scope["query_string"]).command
        with self._counted(caller.project, namespace, instance):
            try:
                async with asyncio.timeout(_START_SECONDS):
                    place = await self._places.find(caller.project, namespace, instance)
                    command = replace(command, container=container_of(place.copy, command.container))
                    session = await self._start(place, caller, command)
            except Unstartable as error:
                raise _refusal(error) from None
            except TimeoutError:
                raise Timeout(f'instance "{instance}" did not start the command in time') from None
            await _Conversation(session, command, receive, send).run(self._places, place, caller, self._limits)

    async def _start(self, place: Place, caller: Caller, command: Command) -> Session:
        if self._runner is None:
            name = place.instance.name
            raise Unstartable(f'instance "{name}" runs only in simulation; there is nothing to run a command in', 501)
        await self._places.record(place, _sentence(caller, command))
        return await self._runner.run(place.cell, place.namespace, place.copy.name, place.uid, command)

    @contextmanager
    def _counted(self, project: str, namespace: str, instance: str) -> Iterator[None]:
        limits = self._limits
        of_project, of_instance = (project,), (project, namespace, instance)
        if self._sessions[of_instance] >= limits.of_instance:
            raise TooManyRequests(
                f'instance "{instance}" has {limits.of_instance} sessions already, which is the most; end one first'
            )
        if self._sessions[of_project] >= limits.of_project:
            raise TooManyRequests(
                f"project {project} has {limits.of_project} sessions already, which is the most; end one first"
            )
        self._sessions.update((of_project, of_instance))
        try:
            yield
        finally:
            self._sessions.subtract((of_project, of_instance))
            self._sessions += Counter()  # forgets those with none


def _sentence(caller: Caller, command: Command) -> str:
    terminal = ", in a terminal" if command.tty else ""
    name = "".join(filter(str.isprintable, caller.name))[:_LONGEST_CALLER]
    return f'{name} runs "{program(command)}" in container {command.container}{terminal}'


def _refusal(error: Unstartable) -> ApiError:
    kinds = {404: NotFound, 409: NotRunning, 501: Unsupported, 503: Unavailable}
    return kinds.get(error.code, ServerError)(str(error))


class _ClientGone(Exception):
    pass


class _Conversation:
    """One command with its client."""

    def __init__(self, session: Session, command: Command, receive: Receive, send: Send) -> None:
        self._session = session
        self._command = command
        self._receive = receive
        self._send = send
        self._pending: deque[bytes] = deque()  # input that the command has not read yet; its end is empty
        self._pending_bytes = 0
        self._more, self._room = asyncio.Event(), asyncio.Event()
        self._began = self._last_byte = asyncio.get_running_loop().time()

    async def run(self, places: Places, place: Place, caller: Caller, limits: Limits) -> None:
        loop = asyncio.get_running_loop()
        log = _log.bind(
            plane=place.project,
            namespace=place.instance.namespace,
            instance=place.instance.name,
            container=self._command.container,
            user=caller.name,
            program=program(self._command),
        )
        log.info("command started", terminal=self._command.tty)
        end: Exited | Ended | None = None

        async def over() -> None:
            nonlocal end
            await places.until_over(place)
            end = _stopped(place)

        async def late() -> None:
            nonlocal end
            end = Ended(await self._overdue(limits), "Timeout", 504)

        async def output() -> None:
            nonlocal end
            end = await self._output()
            if end == Exited(_KILLED):  # perhaps with its instance, of which the news takes longer
                with suppress(TimeoutError):
                    async with asyncio.timeout(_NEWS_SECONDS):
                        await places.until_over(place)
                        end = _stopped(place)

        try:
            try:
                await self._receive()  # the client asks to connect
                await self._send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
                await first(output(), self._input(), self._feed(), over(), late())
            finally:
                await self._session.close()
            if end is not None:
                # A client that does not read may have the last of a command's output before it, but not for ever.
                patience = self._overdue(limits) if isinstance(end, Exited) else asyncio.sleep(_FAREWELL_SECONDS)
                await first(self._part(end), patience)
        except (_ClientGone, OSError):
            end = None
        finally:
            log.info("command ended", seconds=round(loop.time() - self._began, 3), outcome=_in_words(end))

    async def _part(self, end: Exited | Ended) -> None:
        await self._tell(channels.closing(end))
        with suppress(OSError):  # a client that knows how it ended need not wait
            await self._send({"type": "websocket.close", "code": 1000})

    async def _output(self) -> Exited | Ended:
        try:
            async for stream, data in self._session.output():
                channel = channels.STDERR if stream == STDERR else channels.STDOUT
                for start in range(0, len(data), _MESSAGE_BYTES):
                    await self._tell(channels.message(channel, data[start : start + _MESSAGE_BYTES]))
                    self._touch()
            return Exited(await self._session.exit_code())
        except _ClientGone:
            raise
        except Unstartable as error:
            return Ended(str(error), "NotRunning", error.code)
        except Exception as error:
            _log.warning("command lost", error=repr(error))
            return Ended("the connection to the instance was lost; the command may go on", "ServiceUnavailable", 503)

    async def _tell(self, message: bytes) -> None:
        try:
            await self._send({"type": "websocket.send", "bytes": message})
        except OSError:
            raise _ClientGone from None

    async def _input(self) -> None:
        """Takes what the client sends; returns when it has gone."""
        takes_input = self._command.stdin
        while (message := await self._receive())["type"] != "websocket.disconnect":
            match from_client(message.get("bytes") or b""):
                case Input(data) if takes_input and data:
                    self._touch()
                    await self._wait_for_room()
                    self._add(data)
                case EndOfInput() if takes_input:
                    takes_input = False
                    self._add(b"")
                case Resize(width, height) if self._command.tty:
                    await self._resize(width, height)

    def _add(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._more.set()

    async def _wait_for_room(self) -> None:
        """While nothing is received, only a failing send shows that a client has gone."""
        while self._pending_bytes > _WAITING_BYTES:
            self._room.clear()
            try:
                async with asyncio.timeout(_LOST_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                await self._tell(channels.message(channels.STDOUT))

    async def _feed(self) -> None:
        """Passes input to the command at its pace. One that has closed its input may go on without it."""
        accepted = True
        while True:
            while not self._pending:
                self._more.clear()
                await self._more.wait()
            data = self._pending.popleft()
            try:
                if accepted:
                    await (self._session.write(data) if data else self._session.end_input())
            except Exception as error:
                _log.debug("input not accepted", error=repr(error))
                accepted = False
            self._pending_bytes -= len(data)
            self._room.set()

    async def _resize(self, width: int, height: int) -> None:
        try:
            await self._session.resize(width, height)
        except Exception as error:  # a command that has just ended has no terminal
            _log.debug("terminal not resized", error=repr(error))

    def _touch(self) -> None:
        self._last_byte = asyncio.get_running_loop().time()

    async def _overdue(self, limits: Limits) -> str:
        """Returns when the session has taken too long, with the sentence that says so."""
        loop = asyncio.get_running_loop()
        while True:
            idle_end = self._last_byte + limits.idle_seconds if limits.idle_seconds is not None else None
            end = self._began + limits.seconds if limits.seconds is not None else None
            moments = [moment for moment in (idle_end, end) if moment is not None]
            if not moments:
                await asyncio.Event().wait()
            if end is not None and loop.time() >= end:
                return f"the session ended after {_minutes(limits.seconds)}, the longest that one may take"
            if idle_end is not None and loop.time() >= idle_end:
                return f"the session ended after {_minutes(limits.idle_seconds)} without input or output"
            await asyncio.sleep(min(moments) - loop.time())


def _minutes(seconds: float | None) -> str:
    return f"{(seconds or 0) / 60:g} minutes"


def _stopped(place: Place) -> Ended:
    return Ended(f'instance "{place.instance.name}" was stopped or replaced, and the session with it', "Gone", 410)


def _in_words(end: Exited | Ended | None) -> str:
    match end:
        case Exited(code):
            return f"exit code {code}"
        case Ended(message):
            return message
    return "the client left"
