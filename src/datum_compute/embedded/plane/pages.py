"""Lists in pages, all as of one revision. Entry points: `page_of`, `check_options`."""

import base64
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from datum_compute.embedded.plane.bodies import invalid_option
from datum_compute.embedded.storage.records import Key, Record
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.errors import BadRequest, Gone, Invalid
from datum_compute.kube.meta import Json, encode


class Page(Struct, frozen=True):
    """The objects of one page, and the metadata of the list."""

    records: list[Record]
    metadata: Json


class _Token(Struct, frozen=True):
    """The revision of a list, and the last object of the page before."""

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
    selects: Callable[[Key, Record], bool],
) -> Page:
    """The whole list, or at most `limit` objects after `continue`, as of the revision of its first page."""
    limit = max(0, number(query.get("limit"), "limit", 0, signed=True))
    token = _Token.parse(query["continue"]) if query.get("continue") else None
    revision = _revision(store, query, token)
    selected = [
        (key, record)
        for key, record in store.scan(plane, resource, namespace, at=revision)
        if selects(key, record) and (token is None or (key.namespace, key.name) > token.after)
    ]
    metadata: Json = {"resourceVersion": str(revision)}
    if not limit or len(selected) <= limit:
        return Page([record for _, record in selected], metadata)
    last, _ = selected[limit - 1]
    metadata["continue"] = str(_Token(revision, (last.namespace, last.name)))
    if not query.get("labelSelector") and not query.get("fieldSelector"):
        metadata["remainingItemCount"] = len(selected) - limit
    return Page([record for _, record in selected[:limit]], metadata)


def check_options(query: Mapping[str, str], *, watch: bool) -> None:
    """Refuses options that contradict each other, as a kube-apiserver does."""
    match, version, initial = (
        query.get(key, "") for key in ("resourceVersionMatch", "resourceVersion", "sendInitialEvents")
    )
    forbidden = ""
    if initial and not watch:
        raise _forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if match not in ("", "Exact", "NotOlderThan"):
        message = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"'
        raise invalid_option("FieldValueNotSupported", message, "resourceVersionMatch")
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
    return invalid_option("FieldValueForbidden", f"Forbidden: {rule}", option)


def _revision(store: Store, query: Mapping[str, str], token: _Token | None) -> int:
    requested = number(query.get("resourceVersion"), "resourceVersion", 0)
    if requested > store.revision:
        raise Gone(f"too large resource version: {requested}, current: {store.revision}")
    if token is not None:
        if requested:
            raise BadRequest("specifying resource version is not allowed when using continue")
        return token.revision
    return requested if query.get("resourceVersionMatch") == "Exact" else store.revision


def number(text: str | None, name: str, default: int, *, signed: bool = False) -> int:
    if not text:
        return default
    digits = text.removeprefix("-") if signed else text
    if not digits.isdecimal() or len(text) > 30:
        raise BadRequest(f"{name} is {text[:40]!r}; it must be a number")
    return int(text)
