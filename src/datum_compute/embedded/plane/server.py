"""The API of one plane. Entry point: `PlaneServer`."""

import asyncio
import random
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.embedded.kinds.definitions import DEFINITIONS
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane import bodies, registry
from datum_compute.embedded.plane.pages import Page, check_options, number, page_of
from datum_compute.embedded.plane.reviews import evaluate, review_at
from datum_compute.embedded.plane.strictness import Strictness
from datum_compute.embedded.plane.watches import Selection, Watch
from datum_compute.embedded.storage.records import Key, Record
from datum_compute.embedded.storage.store import Operation, Store, Transaction
from datum_compute.kube.admission import ADMINISTRATORS, CREATE, DELETE, UPDATE, Admit, Review, User
from datum_compute.kube.errors import ApiError, BadRequest, Forbidden, Gone, MethodNotAllowed, NotFound
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.selectors import FieldSelector, LabelSelector
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime import Clock

T = TypeVar("T")

Deleted = tuple[Record, bool]  # the deleted object, and whether it is gone already

WITHIN = User("system:compute", (ADMINISTRATORS,))
"""The controllers of this process."""

AGENT_WITHIN = "compute-manager"

DEFAULT_WATCH_SECONDS = 1800


class Target(Struct, frozen=True):
    """The kind, object or subresource that a path names."""

    served: ServedKind
    namespace: str
    name: str
    subresource: str


Submit = Callable[[Operation[Any]], Awaitable[Any]]


