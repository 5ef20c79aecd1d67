"""The plane of a project as commands use it: reads and writes that fail with messages for people. Entry points:
`Project`, `of_workload`."""

import builtins
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD, Workload
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
from datum_compute.kube.transport import Answer, Call

if TYPE_CHECKING:
    from datum_compute.kube.blocking import BlockingTransport  # loaded only for real calls

T = TypeVar("T", bound=KubeObject)

NAMESPACE = "default"
_PAGE = 500
_WRITE_TRIES = 5
_OUTCOME_UNKNOWN = "It is not known whether the change was made; check before you try again."


class Read(Struct, Generic[T], frozen=True):
    """An object together with the JSON that it was decoded from, which includes fields this program does not know."""

    object: T
    json: Raw

    def body(self) -> Json:
        """A fresh copy as plain JSON, for building a write from it."""
        return decode(self.json, dict[str, Any])


class Written(Struct, Generic[T], frozen=True):
    """An object before and after an update; the same one twice when there was nothing to change."""

    before: Read[T]
    after: Read[T]

    @property
    def changed(self) -> bool:
        return self.after is not self.before


class Listing(Struct, Generic[T], frozen=True):
    """The result of a list call."""

    kind: Kind[T]
    found: tuple[Read[T], ...]
    resource_version: str = ""

    @property
    def items(self) -> list[T]:
        return [read.object for read in self.found]

    def select(self, matches: Callable[[T], bool], order: Callable[[T], Any]) -> "Listing[T]":
        """Only the objects that match, in this order."""
        found = sorted((read for read in self.found if matches(read.object)), key=lambda read: order(read.object))
        return Listing(self.kind, tuple(found), self.resource_version)

    @property
    def records(self) -> dict[str, Raw]:
        """The objects by names such as `workload/shop`."""
        return {f"{self.kind.name.lower()}/{read.object.name}": read.json for read in self.found}

    def document(self, names: Sequence[str]) -> Json | Raw:
        """The Kubernetes list, or the object itself if it is the only one that was asked for by name, as in kubectl."""
        if len(names) == 1 and self.found:
            return self.found[0].json
        return {
            "apiVersion": self.kind.api_version,
            "kind": f"{self.kind.name}List",
            "metadata": {"resourceVersion": self.resource_version},
            "items": [read.json for read in self.found],
        }


def of_workload(workload: Workload) -> str:
    """The label selector for deployments and instances of a workload."""
    return f"{WORKLOAD_UID}={workload.metadata.uid}"


class Advice(Struct, frozen=True):
    """What the user can do about a server that is unreachable or refuses the credentials; depends on the target."""

    sign_in: str  # what to do about a 401
    start: Callable[[], str] = lambda: ""  # the command that starts the server, if it is a local federation
    origin: str = ""  # where the address of the server comes from
    context: str = ""  # the context of the kubeconfig, if there is one
    projects: str = ""  # the command that lists the projects of the server, if there is one


