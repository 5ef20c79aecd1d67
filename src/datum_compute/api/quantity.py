"""Amounts as Kubernetes writes them, exactly. Entry points: `parse`, `millicores`, `mebibytes`."""

import re
from fractions import Fraction
from math import ceil

_FORM = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_BINARY = {f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST_EXPONENT = 30  # far beyond anything real; keeps a hostile exponent from filling the memory


def parse(quantity: int | str) -> Fraction:
    """Raises `ValueError` with a sentence when the text is no quantity."""
    if isinstance(quantity, int):
        return Fraction(quantity)
    match = _FORM.fullmatch(quantity) if len(quantity) <= 64 else None
    if match is None:
        raise ValueError(f'"{quantity[:40]}" is not a quantity; write it like 2, 500m or 2Gi')
    sign, number, suffix = match.groups(default="")
    value = Fraction(number) * _scale(suffix)
    return -value if sign == "-" else value


def _scale(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return _BINARY[suffix]
    exponent = _DECIMAL.get(suffix, 0) if suffix[:1] not in "eE" or len(suffix) < 2 else int(suffix[1:])
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f'"{suffix}" is too large an exponent for a quantity')
    return Fraction(10) ** exponent


def millicores(cpu: int | str) -> int:
    """CPU in thousandths of a core, rounded up."""
    return ceil(parse(cpu) * 1000)


def mebibytes(memory: int | str) -> int:
    """Memory in whole MiB, rounded down."""
    return int(parse(memory) // (1024 * 1024))
