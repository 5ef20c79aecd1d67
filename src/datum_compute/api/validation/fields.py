"""A field of an object, and the violations it can have. Entry points: `Field`, `name_violations`.

A field that is absent, null or of another type is treated as empty, so that no rule can fail on bad input. Messages
quote only the beginning of a value, with unprintable characters escaped.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from datum_compute.api import quantity
from datum_compute.kube.errors import Cause

_QUOTED = 80  # characters of a value that a message quotes
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Field(Struct, frozen=True):
    """A value, and its path in messages."""

    path: str
    value: Any = None

    def __getitem__(self, name: str) -> "Field":
        return Field(f"{self.path}.{name}" if self.path else name, self._get(name))

    def entry(self, key: str) -> "Field":
        """The entry of a map, which Kubernetes writes in brackets."""
        return Field(f"{self.path}[{key}]", self._get(key))

    def reported_as(self, path: str) -> "Field":
        """The same value under the path that upstream reports, where it differs from the real one."""
        return Field(path, self.value)

    def reported_value(self, value: Any) -> "Field":
        """Another value under the same path: an invalid key of a map, for example."""
        return Field(self.path, value)

    def _get(self, key: str) -> Any:
        return self.value.get(key) if isinstance(self.value, dict) else None

    @property
    def elements(self) -> "list[Field]":
        if not isinstance(self.value, list | tuple):
            return []
        return [Field(f"{self.path}[{index}]", value) for index, value in enumerate(self.value)]

    @property
    def present(self) -> bool:
        return self.value is not None

    @property
    def is_object(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def text(self) -> str:
        try:
            return self.value if isinstance(self.value, str) and self.value.encode() else ""
        except UnicodeEncodeError:  # an unpaired surrogate
            return ""

    @property
    def integer(self) -> int | None:
        match self.value:
            case bool():
                return None
            case float() if self.value.is_integer():
                return int(self.value)
            case int():
                return self.value
        return None

    def required(self, detail: str) -> Cause:
        return Cause("FieldValueRequired", f"Required value: {detail}", self.path)

    def invalid(self, detail: str) -> Cause:
        return Cause("FieldValueInvalid", f"Invalid value: {_quoted(self.value)}: {detail}", self.path)

    def unsupported(self, supported: Sequence[str], why: str = "") -> Cause:
        choice = f"supported values: {', '.join(map(_quoted, supported))}" if supported else ""
        detail = "; ".join(filter(None, (why, choice)))
        return Cause("FieldValueNotSupported", f"Unsupported value: {_quoted(self.value)}: {detail}", self.path)

    def duplicate(self, detail: str = "") -> Cause:
        more = f": {detail}" if detail else ""
        return Cause("FieldValueDuplicate", f"Duplicate value: {_quoted(self.value)}{more}", self.path)

    def too_long(self, detail: str) -> Cause:
        return Cause("FieldValueTooLong", f"Too long: {detail}", self.path)

    def forbidden(self, detail: str) -> Cause:
        return Cause("FieldValueForbidden", f"Forbidden: {detail}", self.path)

    def not_found(self, detail: str) -> Cause:
        return Cause("FieldValueNotFound", f"Not found: {_quoted(self.value)}: {detail}", self.path)

    def unknown(self, error: str) -> Cause:
        """For a field that could not be checked."""
        return Cause("InternalError", f"Internal error: {clipped(error, 200)}", self.path)


def label_violations(name: Field) -> Iterator[Cause]:
    if not _LABEL.fullmatch(name.text):
        yield name.invalid(
            "must be a DNS label: at most 63 lower-case letters, digits and hyphens, starting and ending with no hyphen"
        )


def name_violations(name: Field, taken: set[str], of: str) -> Iterator[Cause]:
    """Requires a unique DNS label, and adds it to `taken`."""
    if not name.text:
        yield name.required(f"give the {of} a name")
        return
    yield from label_violations(name)
    if name.text in taken:
        yield name.duplicate()
    taken.add(name.text)


def quantity_violations(amount: Field) -> Iterator[Cause]:
    """Requires a positive quantity."""
    try:
        if quantity.parse(amount.value) <= 0:
            yield amount.invalid("must be greater than 0")
    except ValueError:
        yield amount.invalid("must be a quantity such as 2, 500m or 2Gi")


def clipped(text: str, most: int = _QUOTED) -> str:
    """The beginning of a text, with unprintable characters escaped."""
    escaped = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text[: most + 1]
    )
    return f"{escaped[:most]}..." if len(escaped) > most else escaped


def _quoted(value: Any) -> str:
    match value:
        case str():
            return f'"{clipped(json.dumps(value[: _QUOTED + 1], ensure_ascii=False)[1:-1])}"'
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if value.bit_length() <= 128 else '"a number with more than 38 digits"'
        case float():
            return repr(value)
        case None:
            return "null"
        case dict():
            return '"object"'
    return '"array"'
