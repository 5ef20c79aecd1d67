"""Sets of fields, and operations on values field by field. Entry points: `type_of`, `fields_of`, `compare`, `merged`,
`without`, `encoded`, `decoded`.

A path is a tuple of elements as the API writes them: `f:name` for a field, `k:{"name":"a"}` for an item of a list that
is a map, `v:"a"` for an item of a set. Other lists, and whatever the schema calls atomic, count as one field.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from datum_compute.embedded.schemas.structural import EMBEDDED, PRESERVE
from datum_compute.kube.meta import Json, same_value

Path = tuple[str, ...]
FieldSet = frozenset[Path]

NOTHING: FieldSet = frozenset()


class Type:
    """How values of one node of a schema are split into fields."""

    def __init__(
        self,
        *,
        scalar: str = "",
        fields: Mapping[str, "Type"] | None = None,
        other: "Type | None" = None,
        item: "Type | None" = None,
        keys: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
        atomic: bool = False,
        open_: bool = False,
    ) -> None:
        self.scalar = scalar  # string, integer, number or boolean; empty for a container, or for any scalar
        self.fields = fields if fields is not None or other is not None else None  # None: not an object
        self.named: Mapping[str, Type] = fields or {}
        self.other = other  # of fields that are not named
        self.item = item  # None: not a list
        self.keys = tuple(keys)
        self.defaults = defaults or {}  # of the keys
        self.atomic = atomic
        self.open = open_  # any kind of value fits

    def child(self, element: str) -> "Type":
        if element.startswith("f:"):
            return self.named.get(element[2:]) or self.other or UNKNOWN
        return self.item or UNKNOWN

    def parts(self, value: Any) -> dict[str, Any] | None:
        """The values of an object or a list by element; None for a value that is one field."""
        match value:
            case dict() if not self.atomic and (self.open or self.fields is not None or self.other is not None):
                return {f"f:{name}": item for name, item in value.items()}
            case list() if not self.atomic and self.item is not None:
                return {element: item for item in value if (element := self.element(item)) is not None}
        return None

    def element(self, item: Any) -> str | None:
        """The path element of a list item; None for one that has no key."""
        if not self.keys:
            return f"v:{canonical(item)}"
        if not isinstance(item, dict):
            return None
        keys = {key: item[key] if key in item else self.defaults.get(key) for key in self.keys}
        keys = {key: value for key, value in keys.items() if value is not None}
        return f"k:{canonical(keys)}" if keys else None


UNKNOWN = Type(open_=True)  # objects field by field, lists as one
UNKNOWN.other = UNKNOWN
_ANY = Type()
_TEXT = Type(scalar="string")
_TEXTS = Type(other=_TEXT, fields={})
_METADATA = Type(
    fields={
        **dict.fromkeys(
            (
                *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"),
                *("creationTimestamp", "deletionTimestamp"),
            ),
            _TEXT,
        ),
        **dict.fromkeys(("generation", "deletionGracePeriodSeconds"), Type(scalar="integer")),
        **dict.fromkeys(("labels", "annotations"), _TEXTS),
        "finalizers": Type(item=_TEXT),
        "ownerReferences": Type(item=Type(other=UNKNOWN, fields={}, atomic=True), keys=["uid"]),
        "managedFields": Type(item=UNKNOWN, atomic=True),
    }
)
_HEAD = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _METADATA}


def type_of(schema: Json, *, root: bool = False) -> Type:
    """The type of a structural schema."""
    if schema.get("x-kubernetes-int-or-string"):
        return _ANY
    match schema.get("type"):
        case "object":
            return _object(schema, root)
        case "array":
            return _list(schema)
        case "string" | "integer" | "number" | "boolean" as scalar:
            return Type(scalar=scalar)
    return UNKNOWN


def _object(schema: Json, root: bool) -> Type:
    head = _HEAD if root or schema.get(EMBEDDED) else {}
    fields = {name: type_of(below) for name, below in schema.get("properties", {}).items()} | head
    additional = schema.get("additionalProperties")
    other = type_of(additional) if isinstance(additional, dict) else None
    if other is None and (additional or schema.get(PRESERVE) or not fields):
        other = UNKNOWN
    return Type(fields=fields, other=other, atomic=schema.get("x-kubernetes-map-type") == "atomic")


def _list(schema: Json) -> Type:
    items = schema.get("items", {})
    keys = schema.get("x-kubernetes-list-map-keys", ())
    properties = items.get("properties", {})
    defaults = {key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})}
    atomic = schema.get("x-kubernetes-list-type", "atomic") == "atomic"
    return Type(item=type_of(items), keys=keys, defaults=defaults, atomic=atomic)


# Values that do not fit the schema


def misfits(type_: Type, value: Any, path: Path = ()) -> list[str]:
    """The reasons why a value cannot be applied, each with its path."""
    if value is None:
        return []
    if type_.open:
        return []
    if type_.item is not None:
        if not isinstance(value, list):
            return [f"{printed(path)}: expected list, got {_kind(value)}"]
        return _misfits_in_list(type_, value, path)
    if type_.fields is not None or type_.other is not None:
        if not isinstance(value, dict):
            return [f"{printed(path)}: expected map, got {_kind(value)}"]
        reasons = []
        for name, item in value.items():
            below = type_.named.get(name) or type_.other
            at = (*path, f"f:{name}")
            reasons += [f"{printed(at)}: field not declared in schema"] if below is None else misfits(below, item, at)
        return reasons
    expected, fits = _SCALARS[type_.scalar]
    if isinstance(value, (dict, list)) or (
        fits and (not isinstance(value, fits) or (type_.scalar != "boolean" and value is True))
    ):
        return [f"{printed(path)}: expected {expected}, got {_kind(value)}"]
    return []


_SCALARS: dict[str, tuple[str, tuple[type, ...]]] = {
    "": ("scalar", ()),
    "string": ("string", (str,)),
    "integer": ("numeric (int or float)", (int, float)),
    "number": ("numeric (int or float)", (int, float)),
    "boolean": ("boolean", (bool,)),
}


def _misfits_in_list(type_: Type, items: list[Any], path: Path) -> list[str]:
    assert type_.item is not None
    reasons: list[str] = []
    elements: set[str] = set()
    for index, item in enumerate(items):
        element = f"i:{index}" if type_.atomic else type_.element(item)
        if element is None:
            keys = ", ".join(f'"{key}"' for key in type_.keys)
            why = f"associative list with keys has an element that omits all key fields [{keys}]"
            why += " (and doesn't have default values for any key fields)"
            reasons.append(f"{printed(path)}: element {index}: {why}")
            continue
        if element in elements:
            reasons.append(f"{printed(path)}: duplicate entries for key {printed((element,))}")
        elements.add(element)
        reasons += misfits(type_.item, item, (*path, element))
    return reasons


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "list"
    return "map"


# Values


def fields_of(type_: Type, value: Any) -> FieldSet:
    """The fields that a value sets, which whoever applies it will own."""
    fields: set[Path] = set()
    _collect(type_, value, (), fields)
    return frozenset(fields)


def _collect(type_: Type, value: Any, path: Path, fields: set[Path]) -> None:
    parts = type_.parts(value)
    if parts is None:
        if value is not None:
            fields.add(path)
        return
    for element, item in parts.items():
        below = (*path, element)
        # A field that the schema names is owned through its content.
        if item is None or item == {} or not _is_named(type_, element):
            fields.add(below)
        _collect(type_.child(element), item, below, fields)


def _is_named(type_: Type, element: str) -> bool:
    return element.startswith("f:") and element[2:] in type_.named


class Comparison(NamedTuple):
    added: FieldSet
    modified: FieldSet
    removed: FieldSet

    @property
    def changed(self) -> FieldSet:
        return self.added | self.modified

    def outside(self, paths: Iterable[Path]) -> "Comparison":
        """The comparison without these fields and all below them."""
        prefixes = tuple(paths)
        return Comparison(*(outside(fields, prefixes) for fields in self))


def outside(fields: FieldSet, prefixes: Sequence[Path]) -> FieldSet:
    """The fields without these and all below them."""
    return frozenset(path for path in fields if not any(path[: len(prefix)] == prefix for prefix in prefixes))


_ABSENT: Any = object()


def compare(type_: Type, before: Any, after: Any) -> Comparison:
    """The fields of an object that a write added, modified and removed."""
    added: set[Path] = set()
    modified: set[Path] = set()
    removed: set[Path] = set()

    def walk(type_: Type, before: Any, after: Any, path: Path) -> None:
        old, new = (None if value is _ABSENT else type_.parts(value) for value in (before, after))
        if not old and not new and not _differ_in_kind(before, after, old, new):
            if before is _ABSENT:
                added.add(path)
            elif after is _ABSENT:
                removed.add(path)
            elif not same_value(before, after):
                modified.add(path)
            return
        for element in {**(old or {}), **(new or {})}:
            inner = (old or {}).get(element, _ABSENT), (new or {}).get(element, _ABSENT)
            walk(type_.child(element), *inner, (*path, element))
        if before is _ABSENT:
            added.add(path)
        elif after is _ABSENT:
            removed.add(path)
        elif _differ_in_kind(before, after, old, new):
            modified.add(path)

    walk(type_, before, after, ())
    return Comparison(frozenset(added) - {()}, frozenset(modified) - {()}, frozenset(removed) - {()})


def _differ_in_kind(before: Any, after: Any, old: object, new: object) -> bool:
    """Whether one is a container and the other is not; null is compatible with everything."""
    if before in (_ABSENT, None) or after in (_ABSENT, None):
        return False
    return (old is None) != (new is None)


def merged(type_: Type, live: Any, config: Any) -> Any:
    """The live value with the configuration merged into it."""
    old, new = type_.parts(live), type_.parts(config)
    if config is None and old:
        return live
    if new is None or (not old and not new) or (old is None and live is not None):
        return config
    if isinstance(config, dict):
        result = dict(live or {})
        for name, item in config.items():
            below = type_.child(f"f:{name}")
            result[name] = merged(below, result[name], item) if name in result else item
        return result
    items = {element: merged(type_.child(element), (old or {}).get(element), item) for element, item in new.items()}
    return [
        items[element] if element in items else (old or {})[element] for element in _order(list(old or {}), list(new))
    ]


def _order(live: list[str], applied: list[str]) -> list[str]:
    """The items of both lists: applied ones in their order, the others beside their neighbours in the live list."""
    in_applied = set(applied)
    shared = [element for element in applied if element in set(live)]
    result: list[str] = []
    position = met = 0  # in the live list, and in the shared elements
    for element in applied:
        while position < len(live) and live[position] != element:
            at = live[position]
            if at not in in_applied:
                result.append(at)
            elif met < len(shared) and at == shared[met]:
                break  # it comes after this element
            position += 1
            if at in in_applied and met == len(shared):
                break
        if position < len(live) and live[position] == element:
            position += 1
        met += met < len(shared) and element == shared[met]
        result.append(element)
    return result + [element for element in live[position:] if element not in in_applied]


def null(_: Any) -> None:
    return None


def without(type_: Type, value: Json, fields: FieldSet, empty: Callable[[Any], Any] = null) -> Json:
    """The object without these fields and all below them; `empty` replaces a container that lost all its items."""
    return _without(type_, value, _tree(fields), empty) or {}


def _without(type_: Type, value: Any, tree: "_Tree", empty: Callable[[Any], Any]) -> Any:
    parts = type_.parts(value) if tree.below else None
    if parts is None:
        return value
    remaining: dict[str, Any] = {}
    for element, item in parts.items():
        below = tree.below.get(element)
        if below is not None and not below.member:
            item = _without(type_.child(element), item, below, empty)
        if below is None or not below.member:
            remaining[element] = item
    if not remaining:
        return empty(value)
    if isinstance(value, dict):
        return {element[2:]: item for element, item in remaining.items()}
    return list(remaining.values())


class _Tree:
    def __init__(self) -> None:
        self.member = False
        self.below: dict[str, _Tree] = {}


def _tree(fields: Iterable[Path]) -> _Tree:
    root = _Tree()
    for path in fields:
        node = root
        for element in path:
            node = node.below.setdefault(element, _Tree())
        node.member = True
    return root


def with_named(type_: Type, fields: FieldSet) -> FieldSet:
    """The set, and the fields above its members that the schema names, which need not be members themselves."""
    result = set(fields)
    for path in fields:
        above = type_
        for depth, element in enumerate(path[:-1], start=1):
            if _is_named(above, element):
                result.add(path[:depth])
            above = above.child(element)
    return frozenset(result)


# As the API writes them


def encoded(fields: FieldSet) -> Json:
    """The set as `fieldsV1`."""
    return _encoded(_tree(fields), root=True)


def _encoded(tree: _Tree, *, root: bool = False) -> Json:
    below = {element: _encoded(tree.below[element]) for element in sorted(tree.below)}
    return {".": {}} | below if tree.member and below and not root else below


class Unreadable(ValueError):
    """A value is not a set of fields."""


def decoded(value: Any) -> FieldSet:
    """The set of a `fieldsV1`. Raises `Unreadable`."""
    fields: set[Path] = set()
    _decode(value, (), fields)
    return frozenset(fields)


def _decode(value: Any, path: Path, fields: set[Path]) -> None:
    if not isinstance(value, dict):
        raise Unreadable(f"{printed(path)} is not an object")
    if path and (not value or "." in value):
        fields.add(path)
    for element, below in value.items():
        if element != ".":
            _decode(below, (*path, _element(element)), fields)


def _element(text: str) -> str:
    kind, _, rest = text.partition(":")
    if kind == "f":
        return text
    try:
        return f"{kind}:{canonical(msgspec.json.decode(rest))}" if kind in ("k", "v", "i") else _unknown(text)
    except msgspec.DecodeError:
        return _unknown(text)


def _unknown(text: str) -> str:
    raise Unreadable(f'"{text[:80]}" is not a path element')


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def printed(path: Path) -> str:
    """A path for people, such as `.spec.parts[name="a"].weight`."""
    text = ""
    for element in path:
        kind, rest = element[:1], element[2:]
        match kind:
            case "f":
                text += f".{rest}"
            case "k":
                keys = ",".join(f"{key}={canonical(value)}" for key, value in sorted(msgspec.json.decode(rest).items()))
                text += f"[{keys}]"
            case "v":
                text += f"[={rest}]"
            case _:
                text += f"[{rest}]"
    return text
