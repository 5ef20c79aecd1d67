"""An API server in memory for tests of controllers. It has the rules that the runtime relies on, and no others.

Entry points: `Server` for `InProcess`, the kinds `WIDGET` and `GADGET`, and `background`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from datum_compute.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Cause,
    Conflict,
    Gone,
    Invalid,
    MethodNotAllowed,
    NotFound,
)
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, encode
from datum_compute.kube.patches import merge
from datum_compute.kube.transport import Answer, Call

NAMESPACE = "default"
BOOKMARK_SECONDS = 60.0


class Widget(KubeObject, frozen=True):
    pass


class Gadget(KubeObject, frozen=True):
    pass


WIDGET = Kind("example.test", "v1", "Widget", "widgets", Widget)
GADGET = Kind("example.test", "v1", "Gadget", "gadgets", Gadget)

Key = tuple[str, str, str]  # plural, namespace, name


class Server:
    """The server of one plane. Tests act as other clients through its methods; answers wait for `answering`."""

    def __init__(self) -> None:
        self.revision = 100
        self.calls: list[Call] = []
        self.refuse: list[ApiError] = []  # errors for the next lists and watches, one each
        self.refuse_watches: ApiError | None = None
        self.short = False  # every watch ends as soon as it opens
        self.endless = False  # no watch ends, whatever timeout was requested
        self.unserved: set[str] = set()  # plurals that are not served
        self.garbage: list[bytes] = []  # raw answers for the next calls
        self.answering = asyncio.Event()
        self.answering.set()
        self.sending = asyncio.Event()  # answers to reads leave the server when it is set
        self.sending.set()
        self._objects: dict[Key, Json] = {}
        self._log: list[tuple[int, str, bytes]] = []  # revision, plural, line
        self._oldest = 0
        self._made = 0
        self._pages: list[Json] = []
        self._watches: list[_Watch] = []

    # As another client

    def make(self, name: str, kind: Kind[Any] = WIDGET, **metadata: Any) -> Json:
        _, namespace, _ = _key(kind, name)
        return self._create(kind.plural, namespace, kind.body(name, namespace, **metadata))

    def change(self, name: str, patch: Json | None = None, kind: Kind[Any] = WIDGET) -> Json:
        return self._patch(_key(kind, name), patch or {"spec": {"at": self.revision}})

    def remove(self, name: str, kind: Kind[Any] = WIDGET) -> None:
        self._delete(_key(kind, name), {})

    def has(self, name: str, kind: Kind[Any] = WIDGET) -> bool:
        return _key(kind, name) in self._objects

    def get(self, name: str, kind: Kind[Any] = WIDGET) -> Json:
        return self._found(_key(kind, name))

    def history(self) -> list[Json]:
        """Every object as each write left it, in the order of the writes."""
        return [msgspec.json.decode(line)["object"] for _, _, line in self._log]

    def versions(self, kind: Kind[Any] = WIDGET) -> dict[str, str]:
        """The resourceVersion of every object, by name."""
        return {
            name: object_["metadata"]["resourceVersion"]
            for (plural, _, name), object_ in sorted(self._objects.items())
            if plural == kind.plural
        }

    def forget_history(self) -> None:
        """Compacts: a watch can start from the next list at the earliest."""
        self.revision += 1
        self._oldest = self.revision

    def snapshot(self) -> "Snapshot":
        return Snapshot(self.revision, self._objects.copy())

    def restore(self, snapshot: "Snapshot") -> None:
        """Restores a backup: later writes never happened, and revisions count from there again."""
        self.revision, self._objects = snapshot.revision, snapshot.objects.copy()
        self._log = [entry for entry in self._log if entry[0] <= snapshot.revision]
        self._oldest = min(self._oldest, self.revision)
        self.end_watches()

    def end_watches(self) -> None:
        for watch in self._watches:
            watch.ended = True
            watch.changed.set()

    def send(self, line: bytes) -> None:
        """Sends a raw line to every open watch."""
        for watch in self._watches:
            watch.extra.append(line)
            watch.changed.set()

    def list_calls(self, kind: Kind[Any] = WIDGET) -> int:
        return len([call for call in self.calls if _reads(call, kind) and "watch" not in call.query])

    def watch_calls(self, kind: Kind[Any] = WIDGET) -> int:
        return len([call for call in self.calls if _reads(call, kind) and "watch" in call.query])

    @property
    def written(self) -> list[tuple[str, str]]:
        return [(call.method, call.path) for call in self.calls if call.method != "GET"]

    # As a server

    async def answer(self, call: Call) -> Answer:
        self.calls.append(call)
        await self.answering.wait()
        if self.garbage:
            return Answer(200, self.garbage.pop(0))
        try:
            answer = Answer(200, encode(self._handle(call)))
        except ApiError as error:
            answer = Answer(error.code, encode(error.status()))
        if call.method == "GET":
            await self.sending.wait()
        return answer

    def _handle(self, call: Call) -> Json:
        body = msgspec.json.decode(call.body) if call.body else {}
        key, status = _target(call.path)
        plural, namespace, _ = key
        match call.method:
            case "GET" if self.refuse:
                raise self.refuse.pop(0)
            case "GET" if key[2]:
                return self._found(key)
            case _ if plural in self.unserved:
                raise NotFound("the server could not find the requested resource")
            case "GET":
                return self._listing(plural, int(call.query.get("limit", 0)), call.query.get("continue", ""))
            case "POST":
                return self._create(plural, namespace, body)
            case "PUT" if status:
                metadata = {"resourceVersion": body["metadata"]["resourceVersion"]}
                return self._patch(key, {"metadata": metadata, "status": None}, replaced=body.get("status"))
            case "PUT":
                return self._replace(key, body)
            case "PATCH":
                return self._patch(key, body)
            case "DELETE":
                return self._delete(key, body)
        raise MethodNotAllowed(call.method)

    def _listing(self, plural: str, limit: int, goes_on: str) -> Json:
        """All pages are as of the first; a server that has forgotten that moment answers `Gone`."""
        if not goes_on:
            self._pages = [object_ for other, object_ in sorted(self._objects.items()) if other[0] == plural]
            at, start = self.revision, 0
        else:
            at, start = map(int, goes_on.split("/"))
            if at < self._oldest:
                raise Gone("the continue token is too old")
        end = start + limit if limit else len(self._pages)
        more = {"continue": f"{at}/{end}"} if end < len(self._pages) else {}
        return {"metadata": {"resourceVersion": str(at), **more}, "items": self._pages[start:end]}

    def _create(self, plural: str, namespace: str, body: Json) -> Json:
        key = (plural, namespace, body["metadata"]["name"])
        if key in self._objects:
            raise AlreadyExists(f"{key[2]} already exists")
        self._made += 1
        return self._write("ADDED", key, merge(body, {"metadata": {"uid": f"uid-{self._made}"}}))

    def _patch(self, key: Key, patch: Json, *, replaced: Json | None = None) -> Json:
        before = self._found(key)
        after = merge(before, patch)
        if replaced is not None:
            after["status"] = replaced
        if after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
            raise Conflict(f"{key[2]} was changed")
        if after["metadata"]["uid"] != before["metadata"]["uid"]:
            cause = Cause("FieldValueInvalid", "field is immutable", "metadata.uid")
            raise Invalid(f"{key[2]} is invalid", causes=[cause])
        graceful = after["metadata"].get("deletionGracePeriodSeconds", 0)
        if after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers") and not graceful:
            return self._write("DELETED", key, after)
        return self._write("MODIFIED", key, after)

    def _replace(self, key: Key, body: Json) -> Json:
        before = self._found(key)["metadata"]
        if body["metadata"].get("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
            raise Conflict(f"{key[2]} was changed")
        return self._write("MODIFIED", key, merge(body, {"metadata": {"uid": before["uid"]}}))

    def _delete(self, key: Key, options: Json) -> Json:
        before = self._found(key)
        uid = options.get("preconditions", {}).get("uid")
        if uid and uid != before["metadata"]["uid"]:
            raise Conflict(f"{key[2]} is another object now")
        if before["metadata"].get("finalizers"):
            deleting = {"metadata": {"deletionTimestamp": "2026-06-01T12:00:00Z"}}
            return self._write("MODIFIED", key, merge(before, deleting))
        self._write("DELETED", key, before)
        return {"kind": "Status", "metadata": {}, "status": "Success"}

    def _found(self, key: Key) -> Json:
        if key not in self._objects:
            raise NotFound(f"{key[2]} not found")
        return self._objects[key]

    def _write(self, type_: str, key: Key, object_: Json) -> Json:
        self.revision += 1
        after: Json = merge(object_, {"metadata": {"resourceVersion": str(self.revision)}})
        if type_ == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = after
        self._log.append((self.revision, key[0], encode({"type": type_, "object": after})))
        for watch in self._watches:
            watch.changed.set()
        return after

    @asynccontextmanager
    async def watch(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        self.calls.append(call)
        await self.answering.wait()
        if self.refuse:
            raise self.refuse.pop(0)
        if self.refuse_watches is not None:
            raise self.refuse_watches
        if _target(call.path)[0][0] in self.unserved:
            raise NotFound("the server could not find the requested resource")
        if not call.query["resourceVersion"].isdecimal():
            raise BadRequest("invalid resource version")
        after = int(call.query["resourceVersion"])
        if after < self._oldest:
            raise Gone("too old resource version")
        watch = _Watch()
        self._watches.append(watch)
        (plural, _, _), _ = _target(call.path)
        try:
            async with aclosing(self._lines(watch, plural, after, float(call.query["timeoutSeconds"]))) as lines:
                yield lines
        finally:
            self._watches.remove(watch)

    async def _lines(self, watch: "_Watch", plural: str, after: int, seconds: float) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        bookmark = loop.time() + BOOKMARK_SECONDS
        while not watch.ended and (self.endless or loop.time() < end) and not self.short:
            watch.changed.clear()
            while watch.extra:
                yield watch.extra.pop(0)
            entries = [entry for entry in self._log if entry[0] > after and entry[1] == plural]
            for revision, _, line in entries:
                after = revision
                yield line
            if loop.time() >= bookmark:
                bookmark = loop.time() + BOOKMARK_SECONDS
                if self.revision < after:
                    continue  # a watch from the future gets nothing until then, not even bookmarks
                after = self.revision
                yield encode({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(after)}}})
            if not watch.changed.is_set():
                await _set_or_due(watch.changed, bookmark if self.endless else min(bookmark, end))


def _key(kind: Kind[Any], name: str) -> Key:
    return (kind.plural, NAMESPACE if kind.namespaced else "", name)


def _reads(call: Call, kind: Kind[Any]) -> bool:
    return call.method == "GET" and call.path == kind.path()


class Snapshot(msgspec.Struct, frozen=True):
    revision: int
    objects: dict[Key, Json]


class _Watch:
    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.ended = False
        self.extra: list[bytes] = []


async def _set_or_due(event: asyncio.Event, due: float) -> None:
    try:
        async with asyncio.timeout_at(due):
            await event.wait()
    except TimeoutError:
        pass


def _target(path: str) -> tuple[Key, bool]:
    match path.strip("/").split("/"):
        case ["apis", _, _, plural] | ["api", _, plural]:
            return (plural, "", ""), False
        case ["apis", _, *root] | ["api", *root] if root[1:2] == ["namespaces"] and len(root) > 3:
            _, _, namespace, plural, *rest = root
            return (plural, namespace, rest[0] if rest else ""), rest[1:] == ["status"]
    raise NotFound(path)


@asynccontextmanager
async def background(*coroutines: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Runs coroutines for the duration of the block; one that fails, fails the block."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
