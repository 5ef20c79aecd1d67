"""Compares resourceVersions, where that is possible. Entry point: `is_older`.

Servers may choose any string. Versions that count upwards are compared as numbers of any length; of all others only
equality means anything.
"""


def is_older(version: str, other: str) -> bool:
    """Whether `version` is certainly older than `other`. False for versions that are not both numbers."""
    return _is_number(version) and _is_number(other) and _magnitude(version) < _magnitude(other)


def as_number(version: str) -> int:
    """A resourceVersion as a number; 0 when it is not one, or longer than any server counts."""
    return int(version) if _is_number(version) and len(version) <= _LONGEST else 0


_LONGEST = 20  # digits of 2**64


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdecimal()


def _magnitude(version: str) -> tuple[int, str]:
    digits = version.lstrip("0")
    return len(digits), digits  # no conversion: Python refuses to read numbers of thousands of digits
