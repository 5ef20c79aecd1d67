"""Bodies in protobuf, as clients written in Go send them for kinds they have compiled in. Entry point: `decode`.

Such a client does not fall back to JSON. Only reading, and only what kubectl creates without a file
(`kubectl create namespace`), the options of a delete, and the questions of `kubectl auth`.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

from datum_compute.kube.errors import BadRequest
from datum_compute.kube.meta import Json

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"

Take = Callable[[Any, Any], Any]  # what was read of a field before, and the next piece: what it is now
Message = dict[int, tuple[str, Take]]


def decode(body: bytes) -> Json | None:
    """The object as plain values; None when it is of a kind that is not read here."""
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("it does not start as such a body does")
        envelope = _read(_ENVELOPE, body[len(_MAGIC) :])
        head = envelope.get("type", {})
        version, kind = head.get("apiVersion", ""), head.get("kind", "")
        # Every API group has the options as a kind of its own, and servers take those of any.
        message = _DELETE_OPTIONS if kind == "DeleteOptions" else _KINDS.get((version, kind))
        return head | _read(message, envelope.get("raw", b"")) if message else None
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise BadRequest(f"the body of the request is not protobuf: {error}") from None


def _read(message: Message, data: bytes) -> Json:
    result: Json = {}
    for number, value in _fields(data):
        if number in message:
            name, take = message[number]
            result[name] = take(result.get(name), value)
    return {name: value for name, value in result.items() if value not in ("", None, {}, [])}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value: int | bytes
        match tag & 7:
            case 0:
                value, position = _varint(data, position)
            case 1 | 5 as wire:
                size = 8 if wire == 1 else 4
                value, position = data[position : position + size], position + size
            case 2:
                size, position = _varint(data, position)
                value, position = data[position : position + size], position + size
            case other:
                raise ValueError(f"wire type {other} is unknown")
        if position > len(data):
            raise ValueError("it ends in the middle of a field")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _text(_: Any, value: bytes) -> str:
    return value.decode()


def _texts(before: Any, value: bytes) -> list[str]:
    found: list[str] = before if before is not None else []
    found.append(value.decode())
    return found


def _bytes(_: Any, value: bytes) -> bytes:
    return value


def _base64(_: Any, value: bytes) -> str:
    return base64.b64encode(value).decode()


def _flag(_: Any, value: int) -> bool | None:
    return True if value else None


def _choice(_: Any, value: int) -> bool:
    """A flag where false is another answer than none."""
    return bool(value)


def _number(_: Any, value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _one(message: Message) -> Take:
    return lambda _, value: _read(message, value)


def _many(message: Message) -> Take:
    def add(before: Any, value: bytes) -> list[Any]:
        found: list[Any] = before if before is not None else []
        found.append(_read(message, value))
        return found

    return add


def _map(take: Take) -> Take:
    def add(before: Any, value: bytes) -> Json:
        pair = dict(_fields(value))
        found: Json = before if before is not None else {}
        found[_text(None, pair.get(1, b""))] = take(None, pair.get(2, b""))  # type: ignore[arg-type]
        return found

    return add


_ENVELOPE: Message = {
    1: ("type", _one({1: ("apiVersion", _text), 2: ("kind", _text)})),
    2: ("raw", _bytes),
}
_OWNER: Message = {
    1: ("kind", _text),
    3: ("name", _text),
    4: ("uid", _text),
    5: ("apiVersion", _text),
    6: ("controller", _flag),
    7: ("blockOwnerDeletion", _flag),
}
_METADATA: Message = {
    1: ("name", _text),
    2: ("generateName", _text),
    3: ("namespace", _text),
    5: ("uid", _text),
    6: ("resourceVersion", _text),
    11: ("labels", _map(_text)),
    12: ("annotations", _map(_text)),
    13: ("ownerReferences", _many(_OWNER)),
    14: ("finalizers", _texts),
}
_DELETE_OPTIONS: Message = {
    1: ("gracePeriodSeconds", _number),
    2: ("preconditions", _one({1: ("uid", _text), 2: ("resourceVersion", _text)})),
    3: ("orphanDependents", _choice),
    4: ("propagationPolicy", _text),
    5: ("dryRun", _texts),
}
_ACCESS: Message = {
    1: (
        "resourceAttributes",
        _one(
            {
                number: (name, _text)
                for number, name in enumerate(
                    ("namespace", "verb", "group", "version", "resource", "subresource", "name"), start=1
                )
            }
        ),
    ),
    2: ("nonResourceAttributes", _one({1: ("path", _text), 2: ("verb", _text)})),
}
_SUBJECT: Message = {3: ("user", _text), 4: ("groups", _texts), 6: ("uid", _text)}
_AUTHORIZATION = "authorization.k8s.io/v1"
_KINDS: dict[tuple[str, str], Message] = {
    ("v1", "Namespace"): {1: ("metadata", _one(_METADATA))},
    ("v1", "ConfigMap"): {
        1: ("metadata", _one(_METADATA)),
        2: ("data", _map(_text)),
        3: ("binaryData", _map(_base64)),
        4: ("immutable", _flag),
    },
    ("v1", "Secret"): {
        1: ("metadata", _one(_METADATA)),
        2: ("data", _map(_base64)),
        3: ("type", _text),
        4: ("stringData", _map(_text)),
        5: ("immutable", _flag),
    },
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: ("metadata", _one(_METADATA))},
    (_AUTHORIZATION, "SelfSubjectAccessReview"): {1: ("metadata", _one(_METADATA)), 2: ("spec", _one(_ACCESS))},
    (_AUTHORIZATION, "SubjectAccessReview"): {
        1: ("metadata", _one(_METADATA)),
        2: ("spec", _one(_ACCESS | _SUBJECT)),
    },
    (_AUTHORIZATION, "SelfSubjectRulesReview"): {
        1: ("metadata", _one(_METADATA)),
        2: ("spec", _one({1: ("namespace", _text)})),
    },
}
