"""Kubernetes quantities, exactly. Entry points: `parse`, `canonical`, `millicores`, `mebibytes`."""

import re
from fractions import Fraction
from math import ceil

_FORM = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_BINARY = {f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BY_EXPONENT = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_LONGEST = 64
_LARGEST_EXPONENT = 30  # far beyond any real amount; keeps a hostile exponent from exhausting memory


def parse(quantity: int | str) -> Fraction:
    """The exact value. Raises `ValueError` with a sentence for anything, of any type, that is not a quantity."""
    return _read(quantity)[0]


def canonical(quantity: int | str) -> str:
    """The quantity as Kubernetes prints it: a whole number with the largest suffix, of the same format, that is exact.

    Fractions smaller than a billionth are rounded away from zero.
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
    """The value, and the suffix with which it was written."""
    match quantity:
        case bool():
            pass
        case int() if quantity.bit_length() <= _LONGEST * 3:
            return Fraction(quantity), ""
        case str() if len(quantity) <= _LONGEST and (form := _FORM.fullmatch(quantity)):
            sign, number, suffix = form.groups(default="")
            value = Fraction(number) * _scale(suffix)
            return (-value if sign == "-" else value), suffix
    text = f'"{quantity[:40]}"' if isinstance(quantity, str) else f"this {type(quantity).__name__}"
    raise ValueError(f"{text} is not a quantity; write it like 2, 500m or 2Gi")


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
    """A whole number and its exponent of ten, which is the largest possible multiple of three."""
    number, exponent = ceil(abs(value) * 10**9), -9
    if not number:
        return 0, 0
    while number % 1000 == 0 and exponent < up_to:
        number, exponent = number // 1000, exponent + 3
    return (-number if value < 0 else number), exponent
