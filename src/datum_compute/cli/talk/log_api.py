"""The read API for logs, in Loki's JSON. Entry point: `LogApi`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from datum_compute.api.reasons import FAILED, INSTANCE_CRASHING
from datum_compute.cli.logs.entries import Entry, Frame, Labels, Page, decode_frame, decode_page, entries_of
from datum_compute.cli.logs.following import Lost, NotFollowed
from datum_compute.cli.logs.pages import Request
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.talk.project import Project
from datum_compute.kube.access.kubeconfig import KubeconfigError
from datum_compute.kube.errors import (
    ApiError,
    NotFound,
    ServerError,
    Timeout,
    TooManyRequests,
    Unavailable,
    from_status,
)
from datum_compute.kube.transport import Answer, Call

if TYPE_CHECKING:
    from datum_compute.kube.blocking import Stream  # loaded only for real calls

T = TypeVar("T")

_ACTION = "reading logs"
FAILING = (INSTANCE_CRASHING, FAILED)
"""Reasons of instances whose lines may tell more."""

GROUP = "/apis/o11y.miloapis.com/v1alpha1"
SILENCE_SECONDS = 45.0  # without a byte, of which a server sends one every 15 seconds
_ROOT = f"{GROUP}/logs/loki/api/v1"
_WITHOUT_TAIL = (400, 404, 405, 426, 501)  # what servers answer that cannot be followed


class _Refusal(Struct, frozen=True):
    error: str = ""


class _Names(Struct, frozen=True):
    data: list[str] | None = None


class _Series(Struct, frozen=True):
    data: list[dict[str, str]] | None = None


class LogApi:
    """Reads lines of one project. All methods raise a `Failure`, which is `Lost` if trying again may help.

    `next_command` is what to do where logs are not served; `warn` is called with what is missing in the lines, once.
    """

    def __init__(self, plane: Project, next_command: str, warn: Callable[[str], None]) -> None:
        self._plane = plane
        self._next_command = next_command
        self._warn = warn
        self._warnings: set[str] = set()

    def page(self, request: Request, *, previous: bool = False) -> tuple[list[Entry], bool]:
        """Lines in order of time. With `previous`, those of the run before the last restart, if the second value is
        True; other servers do not know what was meant."""
        query = {"query": request.query, "start": str(request.start), "limit": str(request.limit)}
        query["direction"] = "backward" if request.backward else "forward"
        if request.end is not None:
            query["end"] = str(request.end)
        if previous:
            query["previous"] = "true"
        with _decoding():
            page: Page = decode_page(self._get("query_range", query))
            for warning in page.warnings:
                if warning not in self._warnings:
                    self._warnings.add(warning)
                    self._warn(warning)
            return entries_of(page.data.result, backward=request.backward), page.previous

    def lines(self, request: Request) -> list[Entry]:
        return self.page(request)[0]

    def labels(self, start: int) -> Sequence[str]:
        return self._decoded(self._get("labels", {"start": str(start)}), _Names).data or []

    def values(self, label: str, start: int, query: str = "") -> Sequence[str]:
        """The values of a label, of all streams or of those that match a query."""
        matching = {"query": query} if query else {}
        return self._decoded(self._get(f"label/{label}/values", {"start": str(start)} | matching), _Names).data or []

    def series(self, query: str, start: int, end: int | None) -> Sequence[Labels]:
        """The labels of all streams that match."""
        until = {"end": str(end)} if end is not None else {}
        body = self._get("series", {"match[]": query, "start": str(start)} | until)
        return [Labels.of(labels) for labels in self._decoded(body, _Series).data or []]

    @contextmanager
    def tail(self, query: str, start: int, limit: int) -> Iterator[Iterator[Frame]]:
        """The newest lines from `start` on, then new ones as they are written. Entering it may raise `NotFollowed`."""
        call = Call("GET", f"{_ROOT}/tail", {"query": query, "start": str(start), "limit": str(limit)})
        with self._open(call) as stream:
            if stream.code >= 300:
                answer = Answer(stream.code, _whole(stream))
                if stream.code in _WITHOUT_TAIL:
                    raise NotFollowed(_message(answer))
                self._refuse(answer)
            yield _frames(stream)

    def _open(self, call: Call) -> "Stream":
        try:
            return self._plane.transport.open(call, silence=SILENCE_SECONDS)
        except (ApiError, KubeconfigError) as error:
            raise _lost(self._plane.unanswered(error, _ACTION), error) from error

    def _get(self, path: str, query: dict[str, str]) -> bytes:
        try:
            answer = self._plane.answer(Call("GET", f"{_ROOT}/{path}", query), _ACTION)
        except Failure as failure:
            raise _lost(failure, failure.__cause__) from failure.__cause__
        if answer.code >= 300:
            self._refuse(answer)
        return answer.body

    def _refuse(self, answer: Answer) -> NoReturn:
        refusal = from_status(answer.code, answer.body, self._plane.name)
        refusal.message = _message(answer) or refusal.message
        failure = self._plane.refused(refusal, _ACTION, "read", "logs")
        if isinstance(refusal, NotFound):
            text = f"logs are not served in project {self._plane.name}"
            failure = Failure(text, Exit.UNAVAILABLE, next_command=self._next_command)
        raise _lost(failure, refusal) from refusal

    def _decoded(self, body: bytes, type_: type[T]) -> T:
        with _decoding():
            return msgspec.json.decode(body, type=type_)


def is_served(plane: Project) -> bool:
    """Whether the project has logs to read. A server that does not answer has none to recommend."""
    try:
        return plane.answer(Call("GET", GROUP), "looking for logs").code < 300
    except Failure:
        return False


def _lost(failure: Failure, cause: BaseException | None) -> Failure:
    """The failure, marked as one that trying again may cure, if its cause says so."""
    if isinstance(cause, TooManyRequests | ServerError | Unavailable | Timeout) and cause.retryable:
        return Lost(cause.message, failure, crowded=isinstance(cause, TooManyRequests))
    return failure


def _frames(stream: "Stream") -> Iterator[Frame]:
    try:
        for line in stream:
            if not line.endswith(b"\n"):
                raise Lost("the connection ended in the middle of a line")
            yield decode_frame(line)
    except ApiError as error:
        raise Lost(error.message) from error
    except ValueError as error:
        raise Failure(f"{_ACTION}: the server's answer makes no sense ({error})") from error


def _whole(stream: "Stream") -> bytes:
    try:
        return b"".join(stream)
    except ApiError:
        return b""


def _message(answer: Answer) -> str:
    """What the log store says, in a form of its own."""
    try:
        return msgspec.json.decode(answer.body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # also msgspec's errors
        raise Failure(f"{_ACTION}: the server's answer makes no sense ({error})") from error
