"""What the schema of a CRD version does to an object, as an API server does it. Entry point: `Schema`.

Validation is JSON Schema, by a native validator, on a schema derived from the structural one; what JSON Schema cannot
say (lists that are sets or maps) is checked here. Rules in CEL are not evaluated, and the metadata of the object itself
is left to whoever knows metadata.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationErrorKind

from datum_compute.embedded.schemas.structural import EMBEDDED, MAX_DEPTH, PRESERVE, shaper
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json

Path = tuple[str | int, ...]
Violation = tuple[Path, Cause]
Check = Callable[[Path, Any, list[Violation]], None]

_SHOWN = 200  # characters of a value or a key that a message repeats
_INT64 = (-(2**63), 2**63 - 1)
# Formats where the native validator and an API server agree; an API server ignores those it does not know.
_FORMATS = frozenset({"date-time", "date", "ipv4", "ipv6", "email"})
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_SAME_IN_JSON_SCHEMA = (
    "enum", "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties", "multipleOf", "pattern",
    "required",
)  # fmt: skip


class Schema:
    """The `openAPIV3Schema` of one CRD version, compiled once. Nothing changes what it is given; what a result has in
    common with the value may be shared with it."""

    def __init__(self, openapi: Json) -> None:
        self._shape = shaper(openapi, root=True)
        self._check = _check(openapi, root=True)
        # The plain regex engine: like an API server's own it takes linear time and knows no look-around.
        self._validator = Draft202012Validator(
            _json_schema(openapi, root=True), validate_formats=True, pattern_options=RegexOptions()
        )

    def shape(self, value: Json) -> Json:
        """The object without the fields the schema does not know and without nulls where null means "not set", and with
        the defaults of what is absent, or null where null is not allowed."""
        return self._shape(value) if self._shape else value

    def violations(self, value: Json) -> list[Cause]:
        """All that is wrong with the object, in the order of its fields."""
        found: list[Violation] = []
        try:
            if not self._validator.is_valid(value):
                if _too_deep(value):  # nothing can explain such a value further
                    return [_too_deep_cause("")]
                for error in self._validator.iter_errors(value):
                    found.append(_violation(tuple(error.instance_path), error.kind, error.instance))
            if self._check:
                self._check((), value, found)
        except RecursionError:
            return [_too_deep_cause("")]
        except (ValueError, TypeError) as error:  # what no JSON text can hold: a key that is no text, half a character
            return [Cause("FieldValueInvalid", f"Invalid value: the object cannot be written as JSON: {error}")]
        return [cause for _, cause in sorted(set(found), key=_order)] if found else []


def _json_schema(schema: Json, *, root: bool = False) -> Json:
    result = {keyword: schema[keyword] for keyword in _SAME_IN_JSON_SCHEMA if keyword in schema}
    types = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else [schema.get("type")]
    if types != [None]:
        result["type"] = [*types, "null"] if schema.get("nullable") else types
    result |= _limits(schema, integer="integer" in types)
    if schema.get("format") in _FORMATS:
        result["format"] = schema["format"]
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in schema and schema[keyword] != _INT_OR_STRING:  # which repeats the types of such a node
            result[keyword] = [_json_schema(alternative) for alternative in schema[keyword]]
    if "not" in schema:
        result["not"] = _json_schema(schema["not"])
    if "items" in schema:
        result["items"] = _json_schema(schema["items"])
    properties = {name: _json_schema(property_) for name, property_ in schema.get("properties", {}).items()}
    if schema.get(EMBEDDED):
        result["required"] = sorted({"apiVersion", "kind", *schema.get("required", ())})
        properties |= {name: {"type": "string", "minLength": 1} for name in ("apiVersion", "kind")}
    if root:
        properties.pop("metadata", None)
    result["properties"] = properties
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _json_schema(schema["additionalProperties"])
    return result


def _limits(schema: Json, *, integer: bool) -> Json:
    """OpenAPI marks a limit as exclusive with a flag; an integer is what its format can hold."""
    # The format int32 is not looked at: kube-apiserver accepts what fits into 64 bits.
    low, high = _INT64 if integer else (None, None)
    result: Json = {} if low is None else {"minimum": low, "maximum": high}
    for end, exclusive, tighter in (("minimum", "exclusiveMinimum", max), ("maximum", "exclusiveMaximum", min)):
        if schema.get(exclusive):
            result[exclusive] = schema[end]
        elif end in schema:
            result[end] = tighter(schema[end], result.get(end, schema[end]))
    return result


def _violation(path: Path, kind: ValidationErrorKind, value: Any) -> Violation:
    at = _field(path)
    match kind:
        case ValidationErrorKind.Required(property=name):
            return (*path, name), Cause("FieldValueRequired", "Required value", _field((*path, name)))
        case ValidationErrorKind.Type(types=types):
            return path, _wrong_type(at, [type_ for type_ in types if type_ != "null"], _type_of(value))
        case ValidationErrorKind.Format(format=format_):
            return path, _wrong_type(at, [format_], str(value))
        case ValidationErrorKind.Enum(options=options):
            supported = ", ".join(_quoted(option if isinstance(option, str) else _shown(option)) for option in options)
            message = f"Unsupported value: {_shown(value)}: supported values: {supported}"
            return path, Cause("FieldValueNotSupported", message, at)
        case ValidationErrorKind.MaxLength(limit=limit):
            message = f"Too long: may not be more than {limit} {'byte' if limit == 1 else 'bytes'}"
            return path, Cause("FieldValueTooLong", message, at)
        case ValidationErrorKind.MaxItems(limit=limit) | ValidationErrorKind.MaxProperties(limit=limit):
            message = f"Too many: {len(value)}: must have at most {limit} {'item' if limit == 1 else 'items'}"
            return path, Cause("FieldValueTooMany", message, at)
        case ValidationErrorKind.Minimum(limit=limit) | ValidationErrorKind.Maximum(limit=limit) if limit in _INT64:
            return path, _wrong_type(at, ["integer"], "number")  # beyond 64 bits a number is no integer to the server
        case ValidationErrorKind.MinItems(limit=limit):
            return path, _invalid(at, len(value), f"should have at least {limit} items")
        case ValidationErrorKind.MinProperties(limit=limit):
            return path, _invalid(at, len(value), f"should have at least {limit} properties")
        case ValidationErrorKind.MinLength(limit=limit):
            return path, _invalid(at, value, f"should be at least {limit} chars long")
        case ValidationErrorKind.Pattern(pattern=pattern):
            return path, _invalid(at, value, f"should match '{pattern}'")
        case ValidationErrorKind.Minimum(limit=limit):
            return path, _invalid(at, value, f"should be greater than or equal to {_shown(limit)}")
        case ValidationErrorKind.Maximum(limit=limit):
            return path, _invalid(at, value, f"should be less than or equal to {_shown(limit)}")
        case ValidationErrorKind.ExclusiveMinimum(limit=limit):
            return path, _invalid(at, value, f"should be greater than {_shown(limit)}")
        case ValidationErrorKind.ExclusiveMaximum(limit=limit):
            return path, _invalid(at, value, f"should be less than {_shown(limit)}")
        case ValidationErrorKind.MultipleOf(multiple_of=factor):
            return path, _invalid(at, value, f"should be a multiple of {_shown(factor)}")
    return path, Cause("FieldValueInvalid", f'Invalid value: "": "{at}" {_ALTERNATIVES[kind.name]}', at)


_ALTERNATIVES = {
    "anyOf": "must validate at least one schema (anyOf)",
    "oneOf": "must validate one and only one schema (oneOf)",
    "not": "must not validate the schema (not)",
}


def _invalid(at: str, value: Any, rule: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {at} in body {rule}", at)


def _wrong_type(at: str, wanted: Iterable[str], given: str) -> Cause:
    shown = _quoted(given)
    message = f"Invalid value: {shown}: {at} in body must be of type {','.join(sorted(wanted))}: {shown}"
    return Cause("FieldValueTypeInvalid", message, at)


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer" if _INT64[0] <= value <= _INT64[1] else "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"


def _check(schema: Json, *, root: bool = False) -> Check | None:
    """What JSON Schema cannot say of this node and those below it; None when there is nothing."""
    open_ = schema.get(PRESERVE) or schema.get("additionalProperties") is True
    unique = schema.get("x-kubernetes-list-type") in ("set", "map")
    checks = [
        _check_depth if open_ else None,
        _uniqueness_check(schema.get("x-kubernetes-list-map-keys", ())) if unique else None,
        _items_check(schema["items"]) if "items" in schema else _fields_check(schema, root),
    ]
    match [check for check in checks if check]:
        case []:
            return None
        case [only]:
            return only
        case several:
            return _all_checks(several)


def _all_checks(checks: Sequence[Check]) -> Check:
    def check_all(path: Path, value: Any, found: list[Violation]) -> None:
        for check in checks:
            check(path, value, found)

    return check_all


def _fields_check(schema: Json, root: bool) -> Check | None:
    additional = schema.get("additionalProperties")
    other = _check(additional) if isinstance(additional, dict) else None
    if other:
        return _entries_check(other)
    named = {name: check for name, property_ in schema.get("properties", {}).items() if (check := _check(property_))}
    if root:
        named["metadata"] = _check_depth

    def check_fields(path: Path, value: Any, found: list[Violation]) -> None:
        if isinstance(value, dict):
            for name, check in named.items():
                if name in value:
                    check((*path, name), value[name], found)

    return check_fields if named else None


def _entries_check(check: Check) -> Check:
    def check_entries(path: Path, value: Any, found: list[Violation]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                check((*path, key), item, found)

    return check_entries


def _items_check(schema: Json) -> Check | None:
    check = _check(schema)
    if check is None:
        return None

    def check_items(path: Path, value: Any, found: list[Violation]) -> None:
        if isinstance(value, list):
            for index, item in enumerate(value):
                check((*path, index), item, found)

    return check_items


def _uniqueness_check(keys: Sequence[str]) -> Check:
    """Finds the second of each item that occurs more than once, which is all an API server tells. With `keys` items are
    told apart by these alone; where one is no object there is a wrong type to mend first."""

    def check_unique(path: Path, value: Any, found: list[Violation]) -> None:
        if not isinstance(value, list) or len(value) < 2:
            return
        items = [{} if item is None else item for item in value] if keys else value
        if keys and not all(isinstance(item, dict) for item in items):
            return
        identities = [_identity([item.get(key, _ABSENT) for key in keys] if keys else item) for item in items]
        if len(set(identities)) == len(identities):
            return
        times: Counter[Any] = Counter()
        for index, identity in enumerate(identities):
            times[identity] += 1
            if times[identity] == 2:
                repeated = {key: items[index][key] for key in keys if key in items[index]} if keys else items[index]
                cause = Cause("FieldValueDuplicate", f"Duplicate value: {_shown(repeated)}", _field((*path, index)))
                found.append(((*path, index), cause))

    return check_unique


_ABSENT = object()


def _identity(value: Any) -> Any:
    """Something to compare values by that, unlike Python, tells true from 1."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple([_identity(item) for item in value])
    if isinstance(value, dict):
        return frozenset([(key, _identity(item)) for key, item in value.items()])
    return (bool, value) if isinstance(value, bool) else value


def _check_depth(path: Path, value: Any, found: list[Violation]) -> None:
    if _too_deep(value):
        found.append((path, _too_deep_cause(_field(path))))


def _too_deep_cause(at: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: must not be nested more than {MAX_DEPTH} levels deep", at)


def _too_deep(value: Any) -> bool:
    """Measured level by level, because a recursive walk would fail where it matters."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
    return bool(level)


def _field(path: Path) -> str:
    """`spec.ports[0].name`, and `metadata.labels[a/b]` for a key that a dot would make hard to read."""
    text = ""
    for element in path:
        if isinstance(element, str) and _PLAIN.fullmatch(element):
            text += f".{element}" if text else element
        else:
            text += f"[{_cut(str(element))}]"
    return text


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")


def _order(violation: Violation) -> tuple[Any, ...]:
    path, cause = violation
    return [(isinstance(e, str), e) for e in path], cause.reason, cause.message


def _shown(value: Any) -> str:
    """A value as an API server prints it, cut to what a person can read."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return _cut(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


def _quoted(text: str) -> str:
    return json.dumps(_cut(text), ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
