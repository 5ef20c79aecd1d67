"""Decodes protobuf bodies, which clients written in Go send for kinds they have compiled in. Entry point: `decode`.

Such clients do not fall back to JSON. Only the kinds that kubectl creates without a file (`kubectl create namespace`),
delete options, and the reviews of `kubectl auth` are supported.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any

from datum_compute.kube.errors import BadRequest
from datum_compute.kube.meta import Json

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"

Decode = Callable[[Any, Any], Any]  # from the value of a field so far and its next part, the new value
Message = dict[int, tuple[str, Decode]]


def decode(body: bytes) -> Json | None:
    """The decoded object; None when its kind is not supported."""
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("it does not start with the magic number")
        envelope = _read(_ENVELOPE, body[len(_MAGIC) :])
        head = envelope.get("type", {})
        version, kind = head.get("apiVersion", ""), head.get("kind", "")
        # Every API group has its own DeleteOptions, and servers accept those of any group.
        message = _DELETE_OPTIONS if kind == "DeleteOptions" else _KINDS.get((version, kind))
        return head | _read(message, envelope.get("raw", b"")) if message else None
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise BadRequest(f"the body of the request is not protobuf: {error}") from None


def _read(message: Message, data: bytes) -> Json:
    result: Json = {}
    for number, value in _fields(data):
        if number in message:
            name, decode_field = message[number]
            result[name] = decode_field(result.get(name), value)
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


def _string(_: Any, value: bytes) -> str:
    return value.decode()


def _strings(before: Any, value: bytes) -> list[str]:
    values: list[str] = before if before is not None else []
    values.append(value.decode())
    return values


def _bytes(_: Any, value: bytes) -> bytes:
    return value


def _base64(_: Any, value: bytes) -> str:
    return base64.b64encode(value).decode()


def _flag(_: Any, value: int) -> bool | None:
    return True if value else None


def _optional_flag(_: Any, value: int) -> bool:
    """A flag for which false differs from unset."""
    return bool(value)


def _number(_: Any, value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _message(message: Message) -> Decode:
    return lambda _, value: _read(message, value)


def _messages(message: Message) -> Decode:
    def add(before: Any, value: bytes) -> list[Any]:
        values: list[Any] = before if before is not None else []
        values.append(_read(message, value))
        return values

    return add


def _map(decode_field: Decode) -> Decode:
    def add(before: Any, value: bytes) -> Json:
        pair = dict(_fields(value))
        values: Json = before if before is not None else {}
        values[_string(None, pair.get(1, b""))] = decode_field(None, pair.get(2, b""))  # type: ignore[arg-type]
        return values

    return add


_ENVELOPE: Message = {
    1: ("type", _message({1: ("apiVersion", _string), 2: ("kind", _string)})),
    2: ("raw", _bytes),
}
_OWNER: Message = {
    1: ("kind", _string),
    3: ("name", _string),
    4: ("uid", _string),
    5: ("apiVersion", _string),
    6: ("controller", _flag),
    7: ("blockOwnerDeletion", _flag),
}
_METADATA: Message = {
    1: ("name", _string),
    2: ("generateName", _string),
    3: ("namespace", _string),
    5: ("uid", _string),
    6: ("resourceVersion", _string),
    11: ("labels", _map(_string)),
    12: ("annotations", _map(_string)),
    13: ("ownerReferences", _messages(_OWNER)),
    14: ("finalizers", _strings),
}
_DELETE_OPTIONS: Message = {
    1: ("gracePeriodSeconds", _number),
    2: ("preconditions", _message({1: ("uid", _string), 2: ("resourceVersion", _string)})),
    3: ("orphanDependents", _optional_flag),
    4: ("propagationPolicy", _string),
    5: ("dryRun", _strings),
}
_ACCESS: Message = {
    1: (
        "resourceAttributes",
        _message(
            {
                number: (name, _string)
                for number, name in enumerate(
                    ("namespace", "verb", "group", "version", "resource", "subresource", "name"), start=1
                )
            }
        ),
    ),
    2: ("nonResourceAttributes", _message({1: ("path", _string), 2: ("verb", _string)})),
}
_SUBJECT: Message = {3: ("user", _string), 4: ("groups", _strings), 6: ("uid", _string)}
_AUTHORIZATION = "authorization.k8s.io/v1"
_KINDS: dict[tuple[str, str], Message] = {
    ("v1", "Namespace"): {1: ("metadata", _message(_METADATA))},
    ("v1", "ConfigMap"): {
        1: ("metadata", _message(_METADATA)),
        2: ("data", _map(_string)),
        3: ("binaryData", _map(_base64)),
        4: ("immutable", _flag),
    },
    ("v1", "Secret"): {
        1: ("metadata", _message(_METADATA)),
        2: ("data", _map(_base64)),
        3: ("type", _string),
        4: ("stringData", _map(_string)),
        5: ("immutable", _flag),
    },
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: ("metadata", _message(_METADATA))},
    (_AUTHORIZATION, "SelfSubjectAccessReview"): {1: ("metadata", _message(_METADATA)), 2: ("spec", _message(_ACCESS))},
    (_AUTHORIZATION, "SubjectAccessReview"): {
        1: ("metadata", _message(_METADATA)),
        2: ("spec", _message(_ACCESS | _SUBJECT)),
    },
    (_AUTHORIZATION, "SelfSubjectRulesReview"): {
        1: ("metadata", _message(_METADATA)),
        2: ("spec", _message({1: ("namespace", _string)})),
    },
}
