"""Pruning, defaulting and validation by the schema of a CRD version, as an API server does them. Entry point: `Schema`.

A native JSON Schema validator works on a schema derived from the structural one; what JSON Schema cannot express
(lists that are sets or maps) is checked here. CEL rules are not evaluated, and the metadata of the object itself is
validated elsewhere.
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

_QUOTED_LENGTH = 200  # characters of a value or a key that a message repeats
_INT64 = (-(2**63), 2**63 - 1)
# Formats where the native validator and an API server agree; an API server ignores those it does not know.
_FORMATS = frozenset({"date-time", "date", "ipv4", "ipv6", "email"})
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_SAME_IN_JSON_SCHEMA = (
    "enum", "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties", "multipleOf", "pattern",
    "required",
)  # fmt: skip


class Schema:
    """The `openAPIV3Schema` of one CRD version, compiled once. Arguments are never changed, but results may share
    unchanged parts with them."""

    def __init__(self, openapi: Json) -> None:
        self._shape = shaper(openapi, root=True)
        self._check = _check(openapi, root=True)
        # The plain regex engine: like that of an API server it takes linear time and has no look-around.
        self._validator = Draft202012Validator(
            _json_schema(openapi, root=True), validate_formats=True, pattern_options=RegexOptions()
        )

    def shape(self, value: Json) -> Json:
        """The object without unknown fields and without nulls where null means "not set", and with the defaults of
        fields that are absent, or null where null is not allowed."""
        return self._shape(value) if self._shape else value

    def violations(self, value: Json) -> list[Cause]:
        """All violations of the schema, in the order of the fields."""
        violations: list[Violation] = []
        try:
            if not self._validator.is_valid(value):
                if _too_deep(value):  # collecting the errors would recurse
                    return [_too_deep_cause("")]
                for error in self._validator.iter_errors(value):
                    violations.append(_violation(tuple(error.instance_path), error.kind, error.instance))
            if self._check:
                self._check((), value, violations)
        except RecursionError:
            return [_too_deep_cause("")]
        except (ValueError, TypeError) as error:  # not JSON: a key that is not a string, or half a surrogate pair
            return [Cause("FieldValueInvalid", f"Invalid value: the object cannot be written as JSON: {error}")]
        return [cause for _, cause in sorted(set(violations), key=_order)] if violations else []


def _json_schema(schema: Json, *, root: bool = False) -> Json:
    result = {keyword: schema[keyword] for keyword in _SAME_IN_JSON_SCHEMA if keyword in schema}
    types = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else [schema.get("type")]
    if types != [None]:
        result["type"] = [*types, "null"] if schema.get("nullable") else types
    result |= _limits(schema, integer="integer" in types)
    if schema.get("format") in _FORMATS:
        result["format"] = schema["format"]
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in schema and schema[keyword] != _INT_OR_STRING:  # it only repeats the types of such a node
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
    """OpenAPI marks a limit as exclusive with a flag; an integer has to fit into 64 bits."""
    # The format int32 is ignored, as by kube-apiserver.
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
            supported = ", ".join(
                _quoted(option if isinstance(option, str) else _printed(option)) for option in options
            )
            message = f"Unsupported value: {_printed(value)}: supported values: {supported}"
            return path, Cause("FieldValueNotSupported", message, at)
        case ValidationErrorKind.MaxLength(limit=limit):
            message = f"Too long: may not be more than {limit} {'byte' if limit == 1 else 'bytes'}"
            return path, Cause("FieldValueTooLong", message, at)
        case ValidationErrorKind.MaxItems(limit=limit) | ValidationErrorKind.MaxProperties(limit=limit):
            message = f"Too many: {len(value)}: must have at most {limit} {'item' if limit == 1 else 'items'}"
            return path, Cause("FieldValueTooMany", message, at)
        case ValidationErrorKind.Minimum(limit=limit) | ValidationErrorKind.Maximum(limit=limit) if limit in _INT64:
            return path, _wrong_type(at, ["integer"], "number")  # beyond 64 bits a number is not an integer
        case ValidationErrorKind.MinItems(limit=limit):
            return path, _invalid(at, len(value), f"should have at least {limit} items")
        case ValidationErrorKind.MinProperties(limit=limit):
            return path, _invalid(at, len(value), f"should have at least {limit} properties")
        case ValidationErrorKind.MinLength(limit=limit):
            return path, _invalid(at, value, f"should be at least {limit} chars long")
        case ValidationErrorKind.Pattern(pattern=pattern):
            return path, _invalid(at, value, f"should match '{pattern}'")
        case ValidationErrorKind.Minimum(limit=limit):
            return path, _invalid(at, value, f"should be greater than or equal to {_printed(limit)}")
        case ValidationErrorKind.Maximum(limit=limit):
            return path, _invalid(at, value, f"should be less than or equal to {_printed(limit)}")
        case ValidationErrorKind.ExclusiveMinimum(limit=limit):
            return path, _invalid(at, value, f"should be greater than {_printed(limit)}")
        case ValidationErrorKind.ExclusiveMaximum(limit=limit):
            return path, _invalid(at, value, f"should be less than {_printed(limit)}")
        case ValidationErrorKind.MultipleOf(multiple_of=factor):
            return path, _invalid(at, value, f"should be a multiple of {_printed(factor)}")
    return path, Cause("FieldValueInvalid", f'Invalid value: "": "{at}" {_ALTERNATIVES[kind.name]}', at)


_ALTERNATIVES = {
    "anyOf": "must validate at least one schema (anyOf)",
    "oneOf": "must validate one and only one schema (oneOf)",
    "not": "must not validate the schema (not)",
}


def _invalid(at: str, value: Any, rule: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {_printed(value)}: {at} in body {rule}", at)


def _wrong_type(at: str, expected: Iterable[str], actual: str) -> Cause:
    quoted = _quoted(actual)
    message = f"Invalid value: {quoted}: {at} in body must be of type {','.join(sorted(expected))}: {quoted}"
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
    """Checks what JSON Schema cannot express about this node and those below it; None when there is nothing."""
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
    def check_all(path: Path, value: Any, violations: list[Violation]) -> None:
        for check in checks:
            check(path, value, violations)

    return check_all


def _fields_check(schema: Json, root: bool) -> Check | None:
    additional = schema.get("additionalProperties")
    other = _check(additional) if isinstance(additional, dict) else None
    if other:
        return _entries_check(other)
    named = {name: check for name, property_ in schema.get("properties", {}).items() if (check := _check(property_))}
    if root:
        named["metadata"] = _check_depth

    def check_fields(path: Path, value: Any, violations: list[Violation]) -> None:
        if isinstance(value, dict):
            for name, check in named.items():
                if name in value:
                    check((*path, name), value[name], violations)

    return check_fields if named else None


def _entries_check(check: Check) -> Check:
    def check_entries(path: Path, value: Any, violations: list[Violation]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                check((*path, key), item, violations)

    return check_entries


def _items_check(schema: Json) -> Check | None:
    check = _check(schema)
    if check is None:
        return None

    def check_items(path: Path, value: Any, violations: list[Violation]) -> None:
        if isinstance(value, list):
            for index, item in enumerate(value):
                check((*path, index), item, violations)

    return check_items


def _uniqueness_check(keys: Sequence[str]) -> Check:
    """Reports the second occurrence of each repeated item, as an API server does. With `keys`, items are compared by
    these alone; a list with an item that is not an object already has a violation of its type."""

    def check_unique(path: Path, value: Any, violations: list[Violation]) -> None:
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
                cause = Cause("FieldValueDuplicate", f"Duplicate value: {_printed(repeated)}", _field((*path, index)))
                violations.append(((*path, index), cause))

    return check_unique


_ABSENT = object()


def _identity(value: Any) -> Any:
    """A hashable stand-in for a value that, unlike Python, distinguishes true from 1."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple([_identity(item) for item in value])
    if isinstance(value, dict):
        return frozenset([(key, _identity(item)) for key, item in value.items()])
    return (bool, value) if isinstance(value, bool) else value


def _check_depth(path: Path, value: Any, violations: list[Violation]) -> None:
    if _too_deep(value):
        violations.append((path, _too_deep_cause(_field(path))))


def _too_deep_cause(at: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: must not be nested more than {MAX_DEPTH} levels deep", at)


def _too_deep(value: Any) -> bool:
    """Measured level by level, because a recursive walk would fail on the values it looks for."""
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
    """A path such as `spec.ports[0].name`, or `metadata.labels[a/b]` for a key that is not a plain word."""
    text = ""
    for element in path:
        if isinstance(element, str) and _PLAIN.fullmatch(element):
            text += f".{element}" if text else element
        else:
            text += f"[{_shortened(str(element))}]"
    return text


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")


def _order(violation: Violation) -> tuple[Any, ...]:
    path, cause = violation
    return [(isinstance(e, str), e) for e in path], cause.reason, cause.message


def _printed(value: Any) -> str:
    """A value as an API server prints it, shortened to a readable length."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return _shortened(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


def _quoted(text: str) -> str:
    return json.dumps(_shortened(text), ensure_ascii=False)


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTED_LENGTH else f"{text[:_QUOTED_LENGTH]}…"
