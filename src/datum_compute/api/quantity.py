"""Amounts as Kubernetes writes them, exactly. Entry points: `parse`, `canonical`, `millicores`, `mebibytes`."""

import re
from fractions import Fraction
from math import ceil

_FORM = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_BINARY = {f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BY_EXPONENT = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_LONGEST = 64
_LARGEST_EXPONENT = 30  # far beyond anything real; keeps a hostile exponent from filling the memory


def parse(quantity: int | str) -> Fraction:
    """Raises `ValueError` with a sentence when it is no quantity, of whatever type it is."""
    return _read(quantity)[0]


def canonical(quantity: int | str) -> str:
    """As Kubernetes prints it: without a fraction, in the kind of suffix it was given, as large as loses nothing.

    What is finer than a billionth is rounded away from zero.
    """
    value, suffix = _read(quantity)
    if suffix in _BINARY and value.denominator == 1 and abs(value) >= 1024:
        return _binary(int(value))
    if suffix in _DECIMAL or suffix in _BINARY:
        number, exponent = _thousands(value, up_to=_DECIMAL["E"])
        return f"{number}{_BY_EXPONENT[exponent]}"
    number, exponent = _thousands(value, up_to=_LARGEST_EXPONENT)
    return f"{number}e{exponent}" if exponent else str(number)


def millicores(cpu: int | str) -> int:
    """CPU in thousandths of a core, rounded up."""
    return ceil(parse(cpu) * 1000)


def mebibytes(memory: int | str) -> int:
    """Memory in whole MiB, rounded down."""
    return int(parse(memory) // (1024 * 1024))


def _read(quantity: int | str) -> tuple[Fraction, str]:
    """The value, and the suffix it was written with."""
    match quantity:
        case bool():
            pass
        case int() if quantity.bit_length() <= _LONGEST * 3:
            return Fraction(quantity), ""
        case str() if len(quantity) <= _LONGEST and (form := _FORM.fullmatch(quantity)):
            sign, number, suffix = form.groups(default="")
            value = Fraction(number) * _scale(suffix)
            return (-value if sign == "-" else value), suffix
    shown = f'"{quantity[:40]}"' if isinstance(quantity, str) else f"this {type(quantity).__name__}"
    raise ValueError(f"{shown} is not a quantity; write it like 2, 500m or 2Gi")


def _scale(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return _BINARY[suffix]
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f'"{suffix}" is too large an exponent for a quantity')
    return Fraction(10) ** exponent


def _binary(value: int) -> str:
    for suffix, size in reversed(_BINARY.items()):
        if value % size == 0:
            return f"{value // size}{suffix}"
    return str(value)


def _thousands(value: Fraction, up_to: int) -> tuple[int, int]:
    """A whole number and the exponent of ten that it is multiplied with, a multiple of three as large as can be."""
    number, exponent = ceil(abs(value) * 10**9), -9
    if not number:
        return 0, 0
    while number % 1000 == 0 and exponent < up_to:
        number, exponent = number // 1000, exponent + 3
    return (-number if value < 0 else number), exponent
