"""Lines of several streams in the order of time, at most a delay late, and never more than fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.telemetry.merge import Batch, Merge
from datum_compute.telemetry.sources import Dropped, Entry, Labels, Notice

DELAY = 0.1
A, B, C = (Labels(datum_instance_name=name) for name in "abc")
EVERYTHING = 1 << 40


def texts(batch: Batch) -> list[str]:
    return [item.text if isinstance(item, Entry) else item.kind for item in batch.items]


def taken(merge: Merge, now: float) -> list[str]:
    return texts(merge.take(now, EVERYTHING))


def test_one_stream_alone_does_not_wait() -> None:
    merge = Merge(DELAY)
    merge.add(Entry(5, A, "a1"), now=1.0)
    assert merge.next_due() is not None
    assert taken(merge, 1.0) == ["a1"]


def test_lines_of_several_streams_go_out_by_time_after_the_delay() -> None:
    merge = Merge(DELAY)
    merge.add(Entry(1, A, "a1"), now=1.0)
    assert taken(merge, 1.0) == ["a1"]
    merge.add(Entry(4, B, "b4"), now=1.0)
    merge.add(Entry(3, A, "a3"), now=1.05)
    merge.add(Entry(4, A, "a4"), now=1.05)
    merge.add(Entry(5, A, "a5"), now=1.05)
    assert taken(merge, 1.09) == []
    assert merge.next_due() == pytest.approx(1.1)
    assert taken(merge, 1.1) == ["a3", "b4"]  # of equal times the one that arrived first
    assert taken(merge, 1.16) == ["a4", "a5"]


def test_a_stream_waits_no_longer_once_all_others_have_left() -> None:
    merge = Merge(DELAY)
    for labels in (A, B):
        merge.add(Entry(1, labels, "old"), now=1.0)
    assert taken(merge, 1.2) == ["old", "old"]
    merge.add(Entry(2, A, "waits"), now=2.0)
    assert taken(merge, 2.0) == []
    assert taken(merge, 2.1) == ["waits"]
    merge.forget(lambda labels: labels == B)
    merge.add(Entry(3, A, "at once"), now=3.0)
    assert taken(merge, 3.0) == ["at once"]


def test_a_notice_keeps_its_place_among_lines() -> None:
    merge = Merge(DELAY)
    merge.add(Entry(1, A, "before"), now=1.0)
    merge.add(Entry(3, B, "after"), now=1.0)
    merge.add(Notice("left", "DFW", "a", 2, ""), now=1.05)
    assert taken(merge, 1.0) + taken(merge, 2.0) == ["before", "left", "after"]


def test_the_oldest_lines_are_given_up_and_counted_by_stream() -> None:
    merge = Merge(DELAY, most_lines=3)
    for number in range(4):
        merge.add(Entry(number, A, f"a{number}"), now=1.0)
        merge.add(Entry(number, B, f"b{number}"), now=1.0)
    batch = merge.take(2.0, EVERYTHING)
    assert texts(batch) == ["b2", "a3", "b3"]
    assert sorted(batch.dropped, key=lambda dropped: dropped.labels.datum_instance_name) == [
        Dropped(A, 2, 3),
        Dropped(B, 1, 2),
    ]
    assert merge.take(2.0, EVERYTHING).dropped == []


def test_the_size_of_lines_counts_as_well() -> None:
    merge = Merge(DELAY, most_bytes=100_000)
    for number in range(50):
        merge.add(Entry(number, A, "x" * 9_000), now=1.0)
    batch = merge.take(1.0, EVERYTHING)
    assert len(batch.items) == 10
    assert batch.dropped == [Dropped(A, 39, 40)]


def test_notices_are_not_given_up() -> None:
    merge = Merge(DELAY, most_lines=1)
    merge.add(Notice("joined", "DFW", "a", 1, ""), now=1.0)
    for number in range(3):
        merge.add(Entry(number, A, f"a{number}"), now=1.0)
    assert taken(merge, 1.0) == ["joined", "a2"]


def test_what_a_source_gave_up_is_passed_on() -> None:
    merge = Merge(DELAY)
    merge.add(Dropped(A, 5, 7), now=1.0)
    merge.add(Dropped(A, 6, 3), now=1.0)
    assert merge.take(1.0, EVERYTHING) == Batch([], [Dropped(A, 6, 10)])
    assert merge.next_due() is None


def test_a_batch_is_about_as_large_as_requested() -> None:
    merge = Merge(DELAY)
    for number in range(100):
        merge.add(Entry(number, A, "x" * 1000), now=1.0)
    assert 5 <= len(merge.take(1.0, 6_000).items) <= 6
    assert len(merge.take(1.0, EVERYTHING).items) in (94, 95)


ARRIVALS = st.lists(
    st.tuples(st.sampled_from([A, B, C]), st.integers(0, 50), st.integers(0, 5), st.sampled_from("llllnf")), max_size=60
)


@given(ARRIVALS)
def test_nothing_is_lost_doubled_late_or_reordered_within_its_stream(
    arrivals: list[tuple[Labels, int, int, str]],
) -> None:
    merge = Merge(DELAY)
    now, sent = 0.0, 0
    arrived: dict[str, float] = {}
    left: list[tuple[Entry, float]] = []
    for labels, time, pause, what in arrivals:
        now += pause * 0.02
        left += [(item, now) for item in merge.take(now, EVERYTHING).items if isinstance(item, Entry)]
        if what == "f":
            merge.forget(lambda ended, labels=labels: ended == labels)  # type: ignore[misc]
        elif what == "n":
            merge.add(Notice("silent", "DFW", "", time, ""), now)
        else:
            text = str(sent)
            sent += 1
            arrived[text] = now
            merge.add(Entry(time, labels, text), now)
    end = now + 1
    while (due := merge.next_due()) is not None:
        now = max(now, due)
        left += [(item, now) for item in merge.take(now, EVERYTHING).items if isinstance(item, Entry)]
    assert now <= end
    assert sorted(int(entry.text) for entry, _ in left) == list(range(sent))
    for labels in (A, B, C):
        numbers = [int(entry.text) for entry, _ in left if entry.labels == labels]
        assert numbers == sorted(numbers)
    # Looked at only when something arrives, so it may be late by the longest pause between two arrivals.
    assert all(at <= arrived[entry.text] + DELAY + 0.1 + 1e-9 for entry, at in left)


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 100)), max_size=60))
def test_what_arrives_within_the_delay_goes_out_in_the_order_of_time(lines: list[tuple[Labels, int]]) -> None:
    """Each stream in the order of its own times, as a sane program writes them."""
    merge = Merge(DELAY)
    merge.add(Entry(0, A, ""), now=0.0)
    merge.add(Entry(0, B, ""), now=0.0)
    merge.take(1.0, EVERYTHING)
    for labels in (A, B, C):
        for time in sorted(time for other, time in lines if other == labels):
            merge.add(Entry(time, labels, "x"), now=2.0)
    out = [item.time for item in merge.take(2.0 + DELAY, EVERYTHING).items]
    assert out == sorted(time for _, time in lines)
