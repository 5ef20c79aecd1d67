"""How frames become lines, and which lines of a log that is read again are new."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.federation.lines import STDERR, STDOUT, Line
from datum_compute.providers.containers.lines import (
    LONGEST_LINE,
    Allowance,
    CatchUp,
    Gap,
    Joiner,
    is_old,
    line_time,
    overlap,
)

S = 1_000_000_000
T = 1780315200 * S  # a whole second
STAMP = b"2026-06-01T12:00:00Z "


def joined(*pieces: tuple[str, bytes]) -> list[str]:
    joiner = Joiner()
    lines = [line for stream, data in pieces for line in joiner.add(stream, STAMP + data, True)]
    return [line.text for line in [*lines, *joiner.finish()]]


def read(texts: str, time: int = T, stream: str = STDOUT) -> list[Line]:
    return [Line(time, stream, text) for text in texts]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"one\n", b"two\n"], ["one", "two"]),
        ([b"on", b"e\n"], ["one"]),
        ([b"\n"], [""]),
        ([b"no newline"], ["no newline"]),
        ([b"a\nb\n"], ["a", "b"]),
        ([b"\xffx\n"], ["\ufffdx"]),
        ([b"h\xc3", b"\xa9\n"], ["hé"]),
        ([b"tab\tcr\r\n"], ["tab\tcr\r"]),
        ([b"x" * LONGEST_LINE + b"\n"], ["x" * LONGEST_LINE]),
        ([b"x" * LONGEST_LINE + b"y\n"], ["x" * LONGEST_LINE + "…"]),
        ([b"x" * 8000] * 5 + [b"\n", b"next\n"], ["x" * LONGEST_LINE + "…", "next"]),
        ([b"x" * (LONGEST_LINE - 1) + "é".encode() + b"y\n"], ["x" * (LONGEST_LINE - 1) + "…"]),
    ],
)
def test_frames_become_lines(pieces: list[bytes], expected: list[str]) -> None:
    assert joined(*((STDOUT, piece) for piece in pieces)) == expected


def test_a_line_has_the_time_of_its_beginning() -> None:
    joiner = Joiner()
    assert list(joiner.add(STDOUT, b"2026-06-01T12:00:00.5Z be", True)) == []
    assert list(joiner.add(STDOUT, b"2026-06-01T12:00:09.5Z gin\n", True)) == [Line(T + S // 2, STDOUT, "begin")]


def test_streams_do_not_mix() -> None:
    assert joined((STDOUT, b"out"), (STDERR, b"err\n"), (STDOUT, b"put\n")) == ["err", "output"]


def test_a_gap_ends_lines_and_the_next_begins_after_a_newline() -> None:
    joiner = Joiner()
    assert list(joiner.add(STDOUT, STAMP + b"begin", True)) == []
    assert joiner.tear(frozenset({STDOUT})) == [Line(T, STDOUT, "begin…")]
    assert list(joiner.add(STDOUT, b"middle of a lost line", False)) == []
    assert list(joiner.add(STDERR, STAMP + b"whole\n", True)) == [Line(T, STDERR, "whole")]
    assert list(joiner.add(STDOUT, b"its end\n", False)) == []
    assert list(joiner.add(STDOUT, STAMP + b"next\n", True)) == [Line(T, STDOUT, "next")]


@pytest.mark.parametrize(
    ("engine", "arrival", "opened", "expected"),
    [
        (T + 5, T + S, T - S, T + 5),  # exact
        (T, T + S // 2, T - S, T + S // 2),  # only the second is known, and the line came live
        (T, T + 60 * S, T + 59 * S, T),  # read from the backlog
        (T, T + S, T + S // 2, T + S),  # perhaps from just before the log was opened
        (T, T - 5 * S, T - 9 * S, T),  # the engine's clock is ahead
        (0, T, T, T),  # no time at all
    ],
)
def test_the_time_of_a_line(engine: int, arrival: int, opened: int, expected: int) -> None:
    assert line_time(engine, arrival, opened) == expected


@pytest.mark.parametrize(
    ("time", "opened", "expected"),
    [(T + 1, T + 1, True), (T + 2, T + 1, False), (T, T + S, True), (T, T + S - 1, False)],
)
def test_what_is_surely_from_before(time: int, opened: int, expected: bool) -> None:
    assert is_old(Line(time, STDOUT, "x"), opened) is expected


@pytest.mark.parametrize(
    ("known", "backlog", "new"),
    [
        ("", "abc", "abc"),
        ("abc", "abc", ""),
        ("abc", "abcde", "de"),
        ("abcdef", "def", ""),
        ("abcdef", "efgh", "gh"),
        ("abc", "xyz", "xyz"),
        ("abab", "abababx", "abx"),  # the longest end that is found
        ("aa", "aaa", "a"),
        ("aaa", "aaa", ""),
        ("abef", "abcdefg", "g"),  # c and d were left out
        ("abc", "", ""),
        ("xa", "xaya", "ya"),
        ("abcsabd", "abcdsabcde", "e"),  # c was left out
    ],
)
def test_the_overlap_of_a_backlog_with_known_lines(known: str, backlog: str, new: str) -> None:
    assert "".join(line.text for line in read(backlog)[overlap(read(known), read(backlog)) :]) == new


def test_equal_lines_of_a_later_second_are_new() -> None:
    known = [Line(T + S // 3, STDOUT, "tick")]
    backlog = [Line(T, STDOUT, "tick"), Line(T + S, STDOUT, "tick"), Line(T + 2 * S, STDOUT, "tick")]
    assert overlap(known, backlog) == 1


def test_lines_from_long_before_are_not_new_even_if_they_were_left_out() -> None:
    known = [Line(T, STDOUT, "last")]
    assert overlap(known, [Line(T - 60 * S, STDOUT, "lost"), Line(T, STDOUT, "other")]) == 1


def test_equal_text_on_another_stream_is_another_line() -> None:
    assert overlap(read("a"), read("a", stream=STDERR)) == 0


def caught_up(known: list[Line], backlog: list[Line], opened: int = T + 60 * S) -> list[Line]:
    news = CatchUp(known, opened, 1000)
    return [*(line for entry in backlog for line in news.add(entry)), *news.decide()]


EXACT = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([STDOUT, STDERR]), st.sampled_from("ab")), max_size=12
).map(lambda entries: [Line(T + 1 + step, s, t) for step, s, t in sorted(entries, key=lambda entry: entry[0])])


@given(EXACT, st.integers(0, 12), st.integers(0, 12))
def test_exact_times_tell_exactly_what_is_new(lines: list[Line], known: int, first: int) -> None:
    known = min(known, len(lines))
    newest = {line.stream: line.time for line in lines[:known]}
    # Known lines of the same nanosecond as the newest have to be in the backlog: nothing else tells equal ones apart.
    needed = next((index for index, line in enumerate(lines) if line.time == newest.get(line.stream)), 0)
    assert caught_up(lines[:known], lines[min(first, needed) :]) == lines[known:]


DISTINCT = st.integers(0, 30).map(lambda count: [Line(T, STDOUT, f"line {number}") for number in range(count)])


@given(DISTINCT, st.integers(0, 30), st.integers(0, 30))
def test_distinct_lines_are_never_lost_or_repeated(lines: list[Line], known: int, first: int) -> None:
    known = min(known, len(lines))
    assert caught_up(lines[:known], lines[max(min(first, known - 1), 0) :]) == lines[known:]


def test_a_backlog_of_seconds_is_over_with_the_first_line_after_opening() -> None:
    news = CatchUp(read("ab"), T + S, 1000)
    assert list(news.add(Line(T, STDOUT, "a"))) == []
    assert list(news.add(Line(T, STDOUT, "b"))) == []
    assert news.undecided
    assert [line.text for line in news.add(Line(T + 2 * S, STDOUT, "c"))] == ["c"]
    assert [line.text for line in news.add(Line(T, STDOUT, "d"))] == ["d"]


def test_of_an_unknown_backlog_the_newest_lines_are_read() -> None:
    news = CatchUp([], T + 60 * S, 3)
    assert [line for entry in read("abcdef") for line in news.add(entry)] == []
    assert [line.text for line in news.decide()] == ["d", "e", "f"]


def test_a_new_container_does_not_wait_for_its_first_lines() -> None:
    news = CatchUp([], T, 3)
    assert list(news.add(Line(T, STDOUT, "a"))) == [Line(T, STDOUT, "a")]


def test_a_clock_that_is_set_back_hides_nothing() -> None:
    assert caught_up([Line(T + 5, STDOUT, "a")], [Line(T + 5, STDOUT, "a"), Line(T + 9, STDOUT, "b")]) == [
        Line(T + 9, STDOUT, "b")
    ]
    news = CatchUp([Line(T + 5, STDOUT, "a")], T, 1000)
    for time in (T + 9, T + 3, T):
        assert list(news.add(Line(time, STDOUT, "b"))) == [Line(time, STDOUT, "b")]


def test_an_allowance_is_spent_and_comes_back() -> None:
    allowance = Allowance(100)
    assert allowance.delay(0) == 0
    allowance.take(150)
    assert allowance.delay(0) == 0.5
    assert allowance.delay(0.25) == 0.25
    assert allowance.delay(0.5) == 0
    assert allowance.delay(100) == 0
    allowance.take(101)  # never more than a second's worth is saved up
    assert allowance.delay(100) == 0.01


def test_a_gap_is_said_with_lines_and_size() -> None:
    assert str(Gap(1234, 5_600_000)) == (
        "(left out here: 1,234 lines (5.6 MB): the container writes faster than its log is read)"
    )
    assert "1.5 kB" in str(Gap(1, 1500))
