"""Calls on one plane. Entry point: `Client`."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from datum_compute.kube.errors import ApiError, ServerError, from_status
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, ObjectMeta, decode, encode
from datum_compute.kube.patches import JSON, MERGE
from datum_compute.kube.transport import Answer, Call, Transport

T = TypeVar("T", bound=KubeObject)
D = TypeVar("D")


class ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""


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
    """Everything that can be asked of one plane. Raises `ApiError` subclasses that carry the plane's name."""

    def __init__(self, plane: str, transport: Transport) -> None:
        if not plane:
            raise ValueError("a client needs the name of its plane")
        self.plane = plane
        self._transport = transport

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return self._decoded(await self._send(Call("GET", kind.path(namespace, name))), kind.type)

    async def list(self, kind: Kind[T], namespace: str = "", selector: str = "") -> Listing[T]:
        query = {"labelSelector": selector} if selector else {}
        body = self._decoded(await self._send(Call("GET", kind.path(namespace), query)), _ListBody)
        return Listing([self._decoded(item, kind.type) for item in body.items], body.metadata.resource_version)

    @asynccontextmanager
    async def watch(
        self, kind: Kind[T], resource_version: str, *, timeout_seconds: int
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """Changes after `resource_version`, bookmarks included, until the server ends the watch."""
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_seconds),
        }
        try:
            async with (
                self._transport.stream(Call("GET", kind.path(), query)) as lines,
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
                    status = self._decoded(body.object, dict)
                    raise from_status(int(status.get("code", 500)), bytes(body.object), self.plane)
                case "BOOKMARK":
                    yield WatchEvent("BOOKMARK", self._decoded(body.object, _OnlyMeta).metadata.resource_version)
                case type_:
                    object_ = self._decoded(body.object, kind.type)
                    yield WatchEvent(type_, object_.metadata.resource_version, object_)

    async def create(self, kind: Kind[T], body: Json) -> T:
        namespace = str(body["metadata"].get("namespace", ""))
        return self._decoded(await self._send(Call("POST", kind.path(namespace), body=encode(body))), kind.type)

    async def replace(self, kind: Kind[T], body: Json, subresource: str = "") -> T:
        metadata = body["metadata"]
        path = kind.path(str(metadata.get("namespace", "")), str(metadata["name"]), subresource)
        return self._decoded(await self._send(Call("PUT", path, body=encode(body))), kind.type)

    async def replace_status(self, kind: Kind[T], seen: T, status: Json) -> T:
        """Replaces the whole status of the object as it was seen; `Conflict` when it has changed since."""
        body = kind.body(
            seen.name, seen.namespace, uid=seen.metadata.uid, resourceVersion=seen.metadata.resource_version
        )
        return await self.replace(kind, body | {"status": status}, "status")

    async def merge_patch(self, kind: Kind[T], name: str, namespace: str, patch: Json, subresource: str = "") -> T:
        call = Call("PATCH", kind.path(namespace, name, subresource), body=encode(patch), content_type=MERGE)
        return self._decoded(await self._send(call), kind.type)

    async def json_patch(
        self, kind: Kind[T], name: str, namespace: str, operations: Sequence[Json], subresource: str = ""
    ) -> T:
        call = Call("PATCH", kind.path(namespace, name, subresource), body=encode(operations), content_type=JSON)
        return self._decoded(await self._send(call), kind.type)

    async def delete(self, kind: Kind[T], name: str, namespace: str = "", *, uid: str = "") -> T | None:
        """The object as it waits for its finalizers, or None when it is gone at once."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            options["preconditions"] = {"uid": uid}
        answer = await self._send(Call("DELETE", kind.path(namespace, name), body=encode(options)))
        waiting = self._decoded(answer, _DeleteAnswer)
        if waiting.kind == "Status" or waiting.metadata.deletion_timestamp is None:
            return None
        return self._decoded(answer, kind.type)

    def _decoded(self, data: bytes | Raw, type_: type[D]) -> D:
        try:
            return decode(data, type_)
        except msgspec.MsgspecError as error:
            raise ServerError(f"the server's answer makes no sense: {error}", plane=self.plane) from None

    async def _send(self, call: Call) -> bytes:
        try:
            answer: Answer = await self._transport.call(call)
        except ApiError as error:
            error.plane = self.plane
            raise
        if answer.code >= 300:
            raise from_status(answer.code, answer.body, self.plane)
        return answer.body


class _DeleteAnswer(Struct, frozen=True):
    kind: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
