"""The supported part of LogQL, its limits, and what each error names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.telemetry.query import (
    ALL_FILTERS,
    MOST_BYTES,
    Filter,
    Matcher,
    Query,
    QueryError,
    line_matches,
    matches,
    parse,
    write,
)

LABELS = {"datum_workload_name": "api", "datum_city_code": "DFW", "log_iostream": "stderr"}


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ('{a="b"}', Query((Matcher("a", "=", "b"),))),
        (
            ' { a = "b" , c!="d",e=~"f.*" ,g!~"h|i" } ',
            Query(
                (Matcher("a", "=", "b"), Matcher("c", "!=", "d"), Matcher("e", "=~", "f.*"), Matcher("g", "!~", "h|i"))
            ),
        ),
        ("{a=`b\\n`}", Query((Matcher("a", "=", "b\\n"),))),
        (r'{a="\"\\\t\x41é\101\U0001f600"}', Query((Matcher("a", "=", '"\\\tAéA\U0001f600'),))),
        (r'{a="\xc3\xa9"}', Query((Matcher("a", "=", "é"),))),
        (
            '{a="b"} |= "x" != `y`|="z"',
            Query((Matcher("a", "=", "b"),), (Filter("|=", "x"), Filter("!=", "y"), Filter("|=", "z"))),
        ),
    ],
)
def test_a_query_is_read(text: str, query: Query) -> None:
    assert parse(text) == query


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is empty"),
        ("{}", "the selector {} is empty"),
        ("{ }", "the selector {} is empty"),
        ('sum(rate({a="b"}[5m]))', 'begins with "sum(rate('),
        ('{a="b"', "the selector { has no end"),
        ('{a="b",}', 'a label is expected in the selector, not "}"'),
        ('{a="b" c="d"}', 'after a matcher , or } is expected, not "c='),
        ('{a>"b"}', "after label a one of = != =~ !~ is expected"),
        ("{a=b}", "the value of label a has to be in quotes"),
        ("{a='b'}", "the value of label a has to be in quotes"),
        ('{a="b}', "the value of label a has no closing quote"),
        ("{a=`b}", "the value of label a has no closing quote"),
        (r'{a="\q"}', r"the value of label a has the escape \q"),
        (r'{a="\x4"}', r"the value of label a has the escape \x"),
        (r'{a="\ud800"}', r"the value of label a has the escape \u"),
        (r'{a="\xff"}', "the value of label a is not UTF-8"),
        ('{a=~"(b*)*"}', "the pattern of label a has the repetition * of a group that has one inside"),
        ('{a!~"^b"}', "the pattern of label a has the anchor ^"),
        ('{a="b"} |~ "c"', "the filter |~ on lines"),
        ('{a="b"} !~ "c"', "the filter !~ on lines"),
        ('{a="b"} |> "<_>"', "the filter |> on lines"),
        ('{a="b"} | json', "the stage | json"),
        ('{a="b"} | line_format "x"', "the stage | line_format"),
        ('{a="b"} | "x"', "the stage |"),
        ('{a="b"} |= ip("1.2.3.4")', 'after |= a text in quotes is expected, not "ip('),
        ('{a="b"} |= "c" or "d"', "the word or after a filter"),
        ('{a="b"} |=', "the value of the filter |= has to be in quotes"),
        ('{a="b"} [5m]', '"[5m]"'),
        ('{a="b"} # why', "a comment (#)"),
        ('{a="b"} and {c="d"}', '"and"'),
        ("{" + ",".join(f'a{number}="b"' for number in range(33)) + "}", "more than 32 matchers"),
        ('{a="b"}' + ' |= "x"' * 9, "more than 8 filters"),
        ('{a="' + "b" * MOST_BYTES + '"}', "longer than 4096 bytes"),
        ('{a="' + "é" * (MOST_BYTES // 2) + '"}', "longer than 4096 bytes"),
    ],
)
def test_an_error_names_the_construct(text: str, named: str) -> None:
    with pytest.raises(QueryError) as raised:
        parse(text)
    assert named in str(raised.value)


def test_the_limits_themselves_are_allowed() -> None:
    assert len(parse("{" + ",".join(f'a{number}="b"' for number in range(32)) + "}").matchers) == 32
    assert len(parse('{a="b"}' + ' |= "x"' * 8).filters) == 8
    assert parse('{a="' + "b" * (MOST_BYTES - 6) + '"}')


def test_patterns_on_lines_are_read_for_a_source_that_evaluates_them() -> None:
    query = parse('{a="b"} |~ "c+" !~ "d"', ALL_FILTERS)
    assert query.filters == (Filter("|~", "c+"), Filter("!~", "d"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{datum_workload_name="api"}', True),
        ('{datum_workload_name="ap"}', False),
        ('{datum_workload_name!="api"}', False),
        ('{datum_workload_name=~"a.*"}', True),
        ('{datum_workload_name!~"a.*"}', False),
        ('{datum_workload_name="api", datum_city_code="AMS"}', False),
        ('{unknown=""}', True),
        ('{unknown="x"}', False),
        ('{unknown!="x"}', True),
        ('{unknown=~".*"}', True),
        ('{unknown=~".+"}', False),
        ('{__class__=~".+"}', False),
    ],
)
def test_matchers_select_streams(text: str, expected: bool) -> None:
    assert matches(LABELS, parse(text)) is expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [("", True), ('|= "GET"', True), ('|= "get"', False), ('!= "200"', False), ('|= "GET" != "500"', True)],
)
def test_filters_select_lines(filters: str, expected: bool) -> None:
    assert line_matches("GET / 200 3ms", parse('{a="b"}' + filters)) is expected


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
QUERIES = st.builds(
    Query,
    st.lists(st.builds(Matcher, NAMES, st.sampled_from(["=", "!="]), TEXTS), min_size=1, max_size=5).map(tuple),
    st.lists(st.builds(Filter, st.sampled_from(ALL_FILTERS), TEXTS), max_size=4).map(tuple),
)


@given(QUERIES)
def test_a_written_query_is_read_back(query: Query) -> None:
    assert parse(write(query), ALL_FILTERS) == query


@given(st.text(max_size=60) | st.text('{}="`|!~,\\ab #', max_size=60))
def test_any_text_is_a_query_or_an_error_in_one_sentence(text: str) -> None:
    sentence = ""
    try:
        query = parse(text)
    except QueryError as error:
        sentence = str(error)
    if sentence:
        assert "\n" not in sentence
    else:
        assert parse(write(query)) == query
