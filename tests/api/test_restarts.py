"""Restarts of single cities, as noted on a Workload."""

import json

import pytest

from datum_compute.api.labels import CITY_RESTARTS
from datum_compute.api.restarts import add_city_restart, city_restarts, newest

OLDER, NEWER = "2026-06-01T11:00:00Z", "2026-06-01T12:00:00Z"


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], None),
        ([None, ""], None),
        ([OLDER, NEWER], NEWER),
        ([NEWER, OLDER, None], NEWER),
        ([NEWER, "2026-06-01T14:00:00+02:00"], NEWER),
        (["yesterday", OLDER, "2026-06-01T12:00:00"], OLDER),
        (["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"], "9999-12-31T23:59:59-23:59"),
    ],
)
def test_the_latest_restart_counts(marks: list[str | None], expected: str | None) -> None:
    assert newest(*marks) == expected


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"DFW"', '{"DFW": 1}', '{"DFW": {"at": 1}}', "[" * 5_000, f'{{"DFW": "{"x" * 20_000}"}}'],
)
def test_an_unreadable_note_restarts_nothing(text: str) -> None:
    assert city_restarts({CITY_RESTARTS: text}) == {}


def test_an_invalid_time_of_one_city_does_not_hide_the_others() -> None:
    assert city_restarts({CITY_RESTARTS: json.dumps({"DFW": "now", "AMS": OLDER})}) == {"AMS": OLDER}


def test_restarts_of_other_current_cities_are_kept() -> None:
    before = {"team": "web", CITY_RESTARTS: json.dumps({"AMS": OLDER, "GONE": OLDER, "DFW": OLDER})}
    after = add_city_restart(before, "DFW", NEWER, current=["AMS", "DFW", "SIN"])
    assert after["team"] == "web"
    assert json.loads(after[CITY_RESTARTS]) == {"AMS": OLDER, "DFW": NEWER}
    assert city_restarts(after) == {"AMS": OLDER, "DFW": NEWER}
