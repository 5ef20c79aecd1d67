"""Validation of labels and annotations. Entry points: `key_problem`, `value_problem`.

Messages are those of an API server, so that a rule that is checked before the server reads the same.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

MOST_ANNOTATION_BYTES = 256 * 1024  # all keys and values of one object

_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_NAME})?"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LONGEST_PREFIX, _LONGEST_NAME = 253, 63
_CACHED = _LONGEST_PREFIX + 1 + _LONGEST_NAME  # a longer key is hostile and not worth caching

_ENDS = "and must start and end with an alphanumeric character"
_NAME_RULE = (
    f"must consist of alphanumeric characters, '-', '_' or '.', {_ENDS} "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME}')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    f"{_ENDS} (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
)
_PREFIX_RULE = (
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ENDS} "
    f"(e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)


def key_problem(key: str) -> str:
    """Why this is not a valid label key; empty when it is. Annotation keys are checked in lower case."""
    return _key_problem(key) if len(key) <= _CACHED else _key_problem.__wrapped__(key)


@lru_cache(maxsize=4096)
def _key_problem(key: str) -> str:
    prefix, slash, name = key.partition("/")
    if not slash:
        return _name_problem(key)
    if "/" in name:
        return (
            f"a valid label key {_NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
    return _prefix_problem(prefix) or _name_problem(name)


def value_problem(value: str) -> str:
    """Why this is not a valid label value; empty when it is."""
    if len(value.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
        return f"must be no more than {_LONGEST_NAME} bytes"
    return _short_value_problem(value)


@lru_cache(maxsize=4096)
def _short_value_problem(value: str) -> str:
    return "" if re.fullmatch(_VALUE, value) else _VALUE_RULE


def annotation_bytes(annotations: Mapping[str, str]) -> int:
    """The size that the limit applies to."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for entry in annotations.items() for text in entry)


def _prefix_problem(prefix: str) -> str:
    if not prefix:
        return "prefix part must be non-empty"
    if len(prefix.encode("utf-8", "surrogatepass")) > _LONGEST_PREFIX:
        return f"prefix part must be no more than {_LONGEST_PREFIX} bytes"
    return "" if re.fullmatch(_SUBDOMAIN, prefix) else f"prefix part {_PREFIX_RULE}"


def _name_problem(name: str) -> str:
    if not name:
        return "name part must be non-empty"
    if len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
        return f"name part must be no more than {_LONGEST_NAME} bytes"
    return "" if re.fullmatch(_NAME, name) else f"name part {_NAME_RULE}"