class PlaneServer:
    """Answers calls on one plane. All writes go through `submit`, which commits before it returns."""

    def __init__(
        self,
        plane: str,
        kinds: tuple[ServedKind, ...],
        store: Store,
        submit: Submit,
        clock: Clock,
        generator: random.Random,
        admit: Admit | None = None,
        role: str = "",
    ) -> None:
        self.plane = plane
        self._role = role
        self._admit = admit
        self.kinds = {served.resource: served for served in kinds}
        self._by_path = {(served.group, served.version, served.plural): served for served in kinds}
        self._store = store
        self._submit = submit
        self._clock = clock
        self._generator = generator
        self._watches: dict[int, Watch] = {}
        self.terminating: set[str] = set()  # kinds whose definition is being deleted

    def define(self, served: ServedKind, *, terminating: bool) -> None:
        """Serves a kind from now on, or serves its new definition."""
        self.kinds[served.resource] = served
        self._by_path[served.group, served.version, served.plural] = served
        if terminating:
            self.terminating.add(served.resource)

    def undefine(self, resource: str) -> None:
        """Stops serving a kind and ends its watches."""
        self.terminating.discard(resource)
        if served := self.kinds.pop(resource, None):
            del self._by_path[served.group, served.version, served.plural]
            for watch in self._watches.values():
                if watch.served.resource == resource:
                    watch.end()

    def close(self) -> None:
        """Ends every watch; the plane is no longer reachable."""
        for watch in self._watches.values():
            watch.end()

    async def answer(self, call: Call, user: User = WITHIN, agent: str = AGENT_WITHIN) -> Answer:
        """Answers a call by `user`, who is subject to the admission rules; callers within this process are exempt.

        `agent` is the program of the caller, which is the manager of the fields it writes unless it names another.
        """
        try:
            return await self._handle(call, user, agent)
        except ApiError as error:
            return Answer(error.code, encode(error.status()))
        except RecursionError:
            too_deep = BadRequest("the body of the request is nested too deeply")
            return Answer(too_deep.code, encode(too_deep.status()))

    async def _handle(self, call: Call, user: User, agent: str) -> Answer:
        if (review := review_at(call.path)) is not None:
            return self._evaluate(review, call, user)
        target = self.target(call.path)
        match call.method, bool(target.name), target.subresource:
            case "GET", True, "" | "status":
                return Answer(200, self._get(target))
            case "GET", False, "":
                return Answer(200, self._list(target, call.query))
            case "POST", False, "" if bool(target.namespace) == target.served.namespaced:
                body = bodies.object_of(call)
                warnings = Strictness.of_query(call.query).of_object(target.served, body)
                operation = self._admitted(target, user, self._create(target, body))
                record = await self._write(operation, bodies.dry_run(call.query))
                return Answer(201, record.value, warnings)
            case "PUT", True, "" | "status" as subresource:
                body = bodies.object_of(call)
                warnings = Strictness.of_query(call.query).of_object(target.served, body)
                author = self._author(call, agent)
                operation = registry.update(target.served, self._key(target), body, subresource=subresource, by=author)
                operation = self._admitted(target, user, operation)
                record = await self._write(operation, bodies.dry_run(call.query))
                return Answer(200, record.value, warnings)
            case "PATCH", True, "" | "status" as subresource:
                if bodies.applies(call):
                    return await self._apply(target, call, subresource, user)
                return await self._patch(target, call, subresource, user, agent)
            case "PUT", True, "finalize":
                body = bodies.object_of(call)
                author = self._author(call, agent)
                operation = registry.update(target.served, self._key(target), body, subresource="finalize", by=author)
                return Answer(200, (await self._write(operation, bodies.dry_run(call.query))).value)
            case "DELETE", True, "":
                return await self._delete(target, call, user)
            case "DELETE", False, "" if (
                target.served.collectable and bool(target.namespace) == target.served.namespaced
            ):
                return await self._delete_collection(target, call, user)
        raise method_not_allowed(call.method, call.path)

    def _evaluate(self, review: ServedKind, call: Call, user: User) -> Answer:
        if call.method != "POST":
            raise method_not_allowed(call.method, call.path)
        body = bodies.object_of(call)
        warnings = Strictness.of_query(call.query).of_object(review, body)
        bodies.dry_run(call.query)  # only checked: there is nothing to write
        return Answer(201, encode(evaluate(review, body, user, self._clock.now())), warnings)

    def _get(self, target: Target) -> bytes:
        record = self._store.get(self._key(target))
        if record is None:
            raise registry.not_found(target.served, target.name)
        return record.value

    def _list(self, target: Target, query: dict[str, str]) -> bytes:
        check_options(query, watch=False)
        return _list_body(target.served, self._page(target, query))

    def _page(self, target: Target, query: dict[str, str]) -> Page:
        resource, selection = target.served.resource, _selection(target, query)
        return page_of(self._store, self.plane, resource, target.namespace, query, selection.has)

    def _admitted(self, target: Target, user: User, operation: Operation[Record]) -> Operation[Record]:
        """The same write, undone if the admission rules refuse its result."""
        if self._admit is None:
            return operation

        def checked(transaction: Transaction) -> Record:
            before = transaction.get(self._key(target)) if target.name else None
            record = operation(transaction)
            if record is not before:  # revisions are the same in a dry run
                self._review(transaction, target, user, before, record)
            return record

        return checked

    def _deletion(self, target: Target, user: User, options: bodies.DeleteOptions) -> Operation[Deleted]:
        operation = registry.delete(
            target.served,
            self._key(target),
            now=self._clock.now(),
            uid=options.uid,
            revision=options.revision,
            propagation=options.propagation,
        )
        if self._admit is None:
            return operation

        def checked(transaction: Transaction) -> Deleted:
            before = transaction.get(self._key(target))
            if before is not None:
                self._review(transaction, target, user, before, None)
            return operation(transaction)

        return checked

    def _review(
        self, transaction: Transaction, target: Target, user: User, before: Record | None, after: Record | None
    ) -> None:
        assert self._admit is not None
        record = after or before
        assert record is not None
        review = Review(
            self.plane,
            self._role,
            user,
            DELETE if after is None else UPDATE if before is not None else CREATE,
            target.served.resource,
            target.subresource,
            record.metadata.name,
            before.object if before is not None else None,
            after.object if after is not None else None,
            lambda kind: [kind.decode(other.value) for _, other in transaction.scan(self.plane, kind.resource)],
        )
        if causes := self._admit(review):
            raise registry.invalid(target.served, record.metadata.name, list(causes))

    async def _write(self, operation: Operation[T], dry: bool) -> T:
        result: T = await self._submit((lambda transaction: transaction.rehearse(operation)) if dry else operation)
        return result

    def _author(self, call: Call, agent: str) -> registry.Author:
        return registry.Author(bodies.manager_of(call, agent), self._clock.now())

    async def _apply(self, target: Target, call: Call, subresource: str, user: User) -> Answer:
        force, author = bodies.force(call), self._author(call, "")
        made = False

        def create(body: Json, managed: Sequence[Json]) -> Operation[Record]:
            nonlocal made
            made = True
            return self._create(target, body, managed)

        operation = registry.apply(
            target.served,
            self._key(target),
            bodies.configuration_of(call),
            subresource=subresource,
            by=author,
            force=force,
            create=create,
        )
        record = await self._write(self._admitted(target, user, operation), bodies.dry_run(call.query))
        return Answer(201 if made else 200, record.value)

    async def _patch(self, target: Target, call: Call, subresource: str, user: User, agent: str) -> Answer:
        bodies.force(call)  # refuses the option, which only an apply may have
        change, strictness = bodies.change_of(target.served, call), Strictness.of_query(call.query)
        warnings: tuple[str, ...] = ()

        def checked(current: Json) -> Json:
            nonlocal warnings
            after = change(current)
            if isinstance(after, dict):
                warnings = strictness.of_patched(target.served, after)
            return after

        operation = registry.patch(
            target.served, self._key(target), checked, subresource=subresource, by=self._author(call, agent)
        )
        operation = self._admitted(target, user, operation)
        record = await self._write(operation, bodies.dry_run(call.query))
        return Answer(200, record.value, warnings)

    def _create(self, target: Target, body: Json, managed: Sequence[Json] = ()) -> Operation[Record]:
        served = target.served
        if served.kind == "Namespace":
            body = _new_namespace(body)
        create = registry.create(
            served, self.plane, target.namespace, body, now=self._clock.now(), suffix=self._suffix, managed=managed
        )
        definition = Key(self.plane, DEFINITIONS.resource, "", served.resource)

        def operation(transaction: Transaction) -> Record:
            defined = transaction.get(definition)
            if defined is not None and defined.metadata.deleting:
                rule = "create not allowed while custom resource definition is terminating"
                metadata = body.get("metadata")
                name = metadata.get("name") if isinstance(metadata, dict) else ""
                raise Forbidden(f'{served.resource} "{name}" is forbidden: {rule}')
            return create(transaction)

        return operation

    def _suffix(self) -> str:
        return "".join(self._generator.choices(string.ascii_lowercase + string.digits, k=5))

    async def _delete(self, target: Target, call: Call, user: User) -> Answer:
        options = bodies.delete_options(call)
        deletion = self._deletion(target, user, options)
        record, gone = await self._write(deletion, bodies.dry_run(call.query, options))
        if not gone:
            return Answer(200, record.value)
        group = {"group": target.served.group} if target.served.group else {}
        details = {"name": target.name, **group, "kind": target.served.plural, "uid": record.metadata.uid}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Answer(200, encode(status))

    async def _delete_collection(self, target: Target, call: Call, user: User) -> Answer:
        """Deletes the objects one by one, as an API server does; the answer lists them all."""
        options = bodies.delete_options(call)
        dry = bodies.dry_run(call.query, options)
        page = self._page(target, call.query)
        for record in page.records:
            item = replace(target, namespace=record.metadata.namespace, name=record.metadata.name)
            with suppress(NotFound):  # somebody else deleted it first
                await self._write(self._deletion(item, user, options), dry)
        return Answer(200, _list_body(target.served, page))

    def _key(self, target: Target) -> Key:
        return Key(self.plane, target.served.resource, target.namespace, target.name)

    def target(self, path: str) -> Target:
        """`/api/v1/...` or `/apis/group/version/...`, then `[namespaces/ns/]plural[/name[/subresource]]`."""
        match path.strip("/").split("/"):
            case ["api", version, *rest]:
                group = ""
            case ["apis", group, version, *rest]:
                pass
            case _:
                raise _no_resource(path)
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and (group or rest[2] not in ("status", "finalize")):
            namespace, rest = rest[1], rest[2:]
        served = self._by_path.get((group, version, rest[0])) if rest else None
        if served is None or len(rest) > 3 or (namespace and not served.namespaced):
            raise _no_resource(path)
        name = rest[1] if len(rest) > 1 else ""
        subresource = rest[2] if len(rest) > 2 else ""
        finalize = subresource == "finalize" and served.kind == "Namespace"
        if subresource and not finalize and not (subresource == "status" and served.has_status):
            raise _no_resource(path)
        if name and served.namespaced and not namespace:
            raise _no_resource(path)
        return Target(served, namespace, name, subresource)

    @asynccontextmanager
    async def watch(self, call: Call) -> AsyncIterator[Watch]:
        target = self.target(call.path)
        check_options(call.query, watch=True)
        selection = _selection(target, call.query)
        seconds = number(call.query.get("timeoutSeconds"), "timeoutSeconds", 0) or DEFAULT_WATCH_SECONDS
        watch = Watch(target.served, selection, bookmarks=bodies.flag(call.query, "allowWatchBookmarks"))
        start = number(call.query.get("resourceVersion"), "resourceVersion", 0)
        if start > self._store.revision:  # from before a restore, or from another server
            raise Gone(f"too large resource version: {start}, current: {self._store.revision}")
        send_initial = bodies.flag(call.query, "sendInitialEvents")
        if not start or send_initial:
            start = self._store.revision
            watch.start(self._store.scan(self.plane, target.served.resource, target.namespace))
        if send_initial:
            watch.bookmark(start, {"k8s.io/initial-events-end": "true"})
        cancel = self._store.watch(self.plane, target.served.resource, start, watch.deliver)
        self._watches[id(watch)] = watch
        end = asyncio.get_running_loop().call_later(seconds, self._finish, watch)
        try:
            yield watch
        finally:
            end.cancel()
            self._watches.pop(id(watch), None)
            cancel()

    def _finish(self, watch: Watch) -> None:
        """Ends a watch with a bookmark, so that the next one can resume from here however quiet this one was."""
        watch.bookmark(self._store.revision)
        watch.end()

    def bookmark(self) -> None:
        """Sends a bookmark to every watch that allows them, so that a watch of a quiet kind can resume from here."""
        for watch in list(self._watches.values()):
            watch.bookmark(self._store.revision)


def method_not_allowed(method: str, path: str) -> MethodNotAllowed:
    return MethodNotAllowed(f"the server does not allow {method} on {path}")


def _no_resource(path: str) -> NotFound:
    return NotFound(f"the server could not find the requested resource: {path}")


def _list_body(served: ServedKind, page: Page) -> bytes:
    head = encode({"kind": served.list_kind, "apiVersion": served.api_version})
    items = b",".join([record.value for record in page.records])
    return b'%s,"metadata":%s,"items":[%s]}' % (head[:-1], encode(page.metadata), items)


def _selection(target: Target, query: dict[str, str]) -> Selection:
    name = [("metadata.name", True, target.name)] if target.name else []
    fields = FieldSelector.parse(query.get("fieldSelector", ""), target.served.selectable)
    return Selection(
        target.namespace,
        LabelSelector.parse(query.get("labelSelector", "")),
        FieldSelector((*name, *fields.terms)),
    )


def _new_namespace(body: Json) -> Json:
    """The namespace with the finalizer that keeps it until it is empty."""
    return body | {"spec": {"finalizers": ["kubernetes"]}}
