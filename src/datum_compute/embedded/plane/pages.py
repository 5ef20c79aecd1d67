"""Lists in pieces, all of one moment. Entry points: `page_of`, `check_options`."""

import base64
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from datum_compute.embedded.plane.bodies import refused_option
from datum_compute.embedded.storage.records import Key, Record
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.errors import BadRequest, Gone, Invalid
from datum_compute.kube.meta import Json, encode


class Page(Struct, frozen=True):
    """The objects of a page; `metadata` is that of the list."""

    records: list[Record]
    metadata: Json


class _Token(Struct, frozen=True):
    """Where a list goes on, and the moment it shows."""

    revision: int
    after: tuple[str, str]

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "_Token":
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=cls)
        except (ValueError, msgspec.MsgspecError):
            raise BadRequest(f"continue key is not valid: {text[:80]!r}") from None


def page_of(
    store: Store,
    plane: str,
    resource: str,
    namespace: str,
    query: Mapping[str, str],
    has: Callable[[Key, Record], bool],
) -> Page:
    """The whole list, or from `continue` on at most `limit` of it, as it was when its first page was made."""
    limit = max(0, number(query.get("limit"), "limit", 0, signed=True))
    token = _Token.parse(query["continue"]) if query.get("continue") else None
    revision = _moment(store, query, token)
    scanned = store.scan(plane, resource, namespace, at=revision)
    found = [
        (key, record)
        for key, record in scanned
        if has(key, record) and (token is None or (key.namespace, key.name) > token.after)
    ]
    metadata: Json = {"resourceVersion": str(revision)}
    if not limit or len(found) <= limit:
        return Page([record for _, record in found], metadata)
    last, _ = found[limit - 1]
    metadata["continue"] = str(_Token(revision, (last.namespace, last.name)))
    if not query.get("labelSelector") and not query.get("fieldSelector"):
        metadata["remainingItemCount"] = len(found) - limit
    return Page([record for _, record in found[:limit]], metadata)


def check_options(query: Mapping[str, str], *, watch: bool) -> None:
    """Refuses options that make no sense together, in the words of the option that is too much."""
    match, version, initial = (
        query.get(key, "") for key in ("resourceVersionMatch", "resourceVersion", "sendInitialEvents")
    )
    forbidden = ""
    if initial and not watch:
        raise _forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if match not in ("", "Exact", "NotOlderThan"):
        message = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"'
        raise refused_option("FieldValueNotSupported", message, "resourceVersionMatch")
    if initial and match != "NotOlderThan":
        forbidden = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    elif watch and match and not initial:
        forbidden = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    elif not watch and match and not version:
        forbidden = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match == "Exact" and version == "0":
        forbidden = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    if forbidden:
        raise _forbidden("resourceVersionMatch", forbidden)


def _forbidden(option: str, rule: str) -> Invalid:
    return refused_option("FieldValueForbidden", f"Forbidden: {rule}", option)


def _moment(store: Store, query: Mapping[str, str], token: _Token | None) -> int:
    given = number(query.get("resourceVersion"), "resourceVersion", 0)
    if given > store.revision:
        raise Gone(f"too large resource version: {given}, current: {store.revision}")
    if token is not None:
        if given:
            raise BadRequest("specifying resource version is not allowed when using continue")
        return token.revision
    return given if query.get("resourceVersionMatch") == "Exact" else store.revision


def number(text: str | None, name: str, default: int, *, signed: bool = False) -> int:
    if not text:
        return default
    digits = text.removeprefix("-") if signed else text
    if not digits.isdecimal() or len(text) > 30:
        raise BadRequest(f"{name} is {text[:40]!r}; it must be a number")
    return int(text)
