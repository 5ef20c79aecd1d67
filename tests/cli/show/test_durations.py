from datetime import timedelta

import pytest

from datum_compute.cli.show import durations
from tests.cli.conftest import NOW


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("1h30m", 5400),
        ("7d", 604800),
        ("1d2h3m4s", 93784),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_a_duration_is_parsed_as_people_write_it(text: str, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "-5m", "1.5h", "30m1h", "fast", "1w"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="like 90s, 15m, 2h, 1h30m or 7d"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86399, "23h"), (86400, "1d"), (864000, "10d"),
        (-5, "0s"),
    ],
)  # fmt: skip
def test_an_age_is_shown_in_its_largest_unit(seconds: int, expected: str) -> None:
    assert durations.age(NOW - timedelta(seconds=seconds), NOW) == expected


def test_an_age_that_is_not_known_is_empty() -> None:
    assert durations.age(None, NOW) == ""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0s"),
        (0.94, "0.9s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (47, "47s"),
        (60, "1m"),
        (72, "1m 12s"),
        (3600, "1h"),
        (7505, "2h 5m"),
        (93784, "1d 2h"),
    ],
)
def test_a_duration_is_shown_in_two_units(seconds: float, expected: str) -> None:
    assert durations.elapsed(seconds) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0, "0s"), (900, "15m"), (5400, "1h30m"), (604800, "7d")])
def test_a_limit_is_printed_as_it_was_typed(seconds: float, expected: str) -> None:
    assert durations.compact(seconds) == expected


@pytest.mark.parametrize(("text", "longest", "most"), [("9999999d", 86400.0, "1d"), ("9" * 400 + "h", 3600.0, "1h")])
def test_a_duration_beyond_the_limit_is_refused(text: str, longest: float, most: str) -> None:
    with pytest.raises(ValueError, match=f"is too long; use at most {most}"):
        durations.parse(text, longest)


def test_ten_years_are_the_longest_duration() -> None:
    assert durations.parse("3650d") == 3650 * 86400
    with pytest.raises(ValueError, match="use at most 3650d"):
        durations.parse("3650d1s")
