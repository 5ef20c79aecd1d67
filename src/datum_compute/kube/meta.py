"""The types that all Kubernetes objects share. Entry points: `KubeObject`, `ObjectMeta`, `Condition`.

Structs are for reading. `KubeObject` keeps spec and status as the JSON that was received, so that fields unknown here
survive a copy to another plane; the typed view is decoded on first use.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from datum_compute.kube.versions import as_number

if TYPE_CHECKING:
    from datum_compute.kube.kinds import Kind

T = TypeVar("T")

Json = dict[str, Any]


def schema(description: str | None = None, **keywords: Any) -> Meta:
    """Schema keywords of a field, for its CRD. Unlike msgspec's own constraints they never fail a read."""
    renamed = {_KEYWORDS.get(key, key): value for key, value in keywords.items()}
    return Meta(description=description, extra_json_schema=renamed)


_KEYWORDS = {
    "list_type": "x-kubernetes-list-type",
    "list_map_keys": "x-kubernetes-list-map-keys",
    "map_type": "x-kubernetes-map-type",
    "int_or_string": "x-kubernetes-int-or-string",
    "preserve_unknown": "x-kubernetes-preserve-unknown-fields",
}


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(data: bytes | Raw, type_: type[T]) -> T:
    """Raises `msgspec.DecodeError` for every kind of malformed input."""
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.json.Decoder(type_)
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"JSON is malformed: not UTF-8 ({error.reason})") from None
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_set = msgspec.structs.force_setattr


class OwnerReference(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def revision(self) -> int:
        """resourceVersion as a number for sorting, 0 when it is not one; `versions.is_older` compares two."""
        return as_number(self.resource_version)

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def controller(self) -> OwnerReference | None:
        return next((owner for owner in self.owner_references if owner.controller), None)


class Condition(Struct, frozen=True, rename="camel"):
    type: Annotated[
        str, schema("Aspect of the object that the condition reports on, such as Available or Ready.", maxLength=316)
    ]
    status: Annotated[
        str, schema("Status of the condition: True, False or Unknown.", enum=["True", "False", "Unknown"])
    ]
    reason: Annotated[
        str,
        schema(
            "Machine-readable cause of the status, one word in CamelCase.",
            minLength=1,
            maxLength=1024,
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ]
    message: Annotated[str, schema("Human-readable explanation of the status.", maxLength=32768)]
    last_transition_time: Annotated[datetime, schema("Time at which the status last changed.")]
    observed_generation: Annotated[
        int, schema("Generation of the object that the condition describes.", format="int64", minimum=0)
    ] = 0


class KubeObject(Struct, frozen=True, dict=True):
    """Any object. Subclasses add typed views of its parts with `part` and `optional_part`.

    An object that was read from a server knows its kind. The kind is not part of the content: it is neither compared
    nor encoded, and a copy made with `msgspec.structs.replace` lacks it.
    """

    metadata: ObjectMeta
    spec_json: Raw = msgspec.field(default_factory=Raw, name="spec")
    status_json: Raw = msgspec.field(default_factory=Raw, name="status")

    def __post_init__(self) -> None:
        """Copies its parts out of the answer: a cached object must not keep the whole list in memory."""
        _set(self, "spec_json", self.spec_json.copy())
        _set(self, "status_json", self.status_json.copy())

    @property
    def kind(self) -> "Kind[Self]":
        try:
            kind: Kind[Self] = self.__dict__["_kind"]
        except KeyError:
            raise TypeError(
                f"{type(self).__name__} {self.name} was not read from a server, so it has no kind"
            ) from None
        return kind

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace


def part(json_field: str, type_: type[T]) -> "cached_property[T]":
    """A required part of an object, such as its spec, decoded on first use."""
    return cached_property(lambda self: decode(getattr(self, json_field), type_))


def optional_part(json_field: str, type_: type[T]) -> "cached_property[T | None]":
    """A part that may be absent, such as a status that nobody has written yet, decoded on first use."""

    def read(self: KubeObject) -> T | None:
        data: Raw = getattr(self, json_field)
        return decode(data, type_) if bytes(data) not in (b"", b"null") else None

    return cached_property(read)


def as_dict(data: Raw) -> Json:
    """A part of an object as plain values, to build a write from; {} when absent."""
    return decode(data, dict[str, Any] | None) or {} if bytes(data) else {}  # type: ignore[arg-type]


def same_json(left: Raw | bytes, right: Raw | bytes) -> bool:
    """Whether two JSON texts mean the same, whatever the order of their keys."""
    left, right = bytes(left), bytes(right)
    return left == right or (bool(left and right) and same_value(decode(left, object), decode(right, object)))


def same_value(left: object, right: object) -> bool:
    """Whether two plain values are the same JSON. Unlike in Python, true is not 1; 1.0 is."""
    match left, right:
        case dict(), dict():
            return len(left) == len(right) and all(key in right and same_value(left[key], right[key]) for key in left)
        case list(), list():
            return len(left) == len(right) and all(map(same_value, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def timestamp(moment: datetime) -> str:
    """A time as Kubernetes writes it: UTC, whole seconds."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def owner_reference(owner: KubeObject) -> Json:
    """An entry of `ownerReferences`; a dependent is garbage collected when none of its owners is left."""
    kind = owner.kind
    return {"apiVersion": kind.api_version, "kind": kind.name, "name": owner.name, "uid": owner.metadata.uid}


def controller_reference(owner: KubeObject) -> Json:
    """The reference to the one owner that manages an object; its foreground deletion waits for the object."""
    return owner_reference(owner) | {"controller": True, "blockOwnerDeletion": True}


def missing_or_different(wanted: Mapping[str, str | None], actual: Mapping[str, str]) -> dict[str, str | None]:
    """The merge patch of labels or annotations: the entries of `wanted` that `actual` lacks, and None for those to
    remove."""
    return {key: value for key, value in wanted.items() if actual.get(key) != value}
