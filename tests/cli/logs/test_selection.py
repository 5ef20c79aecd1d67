"""What is asked for is in the part of LogQL that servers understand, and means what the flags say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.logs.selection import Selection, literal
from datum_compute.telemetry.query import line_matches, matches, parse

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("selection", "query"),
    [
        (Selection().with_label("a", ["x"]), '{a="x"}'),
        (Selection().with_label("a", []), "{}"),
        (Selection().with_label("a", ["x", "y.z"]), '{a=~"x|y\\\\.z"}'),
        (Selection().with_label("a", ["x"]).without_label("b", ["1"]), '{a="x", b!="1"}'),
        (Selection().without_label("b", ["1", "2"]), '{b!~"1|2"}'),
        (Selection().with_label("a", ["x"]).containing('5 "%" \\d'), '{a="x"} |= "5 \\"%\\" \\\\d"'),
        (Selection().in_places("shop", ["AMS"]), '{datum_instance_name=~"shop-.+-(ams)-[0-9]+"}'),
    ],
)
def test_a_selection_is_written_as_a_query(selection: Selection, query: str) -> None:
    assert selection.query == query


@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), NAMES)
def test_a_label_matches_the_values_that_were_named_and_no_others(values: list[str], other: str) -> None:
    query = parse(Selection().with_label("a", values).query)
    assert all(matches({"a": value}, query) for value in values)
    assert matches({"a": other}, query) is (other in values)
    without = parse(Selection().with_label("b", ["1"]).without_label("a", values).query)
    assert matches({"a": other, "b": "1"}, without) is (other not in values)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_can_be_searched_for(text: str, around: str) -> None:
    query = parse(Selection().with_label("a", ["x"]).containing(text).query)
    assert line_matches(f"{around}{text}{around}", query)


@pytest.mark.parametrize(
    ("instance", "found"),
    [
        ("shop-default-ams-0", True),
        ("shop-eu-west-ams-12", True),
        ("shop-default-dfw-0", True),
        ("shop-default-sin-0", False),
        ("shop-ams-0", False),
        ("shop-default-ams-x", False),
        ("workshop-default-ams-0", False),
        ("shop-default-ams-0-1", False),
    ],
)
def test_without_a_label_the_city_is_matched_by_the_name_of_the_instance(instance: str, found: bool) -> None:
    query = parse(Selection().in_places("shop", ["AMS", "DFW"]).query)
    assert matches({"datum_instance_name": instance}, query) is found


@given(st.text(max_size=20))
def test_a_literal_means_itself(text: str) -> None:
    import re

    assert re.fullmatch(literal(text), text)
