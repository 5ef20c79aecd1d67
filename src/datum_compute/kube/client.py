"""An asynchronous client of one plane. Entry point: `Client`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from datum_compute.kube import calls
from datum_compute.kube.calls import RawEvent, WatchEvent
from datum_compute.kube.errors import ApiError, Gone, NotFound, ServerError, Status, from_status
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, decode
from datum_compute.kube.transport import Call, Transport

T = TypeVar("T", bound=KubeObject)


class Unreadable(ServerError):
    """The server's answer cannot be decoded."""


class Listing(Struct, Generic[T], frozen=True):
    items: list[T]
    resource_version: str


class Client:
    """Reads and writes on one plane. Raises `ApiError` subclasses that carry the plane's name.

    A write with `dry_run` is checked by the server like any other and changes nothing. `subresource` is "status" or "".
    """

    def __init__(self, plane: str, transport: Transport) -> None:
        if not plane:
            raise ValueError("a client needs the name of its plane")
        self.plane = plane
        self._transport = transport

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return self._read(kind, await self._send(calls.get(kind, name, namespace)))

    async def find(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        """The object, or None when it does not exist."""
        try:
            return await self.get(kind, name, namespace)
        except NotFound:
            return None

    async def list(
        self, kind: Kind[T], namespace: str = "", selector: str = "", *, fields: str = "", limit: int = 0
    ) -> Listing[T]:
        """All objects as they were at one moment, in pages of `limit` objects."""
        pages = calls.Pages(kind, kind.decode, namespace, selector, fields=fields, limit=limit)
        while pages.next_call is not None:
            try:
                pages.add(await self._send(pages.next_call))
            except Gone:
                if not pages.restart():
                    raise
            except msgspec.MsgspecError as error:
                raise self._unreadable(error) from None
        return Listing(pages.items, pages.resource_version)

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
        call = calls.watch(
            kind,
            resource_version,
            timeout_seconds=timeout_seconds,
            namespace=namespace,
            selector=selector,
            fields=fields,
        )
        try:
            async with self._transport.stream(call) as lines, aclosing(self._events(kind, lines)) as events:
                yield events
        except ApiError as error:
            error.plane = self.plane
            raise

    async def _events(self, kind: Kind[T], lines: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent[T], None]:
        async for line in lines:
            try:
                event = decode(line, RawEvent)
                if event.type == "ERROR":
                    code = decode(event.object, Status).code or 500
                    raise from_status(code, bytes(event.object), self.plane)
                change = event.read(kind)
            except msgspec.MsgspecError as error:
                raise self._unreadable(error) from None
            yield change

    async def create(self, kind: Kind[T], body: Json, *, dry_run: bool = False) -> T:
        namespace = str(body["metadata"].get("namespace", ""))
        return self._read(kind, await self._send(calls.create(kind, namespace, body, dry_run=dry_run)))

    async def replace(self, kind: Kind[T], body: Json, subresource: str = "", *, dry_run: bool = False) -> T:
        metadata = body["metadata"]
        name, namespace = str(metadata["name"]), str(metadata.get("namespace", ""))
        call = calls.replace(kind, name, namespace, body, subresource, dry_run=dry_run)
        return self._read(kind, await self._send(call))

    async def replace_status(self, kind: Kind[T], seen: T, status: Json, *, dry_run: bool = False) -> T:
        """Replaces the whole status of the object as it was seen; `Conflict` when it has changed since."""
        return await self.replace(kind, _as_seen(kind, seen) | {"status": status}, "status", dry_run=dry_run)

    async def clear_status(self, kind: Kind[T], seen: T) -> T:
        """Removes the whole status; `Conflict` when the object has changed since it was seen."""
        return await self.replace(kind, _as_seen(kind, seen), "status")

    async def merge_patch(
        self, kind: Kind[T], name: str, namespace: str, patch: Json, subresource: str = "", *, dry_run: bool = False
    ) -> T:
        call = calls.merge_patch(kind, name, namespace, patch, subresource, dry_run=dry_run)
        return self._read(kind, await self._send(call))

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

        `Conflict` when it has another uid, or was changed since this resourceVersion.
        """
        call = calls.delete(
            kind,
            name,
            namespace,
            uid=uid,
            resource_version=resource_version,
            propagation=propagation,
            dry_run=dry_run,
        )
        answer = await self._send(call)
        try:
            return calls.after_delete(kind, answer)
        except msgspec.MsgspecError as error:
            raise self._unreadable(error) from None

    async def _send(self, call: Call) -> bytes:
        try:
            answer = await self._transport.call(call)
        except ApiError as error:
            error.plane = self.plane
            raise
        if answer.code >= 300:
            raise from_status(answer.code, answer.body, self.plane, answer.retry_after)
        return answer.body

    def _read(self, kind: Kind[T], data: bytes) -> T:
        try:
            return kind.decode(data)
        except msgspec.MsgspecError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: msgspec.MsgspecError) -> Unreadable:
        return Unreadable(f"the server's answer makes no sense: {error}", plane=self.plane)


def _as_seen(kind: Kind[T], seen: T) -> Json:
    """The start of a write that happens only to the object as it was seen."""
    metadata = seen.metadata
    return kind.body(seen.name, seen.namespace, uid=metadata.uid, resourceVersion=metadata.resource_version)
