"""One project's plane as commands use it: reads and writes whose failures are told in words. Entry point: `Project`."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.kube import calls
from datum_compute.kube.access.kubeconfig import KubeconfigError
from datum_compute.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    Timeout,
    Unauthorized,
    from_status,
)
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, decode
from datum_compute.kube.transport import Call

if TYPE_CHECKING:
    from datum_compute.kube.blocking import BlockingTransport  # loading it is for those who really call

T = TypeVar("T", bound=KubeObject)

NAMESPACE = "default"
_PAGE = 500
_WRITE_TRIES = 5
_NOT_KNOWN = "Whether the change was made is not known; look before you try again."


class Read(Struct, Generic[T], frozen=True):
    """An object together with the JSON it came as, which also holds what this program does not know."""

    object: T
    json: Raw

    def body(self) -> Json:
        """A fresh copy as plain values, for building a write from it."""
        return decode(self.json, dict[str, Any])


class Written(Struct, Generic[T], frozen=True):
    """What an update replaced, and what it left; the same one twice when there was nothing to change."""

    before: Read[T]
    after: Read[T]

    @property
    def changed(self) -> bool:
        return self.after is not self.before


class Listing(Struct, Generic[T], frozen=True):
    """What a list call found; `as_json` is the Kubernetes list of those that are kept."""

    kind: Kind[T]
    found: tuple[Read[T], ...]
    resource_version: str = ""

    @property
    def items(self) -> list[T]:
        return [read.object for read in self.found]

    def kept(self, wanted: Callable[[T], bool], order: Callable[[T], Any]) -> "Listing[T]":
        found = sorted((read for read in self.found if wanted(read.object)), key=lambda read: order(read.object))
        return Listing(self.kind, tuple(found), self.resource_version)

    def as_json(self) -> Json:
        return {
            "apiVersion": self.kind.api_version,
            "kind": f"{self.kind.name}List",
            "metadata": {"resourceVersion": self.resource_version},
            "items": [read.json for read in self.found],
        }

    def document(self, names: Sequence[str]) -> Json | Raw:
        """As kubectl shows what was asked for by name: one object as itself, several as a list."""
        return self.found[0].json if len(names) == 1 and self.found else self.as_json()


class Advice(Struct, frozen=True):
    """What to do about a server that does not know us, or is not there; it depends on the place."""

    sign_in: str  # what to do about a 401
    start: Callable[[], str] = lambda: ""  # the command that starts the server, when it is ours
    named_by: str = ""  # what led to this server
    context: str = ""  # the context that was asked, where one was chosen by a kubeconfig


class Project:
    """Everything here raises `Failure`, except `find`, which knows nothing wrong with what is not there."""

    def __init__(
        self,
        name: str,
        transport: "BlockingTransport",
        advice: Advice,
        *,
        pause: Callable[[float], None],
        warn: Callable[[str], None],
    ) -> None:
        self.name = name
        self.transport = transport
        self._advice = advice
        self._pause = pause
        self._warn = warn
        self._led_by = f" ({advice.named_by})" if advice.named_by else ""

    def get(self, kind: Kind[T], name: str) -> Read[T]:
        action = f'reading {noun(kind)} "{name}"'
        with _usable(kind, name):
            call = calls.get(kind, name, NAMESPACE)
        return self._read(kind, self._send(call, action, "get", kind, name), action)

    def find(self, kind: Kind[T], name: str) -> Read[T] | None:
        try:
            return self.get(kind, name)
        except Failure as failure:
            if isinstance(failure.__cause__, NotFound):
                return None
            raise

    def get_all(self, kind: Kind[T], names: Sequence[str]) -> Listing[T]:
        """Each of these, once; raises a `Failure` for the first that is not there."""
        return Listing(kind, tuple(self.get(kind, name) for name in dict.fromkeys(names)))

    def list(
        self, kind: Kind[T], selector: str = "", namespace: str = NAMESPACE, *, fields: str = "", action: str = ""
    ) -> Listing[T]:
        """All objects, page by page; raises a `Failure` caused by `NotFound` when the kind is not served there.

        `action` is what the user would say is being done, where that is not simply listing.
        """
        action = action or f"listing {nouns(kind)}"
        pages = calls.Pages(
            kind, lambda item: self._read(kind, item, action), namespace, selector, fields=fields, limit=_PAGE
        )
        while pages.next_call is not None:
            try:
                answer = self._send(pages.next_call, action, "list", kind)
            except Failure as failure:
                if not isinstance(failure.__cause__, Gone) or not pages.restart():
                    raise
            else:
                with _readable(action):
                    pages.add(answer)
        return Listing(kind, tuple(pages.items), pages.resource_version)

    def list_served(
        self, kind: Kind[T], selector: str = "", namespace: str = NAMESPACE, *, fields: str = ""
    ) -> Listing[T] | None:
        """The same; None when the kind is not served there, or not to be seen."""
        try:
            return self.list(kind, selector, namespace, fields=fields)
        except Failure as failure:
            if isinstance(failure.__cause__, NotFound | Forbidden):
                return None
            raise

    def create(self, kind: Kind[T], body: Json, *, dry_run: bool = False) -> Read[T]:
        name = str(body["metadata"]["name"])
        action = f'creating {noun(kind)} "{name}"'
        call = calls.create(kind, NAMESPACE, body, dry_run=dry_run, strict=True)
        return self._read(kind, self._send(call, action, "create", kind, name), action)

    def update(
        self, kind: Kind[T], seen: Read[T], edit: Callable[[Json], Json], *, dry_run: bool = False
    ) -> Written[T]:
        """Writes the object as edited. When somebody else was faster it is read and edited again, five times in all.

        Nothing is written when the edit changes nothing.
        """
        name = seen.object.name
        action = f'updating {noun(kind)} "{name}"'
        for attempt in range(_WRITE_TRIES):
            before = seen.body()
            after = edit(before)
            if after == before:
                return Written(seen, seen)
            call = calls.replace(kind, name, NAMESPACE, after, dry_run=dry_run, strict=True)
            try:
                return Written(seen, self._read(kind, self._send(call, action, "update", kind, name), action))
            except Failure as failure:
                if not isinstance(failure.__cause__, Conflict) or attempt == _WRITE_TRIES - 1:
                    raise
            self._pause(_a_moment(attempt))
            seen = self.get(kind, name)
        raise AssertionError("the last try returns or raises")

    def delete(self, kind: Kind[T], name: str, uid: str) -> None:
        """Starts the deletion of this very object; it is gone when its finalizers are."""
        with _usable(kind, name):
            call = calls.delete(kind, name, NAMESPACE, uid=uid, propagation="Background")
        self._send(call, f'deleting {noun(kind)} "{name}"', "delete", kind, name)

    def watch_call(self, kind: Kind[Any], *, name: str = "", selector: str = "") -> Call:
        """The call that watches one object, or all that a label selector finds."""
        query = {"fieldSelector": f"metadata.name={name}"} if name else {}
        return Call("GET", kind.path(NAMESPACE), query | ({"labelSelector": selector} if selector else {}))

    def _send(self, call: Call, action: str, verb: str, kind: Kind[Any], name: str = "") -> bytes:
        try:
            answer = self.transport.call(call)
        except ApiError as error:  # there is no answer at all
            heard = _may_have_heard(error)
            details = [_NOT_KNOWN] if call.method != "GET" and heard else []
            start = "" if heard else self._advice.start()
            raise Failure(f"{action}: {error.message}{self._led_by}", details=details, next_command=start) from error
        except KubeconfigError as error:  # a token file that cannot be read
            raise Failure(str(error), Exit.NOT_ALLOWED) from None
        if answer.code >= 300:
            refused = from_status(answer.code, answer.body, self.name)
            raise self._in_words(refused, action, verb, kind, name) from refused
        for warning in answer.warnings:
            self._warn(f"warning: {warning}")
        return answer.body

    def _read(self, kind: Kind[T], body: bytes | Raw, action: str) -> Read[T]:
        with _readable(action):
            return Read(kind.decode(body), Raw(bytes(body)))

    def _in_words(self, error: ApiError, action: str, verb: str, kind: Kind[Any], name: str) -> Failure:
        what = f'{noun(kind)} "{name}"'
        causes = [_cause(cause.field, cause.message) for cause in error.causes]
        where = [f"asked in {self._advice.context}"] if self._advice.context else []
        match error:
            case NotFound() if verb in ("list", "create"):
                text = f"project {self.name} does not exist or does not serve {nouns(kind)}{self._led_by}"
                return Failure(text, Exit.UNAVAILABLE, details=[error.message])
            case NotFound():
                text = f"{what} not found in project {self.name}"
                return Failure(text, Exit.NOT_FOUND, details=where, next_command=_lister(kind))
            case AlreadyExists():
                text = f"{what} was created by someone else at the same time; try again"
                return Failure(text, Exit.CONFLICT)
            case Conflict():
                return Failure(f"{what} was changed by someone else at the same time; try again", Exit.CONFLICT)
            case Unauthorized():
                return Failure(f"not signed in or session expired — {self._advice.sign_in}", Exit.NOT_ALLOWED)
            case Forbidden():
                text = f"you do not have permission to {verb} {nouns(kind)} in project {self.name}"
                return Failure(text, Exit.NOT_ALLOWED, details=[*causes, *where])
            case Invalid():
                return Failure(f"{what} was rejected:", details=causes or [error.message])
            case BadRequest() if _STRICT in error.message:
                return Failure(f"{what} was rejected:", details=error.message.partition(_STRICT)[2].split(", "))
        return Failure(f"{action}: {error.message}")


_STRICT = "strict decoding error: "  # how servers begin the list of fields that they do not know


@contextmanager
def _usable(kind: Kind[Any], name: str) -> Iterator[None]:
    """Refuses a name that no object can have; whoever typed it may have meant another object."""
    try:
        yield
    except BadRequest:
        raise usage(f'"{name}" is no name that a {noun(kind)} can have') from None


@contextmanager
def _readable(action: str) -> Iterator[None]:
    try:
        yield
    except msgspec.MsgspecError as error:
        raise Failure(f"{action}: the server's answer makes no sense ({error})") from ServerError(str(error))


def _may_have_heard(error: ApiError) -> bool:
    """Whether there was a server at all: then it need not be started, and may have done what it was asked for."""
    from datum_compute.kube.transport import Broken

    return isinstance(error, Timeout | Broken)


def _a_moment(attempt: int) -> float:
    """With jitter, so that two who met do not meet again."""
    import random

    return random.uniform(0.05, 0.15) * (attempt + 1)


def noun(kind: Kind[Any]) -> str:
    """The kind in plain words: `workload`, `location binding`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.name).lower()


def nouns(kind: Kind[Any]) -> str:
    return f"{noun(kind)}s"


def _lister(kind: Kind[Any]) -> str:
    """The verb that lists a kind."""
    return {"Workload": "workloads", "Instance": "instances"}.get(kind.name, "")


def _cause(field: str, message: str) -> str:
    return f"{field}: {message}" if field else message
