import pytest

from datum_compute.kube.versions import as_number, is_older


@pytest.mark.parametrize(
    ("version", "other", "expected"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("0", "1", True),
        ("007", "8", True),
        ("9" * 5000, "1" + "0" * 5000, True),
        ("", "10", False),
        ("10", "", False),
        ("9", "v10", False),
        ("-9", "10", False),
        ("٩", "10", False),
    ],
)
def test_only_numbers_are_older_or_newer_than_each_other(version: str, other: str, expected: bool) -> None:
    assert is_older(version, other) is expected


@pytest.mark.parametrize(
    ("version", "expected"), [("42", 42), ("", 0), ("v42", 0), ("-1", 0), (str(2**64 - 1), 2**64 - 1), ("9" * 5000, 0)]
)
def test_a_version_that_is_not_a_number_counts_as_zero(version: str, expected: int) -> None:
    assert as_number(version) == expected
