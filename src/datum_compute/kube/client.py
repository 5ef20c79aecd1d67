"""Calls on one plane. Entry point: `Client`."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from datum_compute.kube.errors import ApiError, Gone, ServerError, Status, from_status
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, ObjectMeta, decode, encode
from datum_compute.kube.patches import MERGE
from datum_compute.kube.transport import Answer, Call, Transport

T = TypeVar("T", bound=KubeObject)
D = TypeVar("D")


class Unreadable(ServerError):
    """The server's answer cannot be read as what was asked for."""


class ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListBody(Struct, frozen=True):
    metadata: ListMeta
    items: list[Raw] = []


class Listing(Struct, Generic[T], frozen=True):
    items: list[T]
    resource_version: str


class _EventBody(Struct, frozen=True):
    type: str
    object: Raw


class _OnlyMeta(Struct, frozen=True):
    metadata: ObjectMeta


class WatchEvent(Struct, Generic[T], frozen=True):
    """One change as the server tells it. A bookmark carries no object, only how far the watch has come."""

    type: str  # ADDED, MODIFIED, DELETED, BOOKMARK
    resource_version: str
    object: T | None = None


class Client:
    """Everything that can be asked of one plane. Raises `ApiError` subclasses that carry the plane's name.

    A write with `dry_run` is checked by the server as any other and changes nothing. `subresource` is "status" or "".
    """

    def __init__(self, plane: str, transport: Transport) -> None:
        if not plane:
            raise ValueError("a client needs the name of its plane")
        self.plane = plane
        self._transport = transport

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return self._read(kind, await self._send(Call("GET", kind.path(namespace, name), accept=kind.accept())))

    async def list(
        self, kind: Kind[T], namespace: str = "", selector: str = "", *, fields: str = "", limit: int = 0
    ) -> Listing[T]:
        """All objects as they were at one moment; with `limit` they are asked for in pages of that size.

        A server that forgets the moment between two pages is asked again for everything at once, which cannot come
        too late.
        """
        query = _given(labelSelector=selector, fieldSelector=fields, limit=str(limit) if limit else "")
        page, found = await self._page(kind, namespace, query)
        items = [*found]
        while page.continue_:
            try:
                page, found = await self._page(kind, namespace, query | {"continue": page.continue_})
            except Gone:
                query.pop("limit", None)
                page, found = await self._page(kind, namespace, query)
                items.clear()
            items += found
        return Listing(items, page.resource_version)

    async def _page(self, kind: Kind[T], namespace: str, query: dict[str, str]) -> tuple[ListMeta, Sequence[T]]:
        call = Call("GET", kind.path(namespace), query, accept=kind.accept(listed=True))
        body = self._decoded(await self._send(call), _ListBody)
        found = [self._read(kind, item) for item in body.items]
        return body.metadata, found

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        *,
        timeout_seconds: int,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """Changes after `resource_version`, bookmarks included, until the server ends the watch."""
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
        } | _given(labelSelector=selector, fieldSelector=fields)
        try:
            async with (
                self._transport.stream(Call("GET", kind.path(namespace), query, accept=kind.accept())) as lines,
                aclosing(self._events(kind, lines)) as events,
            ):
                yield events
        except ApiError as error:
            error.plane = self.plane
            raise

    async def _events(self, kind: Kind[T], lines: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent[T], None]:
        async for line in lines:
            body = self._decoded(line, _EventBody)
            match body.type:
                case "ERROR":
                    status = self._decoded(body.object, Status)
                    raise from_status(status.code or 500, bytes(body.object), self.plane)
                case "BOOKMARK":
                    version = self._decoded(body.object, _OnlyMeta).metadata.resource_version
                    yield WatchEvent("BOOKMARK", version)
                case type_:
                    object_ = self._read(kind, body.object)
                    yield WatchEvent(type_, object_.metadata.resource_version, object_)

    async def create(self, kind: Kind[T], body: Json, *, dry_run: bool = False) -> T:
        namespace = str(body["metadata"].get("namespace", ""))
        return await self._write(kind, Call("POST", kind.path(namespace), _dry(dry_run), encode(body)))

    async def replace(self, kind: Kind[T], body: Json, subresource: str = "", *, dry_run: bool = False) -> T:
        path = _path(kind, body, subresource)
        return await self._write(kind, Call("PUT", path, _dry(dry_run), encode(body)))

    async def replace_status(self, kind: Kind[T], seen: T, status: Json, *, dry_run: bool = False) -> T:
        """Replaces the whole status of the object as it was seen; `Conflict` when it has changed since."""
        return await self.replace(kind, _as_seen(kind, seen) | {"status": status}, "status", dry_run=dry_run)

    async def clear_status(self, kind: Kind[T], seen: T) -> T:
        """Takes the whole status away; `Conflict` when the object has changed since it was seen."""
        return await self.replace(kind, _as_seen(kind, seen), "status")

    async def merge_patch(
        self, kind: Kind[T], name: str, namespace: str, patch: Json, subresource: str = "", *, dry_run: bool = False
    ) -> T:
        path = kind.path(namespace, name, subresource)
        return await self._write(kind, Call("PATCH", path, _dry(dry_run), encode(patch), MERGE))

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "",  # Background, Foreground, Orphan
        dry_run: bool = False,
    ) -> T | None:
        """The object as it waits for its finalizers, or None when it is gone at once.

        `Conflict` when it is not the one with this uid, or was changed since this resourceVersion.
        """
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if preconditions := _given(uid=uid, resourceVersion=resource_version):
            options["preconditions"] = preconditions
        if propagation:
            options["propagationPolicy"] = propagation
        if dry_run:
            options["dryRun"] = ["All"]
        answer = await self._send(Call("DELETE", kind.path(namespace, name), body=encode(options)))
        waiting = self._decoded(answer, _DeleteAnswer)
        if waiting.kind == "Status" or waiting.metadata.deletion_timestamp is None:
            return None
        return self._read(kind, answer)

    async def _write(self, kind: Kind[T], call: Call) -> T:
        return self._read(kind, await self._send(call))

    def _read(self, kind: Kind[T], data: bytes | Raw) -> T:
        return kind.mark(self._decoded(data, kind.type))

    def _decoded(self, data: bytes | Raw, type_: type[D]) -> D:
        try:
            return decode(data, type_)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the server's answer makes no sense: {error}", plane=self.plane) from None

    async def _send(self, call: Call) -> bytes:
        try:
            answer: Answer = await self._transport.call(call)
        except ApiError as error:
            error.plane = self.plane
            raise
        if answer.code >= 300:
            raise from_status(answer.code, answer.body, self.plane, answer.retry_after)
        return answer.body


class _DeleteAnswer(Struct, frozen=True):
    kind: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


def _as_seen(kind: Kind[T], seen: T) -> Json:
    """The start of a write that happens only to the object as it was seen."""
    metadata = seen.metadata
    return kind.body(seen.name, seen.namespace, uid=metadata.uid, resourceVersion=metadata.resource_version)


def _path(kind: Kind[T], body: Json, subresource: str) -> str:
    metadata = body["metadata"]
    return kind.path(str(metadata.get("namespace", "")), str(metadata["name"]), subresource)


def _given(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}
