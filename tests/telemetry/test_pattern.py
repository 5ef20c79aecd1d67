"""Patterns mean what they mean to others, and none takes long."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.telemetry.pattern import Pattern, PatternError, compile_pattern, escaped


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("api", "api", True),
        ("api", "api-1", False),
        ("api", "my-api", False),
        ("", "", True),
        ("", "a", False),
        (".*", "", True),
        (".+", "", False),
        (".+", "x", True),
        ("api-(dfw|ams)-[0-9]+", "api-ams-12", True),
        ("api-(?:dfw|ams)-[0-9]+", "api-sin-12", False),
        ("a|b|", "", True),
        ("a(b|c)?d", "ad", True),
        ("a(b|c)?d", "abcd", False),
        ("(ab)+", "ababab", True),
        ("(ab)+", "aba", False),
        (r"a\.b", "a.b", True),
        (r"a\.b", "axb", False),
        (r"\d\w\s\D", "1_ x", True),
        ("[^a-c]", "b", False),
        ("[^a-c]", "d", True),
        ("[]a]", "]", True),
        ("[a-]", "-", True),
        (r"[\]\\]", "\\", True),
        (r"[\d.]+", "1.2", True),
        ("é.", "éß", True),
    ],
)
def test_a_pattern_matches_the_whole_value(pattern: str, value: str, expected: bool) -> None:
    assert Pattern(pattern).matches(value) is expected


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(a*)*", "the repetition * of a group that has one inside"),
        ("((a|b+)c)?", "the repetition ? of a group that has one inside"),
        ("(a|)+", "the repetition + of a group that has one inside"),
        ("a*?", "the repetition *?"),
        ("a++", "the repetition ++"),
        ("a*b*c*d*e*", "more than 4 repetitions"),
        ("a{3}", "the counted repetition {"),
        ("^a", "the anchor ^"),
        ("a$", "the anchor $"),
        ("(?i)a", "the group (?i"),
        ("(?P<n>a)", "the group (?P"),
        ("(?=a)", "the group (?="),
        (r"(a)\1", r"the escape \1"),
        (r"\bapi", r"the escape \b"),
        (r"\pL", r"the escape \p"),
        ("\\", "the escape \\"),
        ("*a", "the repetition * of nothing"),
        ("(a", "the group that begins with ( has no end"),
        ("a)", "the group that ends with ) has no beginning"),
        ("[a", "the class that begins with [ has no end"),
        ("[z-a]", "the range that begins with z-"),
        ("[[:alpha:]]", "the class [:"),
        (r"[\D]", "a negated class inside of [ ]"),
        ("(" * 33 + ")" * 33, "groups inside one another more than 32 deep"),
        ("(" * 4000, "groups inside one another more than 32 deep"),
    ],
)
def test_what_is_not_supported_is_named(pattern: str, construct: str) -> None:
    with pytest.raises(PatternError) as raised:
        Pattern(pattern)
    assert str(raised.value).startswith(construct)


def _sequences(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
    )


ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\.", "a", "b"])
PATTERNS = st.recursive(ATOMS, _sequences, max_leaves=10)


@given(
    parts=st.lists(st.tuples(PATTERNS, st.sampled_from(["", "", "*", "+", "?"])), max_size=4),
    values=st.lists(st.text("abc.", max_size=8), min_size=1, max_size=20),
)
def test_any_supported_pattern_means_the_same_to_python(parts: list[tuple[str, str]], values: list[str]) -> None:
    text = "".join(f"(?:{part}){repetition}" if repetition else part for part, repetition in parts)
    pattern = Pattern(text)
    for value in values:
        assert pattern.matches(value) is (re.fullmatch(text, value) is not None)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        pattern = Pattern(text)
    except PatternError:
        return
    pattern.matches("api-default-dfw-0")


@given(st.text(max_size=30), st.text(max_size=30))
def test_an_escaped_text_matches_itself_alone(text: str, other: str) -> None:
    assert Pattern(escaped(text)).matches(text)
    assert Pattern(escaped(text)).matches(other) is (text == other)


LONGEST = 253  # no name is longer


@pytest.mark.parametrize(
    "pattern",
    [
        ".*.*.*.*x",
        "(a|a)" * 800 + "b",
        "(a|aa)" * 600,
        "((((((((a|a)|a)|a)|a)|a)|a)|a)|a)" * 100,
        "(" + "|".join(["a"] * 2000) + ")*b",
        ".*a" + "." * 4000,
        "(a|b)" * 800,
        ".*" + "([ab]|a)" * 500,
        "|".join(f"api-default-dfw-{number}" for number in range(200)),
    ],
    ids=range(9),
)
def test_no_pattern_takes_long(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    values = ["a" * LONGEST, "ab" * (LONGEST // 2), "api-default-dfw-0"]
    took = []
    for value in values:
        began = time.process_time()
        compiled.matches(value)
        took.append(time.process_time() - began)
    assert max(took) < 0.1  # ten times what a quiet machine needs at most; backtracking would need years
