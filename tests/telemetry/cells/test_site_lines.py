"""Lines as sites send them: split, timed exactly, never twice, and never more than is good."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.telemetry.cells.site_lines import LONGEST, Budget, Memory, Splitter, nanoseconds, parsed, written
from tests.telemetry.sites import stamp

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"1970-01-01T00:00:00Z", 0),
        (b"1970-01-01T00:00:01.5Z", 1_500_000_000),
        (b"2026-11-16T11:03:12.955123456Z", 1794826992_955_123_456),
        (b"1970-01-01T01:00:00.000000001+01:00", 1),
        (b"1969-12-31T23:00:00-01:00", 0),
        (b"1970-01-01T00:00:00.Z", None),
        (b"1970-01-01T00:00:00.0000000001Z", None),
        (b"1970-01-01 00:00:00Z", None),
        (b"1970-01-01T00:00:00", None),
        (b"1970-13-01T00:00:00Z", None),
        (b"unable", None),
        (b"", None),
    ],
)
def test_times_are_read_exactly(text: bytes, expected: int | None) -> None:
    assert nanoseconds(text) == expected


@given(st.integers(0, 2**62))
def test_every_time_is_read_as_it_was_written(time: int) -> None:
    assert nanoseconds(stamp(time).encode()) == time
    assert nanoseconds(written(time).encode()) == time - time % SECOND


@given(st.binary(max_size=80))
def test_any_line_is_read_or_is_none(line: bytes) -> None:
    parsed(line)
    nanoseconds(line)


def test_a_line_has_a_time_and_a_text() -> None:
    assert parsed(b"1970-01-01T00:00:01Z hello  world ") == (SECOND, "hello  world ")
    assert parsed(b"1970-01-01T00:00:01Z ") == (SECOND, "")
    assert parsed(b"1970-01-01T00:00:01Z \xff\xfe") == (SECOND, "��")
    assert parsed(b"unable to retrieve container logs for containerd://8f3") is None


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b""))), st.data())
def test_lines_are_whole_however_they_arrive(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    found: list[bytes] = []
    splitter, at = Splitter(), 0
    while at < len(whole):
        size = data.draw(st.integers(1, 9))
        found += splitter.feed(whole[at : at + size])
        at += size
    assert [*found, *splitter.end()] == lines


def test_the_last_line_needs_no_newline() -> None:
    splitter = Splitter()
    assert [*splitter.feed(b"a\nb"), *splitter.end()] == [b"a", b"b"]
    assert list(splitter.end()) == []


def test_a_line_without_end_is_cut_and_costs_no_more_memory() -> None:
    splitter = Splitter()
    assert list(splitter.feed(b"1970-01-01T00:00:01Z ")) == []
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 10_000)) == []
    assert len(splitter._begun) < LONGEST + 100
    [line, following] = splitter.feed(b"\n1970-01-01T00:00:02Z next\n")
    assert parsed(line) == (SECOND, "x" * LONGEST + "…")
    assert parsed(following) == (2 * SECOND, "next")


def test_what_is_skipped_is_counted_and_ends_with_its_line() -> None:
    splitter = Splitter()
    assert list(splitter.feed(b"one\ntw")) == [b"one"]
    assert splitter.skip(b"o\nthree\nfo") == 3
    assert splitter.skip(b"u") == 0, "the same line"
    assert list(splitter.feed(b"r\nfive\n")) == [b"five"]
    assert splitter.skip(b"six\n") == 1
    assert list(splitter.feed(b"seven\n")) == [b"seven"]


def test_lines_that_come_again_are_recognized() -> None:
    memory = Memory()
    lines = [(SECOND, "a"), (SECOND, "a"), (SECOND + 5, "b")]
    assert [memory.is_new(*line) for line in lines] == [True, True, True], "equal lines are two lines"
    assert (memory.newest, memory.since) == (SECOND + 5, SECOND)
    memory.reopen()
    again = [*lines, (SECOND + 5, "c"), (SECOND, "a")]
    assert [memory.is_new(*line) for line in again] == [False, False, False, True, True]


@given(st.lists(st.tuples(st.integers(0, 5 * SECOND), st.sampled_from("ab"))), st.data())
def test_nothing_is_lost_or_doubled_wherever_a_stream_breaks(lines: list[tuple[int, str]], data: st.DataObject) -> None:
    """The clock of a container may also go back a little within a second."""
    lines = sorted(lines, key=lambda line: line[0] // SECOND)
    memory, found, at = Memory(), [], 0
    while True:
        since = memory.since or 0
        memory.reopen()
        at = data.draw(st.integers(at, len(lines)))
        found += [line for line in lines[:at] if line[0] >= since and memory.is_new(*line)]
        if at == len(lines):
            break
    assert sorted(found) == sorted(lines)


def test_a_successor_does_not_repeat_what_was_seen_under_the_old_name() -> None:
    former = Memory()
    former.is_new(SECOND, "started")
    memory = Memory(former)
    memory.reopen()
    assert memory.since is None, "its log begins anew"
    assert not memory.is_new(SECOND, "started")
    assert memory.is_new(SECOND + 1, "started")


def test_lines_before_the_first_ones_wanted_are_not_new_later() -> None:
    """Only the last two of these were asked for, and all of them are of one second."""
    memory = Memory()
    for line in ((SECOND + 5, "c"), (SECOND + 6, "d")):
        memory.is_new(*line)
    memory.cut()
    memory.reopen()
    lines = [
        (SECOND, "a"),
        (SECOND + 5, "b"),
        (SECOND + 5, "c"),
        (SECOND + 6, "d"),
        (SECOND + 6, "e"),
        (SECOND + 5, "f"),
    ]
    assert [memory.is_new(*line) for line in lines] == [False, False, False, False, True, True]


def test_a_memory_is_bounded() -> None:
    memory = Memory()
    for time in range(10_000):
        assert memory.is_new(time, "x")
    memory.reopen()
    assert not memory.is_new(0, "x"), "forgotten, but too old to be new"
    assert memory.is_new(10_000, "x")


def test_a_budget_is_spent_by_the_second() -> None:
    budget = Budget(100)
    assert budget.take(150, 0.0), "whatever is left may be used up"
    assert not budget.take(1, 0.4)
    assert budget.take(1, 0.6)
    assert budget.spend(359, 10.0) == pytest.approx(2.59)
    assert budget.spend(0, 12.0) == pytest.approx(0.59)
    assert budget.spend(10, 20.0) == 0
