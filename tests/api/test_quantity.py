"""Quantities: exact arithmetic and the canonical form of Kubernetes."""

import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.api.quantity import canonical, mebibytes, millicores, parse
from tests.conftest import count

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9),
    "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30),
    "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
    "e0": Fraction(1), "e3": Fraction(1000), "E3": Fraction(1000), "e+3": Fraction(1000), "e-3": Fraction(1, 1000),
    "E-9": Fraction(1, 10**9), "e30": Fraction(10**30),
}  # fmt: skip
PATTERN = re.compile(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)  # of the schema

thorough = settings(max_examples=count(100, 5000), deadline=None)

digits = st.integers(0, 10**15).map(str)
numbers = st.one_of(
    digits,
    st.tuples(digits, st.text("0123456789", max_size=9)).map(".".join),
    st.text("0123456789", min_size=1, max_size=9).map(".{}".format),
)
written = st.tuples(st.sampled_from(["", "+", "-"]), numbers, st.sampled_from(list(SUFFIXES))).map("".join)
fine = written.filter(lambda text: (parse(text) * 10**9).denominator == 1)


@pytest.mark.parametrize(("suffix", "factor"), SUFFIXES.items())
def test_every_suffix(suffix: str, factor: Fraction) -> None:
    assert parse(f"3{suffix}") == 3 * factor
    assert parse(f"-0.25{suffix}") == -factor / 4
    assert parse(f"+.5{suffix}") == factor / 2
    assert parse(f"7.{suffix}") == 7 * factor


@pytest.mark.parametrize("number", [0, 1, -5, 2**63])
def test_an_integer_is_itself(number: int) -> None:
    assert parse(number) == parse(str(number)) == number


@thorough
@given(st.lists(written, min_size=1, max_size=20))
def test_sums_are_exact_in_any_order(amounts: list[str]) -> None:
    values = [parse(amount) for amount in amounts]
    assert sum(values) == sum(reversed(values)) == sum(sorted(values))
    assert sum(values) - sum(values[1:]) == values[0]


def test_sums_that_floating_point_gets_wrong_are_exact() -> None:
    assert parse("0.1") + parse("0.2") == parse("300m")
    assert parse("1n") + parse("1E") - parse("1E") == parse("1n")


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("1", 1000),
        (2, 2000),
        ("500m", 500),
        ("0.1", 100),
        ("1n", 1),
        ("100.1m", 101),
        ("1.0005", 1001),
        ("0", 0),
        ("1e-3", 1),
        ("2k", 2_000_000),
    ],
)
def test_millicores_round_up(cpu: int | str, expected: int) -> None:
    assert millicores(cpu) == expected


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ("2Gi", 2048),
        ("1Mi", 1),
        ("1023Ki", 0),
        ("1.5Mi", 1),
        (1048576, 1),
        (1048575, 0),
        ("1G", 953),
        ("128M", 122),
        ("1e9", 953),
        ("1Ei", 2**40),
    ],
)
def test_mebibytes_round_down(memory: int | str, expected: int) -> None:
    assert mebibytes(memory) == expected


@thorough
@given(written)
def test_rounding_is_by_less_than_one_unit(amount: str) -> None:
    assert 0 <= millicores(amount) - parse(amount) * 1000 < 1
    assert 0 <= parse(amount) / 2**20 - mebibytes(amount) < 1


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0, "0"),
        ("-0", "0"),
        ("0Gi", "0"),
        ("0e9", "0"),
        (1000, "1k"),
        (1024, "1024"),
        ("1.5", "1500m"),
        ("0.5", "500m"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("0.000000001", "1n"),
        ("1000000E", "1000000E"),
        ("+1000k", "1M"),
        ("-1500", "-1500"),
        ("1Gi", "1Gi"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1025Ki", "1025Ki"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),  # less than 1024 in decimal
        ("1.0001Ki", "1024102400u"),  # nothing is lost
        ("2048Ei", "2048Ei"),
        ("-2048Ki", "-2Mi"),
        ("1e3", "1e3"),
        ("1000e3", "1e6"),
        ("1E6", "1e6"),
        ("15e-1", "1500e-3"),
        ("5e0", "5"),
        ("1e30", "1e30"),
        ("1000e30", "1000e30"),  # can be parsed again
        ("0.1n", "1n"),  # rounded away from zero
        ("-1.5n", "-2n"),
    ],
)
def test_canonical_form(amount: int | str, expected: str) -> None:
    assert canonical(amount) == expected


@thorough
@given(fine)
def test_printing_loses_nothing(amount: str) -> None:
    printed = canonical(amount)
    assert parse(printed) == parse(amount)
    assert PATTERN.match(printed)
    assert "." not in printed
    assert "+" not in printed


@thorough
@given(written)
def test_printing_again_changes_nothing(amount: str) -> None:
    assert canonical(canonical(amount)) == canonical(amount)


@thorough
@given(st.sampled_from(["", "Ki"]), st.integers(-(10**9), 10**9), st.integers(0, 5))
def test_equal_amounts_of_one_format_print_alike(kind: str, number: int, shift: int) -> None:
    larger = {"": "k", "Ki": "Mi"}[kind]
    assert canonical(f"{number}{larger}") == canonical(f"{number * (1024 if kind else 1000)}{kind}")
    assert canonical(f"{number}.{'0' * shift}{kind}") == canonical(f"{number}{kind}")


HOSTILE: list[Any] = [
    "", " ", "1 ", " 1", "1\n", "x", "Gi", ".", "+", "-", "--1", "1..2", "1,5", "1Gb", "1ki", "1K", "1mi", "1e", "1e+",
    "1e1.5", "1e1e1", "0x10", "1_000", "Infinity", "NaN", "١", "１", "1/2", "1e31", "1E-31", "1e999999999", "9" * 65,
    "1" * 1_000_000, "\ud800", None, True, 1.5, float("nan"), [], {}, b"1", 10**5000, -(10**5000),
]  # fmt: skip


@pytest.mark.parametrize("bad", HOSTILE, ids=lambda bad: type(bad).__name__)
def test_anything_else_is_refused_with_a_sentence(bad: Any) -> None:
    for read in (parse, canonical, millicores, mebibytes):
        with pytest.raises(ValueError, match="quantity") as failed:
            read(bad)
        assert len(str(failed.value)) < 150


@thorough
@given(st.text("0123456789.+-eEkKMGTPimnu ", max_size=70))
def test_every_parsed_quantity_matches_the_schema(text: str) -> None:
    try:
        parse(text)
    except ValueError:
        return
    assert PATTERN.match(text)
