"""Commands in the Pods of cells. Entry point: `PodRunner`.

A site's own words quote the command, which may hold a secret: users and logs get sentences of ours.
"""

from collections.abc import AsyncIterator
from contextlib import suppress

import structlog

from datum_compute.federation.lines import STDERR, STDOUT
from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.kube.errors import ApiError, BadRequest, Conflict, Forbidden, NotFound, Unauthorized
from datum_compute.kube.transport import Link
from datum_compute.telemetry.cells.sites import Sites
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import SUBPROTOCOL, Ended, Exited, Output, from_server
from datum_compute.telemetry.exec.request import program, query_of

_PIECE = 32 * 1024  # of input; what kubelets read at once

_log = structlog.get_logger(__name__)


class PodRunner:
    """A `Runner`. A Pod has the name of its Instance; whether it is the Instance's is decided before it is asked."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites

    async def run(self, cell: str, namespace: str, instance: str, uid: str, command: Command) -> "PodSession":
        door = self._sites.door(cell)
        if door is None or not self._sites.ready(cell):
            raise Unstartable(f'the site of instance "{instance}" does not answer', 503)
        path = f"/api/v1/namespaces/{namespace}/pods/{instance}/exec"
        try:
            link = await door.websocket(path, query_of(command), SUBPROTOCOL)
        except ApiError as error:
            _log.warning("command not started", cell=cell, instance=instance, error=error.message)
            raise _refusal(error, instance) from None
        return PodSession(link, command)


def _refusal(error: ApiError, instance: str) -> Unstartable:
    match error:
        case NotFound() | BadRequest() | Conflict():
            return Unstartable(f'instance "{instance}" is not running at its site')
        case Unauthorized() | Forbidden():
            return Unstartable(f'the site of instance "{instance}" refuses to run commands for users', 503)
    return Unstartable(f'the site of instance "{instance}" does not answer', 503)


class PodSession:
    """A `Session` on the WebSocket of a Pod, whose wire is that of our users as well."""

    def __init__(self, link: Link, command: Command) -> None:
        self._link = link
        self._command = command
        self._end: Exited | Ended | None = None

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            await self._link.send(channels.message(channels.STDIN, data[start : start + _PIECE]))

    async def end_input(self) -> None:
        await self._link.send(channels.end_of(channels.STDIN))

    async def resize(self, width: int, height: int) -> None:
        await self._link.send(channels.resize(width, height))

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        while self._end is None and (message := await self._link.receive()) is not None:
            match from_server(message):
                case Output(channel, data) if data:
                    yield (STDERR if channel == channels.STDERR else STDOUT), data
                case Exited() | Ended() as end:
                    self._end = end

    async def exit_code(self) -> int:
        match self._end:
            case Exited(code):
                return code
            case Ended(text):
                sentence = _sentence(text, self._command)
                _log.warning("command failed", error=sentence)
                raise Unstartable(sentence)
        raise ConnectionError("the site did not say how the command ended")

    async def close(self) -> None:
        with suppress(ApiError):
            await self._link.close()


def _sentence(text: str, command: Command) -> str:
    """What is read instead of the site's words, which only choose between sentences."""
    if any(words in text for words in ("not found", "no such file", "not a directory")):
        return f'the program "{program(command)}" is not in the container'
    if "permission denied" in text:
        return f'the program "{program(command)}" may not be executed in the container'
    return "the site could not run the command, or lost it"