class Project:
    """All methods raise `Failure`; `find` returns None for an object that does not exist."""

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
        self._origin = f" ({advice.origin})" if advice.origin else ""

    def get(self, kind: Kind[T], name: str) -> Read[T]:
        action = f'reading {noun(kind)} "{name}"'
        with _valid_name(kind, name):
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
        """Each of these objects, once; raises a `Failure` for the first that does not exist."""
        return Listing(kind, tuple(self.get(kind, name) for name in dict.fromkeys(names)))

    def list(
        self, kind: Kind[T], selector: str = "", namespace: str = NAMESPACE, *, fields: str = "", action: str = ""
    ) -> Listing[T]:
        """All objects, page by page; raises a `Failure` caused by `NotFound` when the kind is not served.

        `action` describes the call in errors, by default as listing.
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
                with _decoding(action):
                    pages.add(answer)
        return Listing(kind, tuple(pages.items), pages.resource_version)

    def list_served(
        self, kind: Kind[T], selector: str = "", namespace: str = NAMESPACE, *, fields: str = ""
    ) -> Listing[T] | None:
        """The same, or None when the kind is not served or may not be read."""
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
        self, kind: Kind[T], read: Read[T], edit: Callable[[Json], Json], *, dry_run: bool = False
    ) -> Written[T]:
        """Writes the object as edited; after a conflict it is read and edited again, up to five times.

        Nothing is written when the edit changes nothing.
        """
        name = read.object.name
        action = f'updating {noun(kind)} "{name}"'
        for attempt in range(_WRITE_TRIES):
            before = read.body()
            after = edit(before)
            if after == before:
                return Written(read, read)
            call = calls.replace(kind, name, NAMESPACE, after, dry_run=dry_run, strict=True)
            try:
                return Written(read, self._read(kind, self._send(call, action, "update", kind, name), action))
            except Failure as failure:
                if not isinstance(failure.__cause__, Conflict) or attempt == _WRITE_TRIES - 1:
                    raise
            self._pause(_retry_delay(attempt))
            read = self.get(kind, name)
        raise AssertionError("the last try returns or raises")

    def delete(self, kind: Kind[T], name: str, uid: str) -> None:
        """Starts the deletion of the object with this uid; it is gone when its finalizers are."""
        with _valid_name(kind, name):
            call = calls.delete(kind, name, NAMESPACE, uid=uid, propagation="Background")
        self._send(call, f'deleting {noun(kind)} "{name}"', "delete", kind, name)

    def watch_call(self, kind: Kind[Any], *, name: str = "", selector: str = "") -> Call:
        """The call that watches one object, or all that match a label selector."""
        query = {"fieldSelector": f"metadata.name={name}"} if name else {}
        return Call("GET", kind.path(NAMESPACE), query | ({"labelSelector": selector} if selector else {}))

    def workload_watches(self, workload: Workload) -> builtins.list[Call]:
        """The calls that watch a workload, its deployments and its instances."""
        selector = of_workload(workload)
        return [
            self.watch_call(WORKLOAD, name=workload.name),
            self.watch_call(WORKLOAD_DEPLOYMENT, selector=selector),
            self.watch_call(INSTANCE, selector=selector),
        ]

    def answer(self, call: Call, action: str) -> Answer:
        """The answer to any call, good or bad; raises a `Failure` when there is none."""
        try:
            return self.transport.call(call)
        except (ApiError, KubeconfigError) as error:
            raise self.unanswered(error, action, call.method) from error

    def unanswered(self, error: ApiError | KubeconfigError, action: str, method: str = "GET") -> Failure:
        """The failure of a call that got no answer at all."""
        if isinstance(error, KubeconfigError):  # a token file that cannot be read
            return Failure(str(error), Exit.NOT_ALLOWED)
        received = _may_have_received(error)
        details = [_OUTCOME_UNKNOWN] if method != "GET" and received else []
        start = "" if received else self._advice.start()
        return Failure(f"{action}: {error.message}{self._origin}", details=details, next_command=start)

    def refused(self, error: ApiError, action: str, verb: str, what: str) -> Failure:
        """The failure of a call that was refused, whatever it was for; `what` is a plural."""
        match error:
            case Unauthorized():
                return Failure(f"not signed in or session expired — {self._advice.sign_in}", Exit.NOT_ALLOWED)
            case Forbidden():
                causes = [_cause(cause.field, cause.message) for cause in error.causes]
                context = [f"in {self._advice.context}"] if self._advice.context else []
                text = f"you do not have permission to {verb} {what} in project {self.name}"
                return Failure(text, Exit.NOT_ALLOWED, details=[*causes, *context])
        return Failure(f"{action}: {error.message}")

    def _send(self, call: Call, action: str, verb: str, kind: Kind[Any], name: str = "") -> bytes:
        answer = self.answer(call, action)
        if answer.code >= 300:
            refusal = from_status(answer.code, answer.body, self.name)
            raise self._failure(refusal, action, verb, kind, name) from refusal
        for warning in answer.warnings:
            self._warn(f"warning: {warning}")
        return answer.body

    def _read(self, kind: Kind[T], body: bytes | Raw, action: str) -> Read[T]:
        with _decoding(action):
            return Read(kind.decode(body), Raw(bytes(body)))

    def _failure(self, error: ApiError, action: str, verb: str, kind: Kind[Any], name: str) -> Failure:
        what = f'{noun(kind)} "{name}"'
        causes = [_cause(cause.field, cause.message) for cause in error.causes]
        context = [f"in {self._advice.context}"] if self._advice.context else []
        match error:
            case NotFound() if verb in ("list", "create"):
                text = f"project {self.name} does not exist or does not serve {nouns(kind)}{self._origin}"
                return Failure(text, Exit.UNAVAILABLE, details=[error.message], next_command=self._advice.projects)
            case NotFound():
                text = f"{what} not found in project {self.name}"
                return Failure(text, Exit.NOT_FOUND, details=context, next_command=_lister(kind))
            case AlreadyExists():
                text = f"{what} was created by someone else at the same time; try again"
                return Failure(text, Exit.CONFLICT)
            case Conflict():
                return Failure(f"{what} was changed by someone else at the same time; try again", Exit.CONFLICT)
            case Invalid():
                return Failure(f"{what} was rejected:", details=causes or [error.message])
            case BadRequest() if _STRICT in error.message:
                return Failure(f"{what} was rejected:", details=error.message.partition(_STRICT)[2].split(", "))
        return self.refused(error, action, verb, nouns(kind))


_STRICT = "strict decoding error: "  # what servers put before the list of unknown fields


@contextmanager
def _valid_name(kind: Kind[Any], name: str) -> Iterator[None]:
    """Fails for a name that no object can have."""
    try:
        yield
    except BadRequest:
        raise usage(f'"{name}" is not a valid {noun(kind)} name') from None


@contextmanager
def _decoding(action: str) -> Iterator[None]:
    """Fails for an answer that cannot be decoded."""
    try:
        yield
    except msgspec.MsgspecError as error:
        raise Failure(f"{action}: the server's answer makes no sense ({error})") from ServerError(str(error))


def _may_have_received(error: ApiError) -> bool:
    """Whether there was a server: then it need not be started, and may have carried out the call."""
    from datum_compute.kube.transport import Broken

    return isinstance(error, Timeout | Broken)


def _retry_delay(attempt: int) -> float:
    """With jitter, so that two writers do not collide again."""
    import random

    return random.uniform(0.05, 0.15) * (attempt + 1)


def noun(kind: Kind[Any]) -> str:
    """The kind in plain words: `workload`, `location binding`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.name).lower()


def nouns(kind: Kind[Any]) -> str:
    return f"{noun(kind)}s"


def _lister(kind: Kind[Any]) -> str:
    """The command that lists objects of a kind."""
    return {"Workload": "workloads", "Instance": "instances"}.get(kind.name, "")


def _cause(field: str, message: str) -> str:
    return f"{field}: {message}" if field else message
