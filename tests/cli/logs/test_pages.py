"""Windows larger than a page are read whole, from servers that are exact and from those that cut to seconds."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.logs.entries import Entry, Labels
from datum_compute.cli.logs.pages import SECOND, Request, newest, oldest_first

BEGIN = 1_700_000_000 * SECOND
STREAMS = [Labels.of({"datum_instance_name": name}) for name in ("a", "b")]


class Server:
    """Lines in order of time. `cuts` if it reads the ends of a window in whole seconds."""

    def __init__(self, entries: Sequence[Entry], *, cuts: bool = False) -> None:
        self.entries = sorted(entries, key=lambda entry: entry.time)
        self.cuts = cuts
        self.calls = 0

    def __call__(self, request: Request) -> list[Entry]:
        self.calls += 1
        assert self.calls < 10_000, "it reads for ever"
        start, end = request.start, 2**63 if request.end is None else request.end
        if self.cuts:
            start, end = start - start % SECOND, end - end % SECOND
        found = [entry for entry in self.entries if start <= entry.time < end]
        return found[-request.limit :] if request.backward else found[: request.limit]


def lines(*offsets: int) -> list[Entry]:
    return [Entry(BEGIN + offset, STREAMS[number % 2], f"line {number}") for number, offset in enumerate(offsets)]


moments = st.lists(st.integers(0, 40).map(lambda tenth: tenth * SECOND // 10), max_size=60)


@given(moments, st.booleans())
def test_all_lines_are_read_once_and_in_order(offsets: list[int], cuts: bool) -> None:
    """No second has more lines than a page, which is more than some servers can be asked for."""
    server = Server(lines(*offsets), cuts=cuts)
    read = [entry for page in oldest_first(server, Request("", BEGIN, limit=61)) for entry in page]
    assert read == server.entries
    small = Server(lines(*sorted(offsets)), cuts=cuts)
    largest = max((sum(o // SECOND == s for o in offsets) for s in range(5)), default=0)
    read = [entry for page in oldest_first(small, Request("", BEGIN, limit=largest + 1)) for entry in page]
    assert read == small.entries


@given(moments, st.booleans(), st.integers(0, 70))
def test_the_newest_lines_are_read_once_and_in_order(offsets: list[int], cuts: bool, count: int) -> None:
    server = Server(lines(*offsets), cuts=cuts)
    largest = max((sum(o // SECOND == s for o in offsets) for s in range(5)), default=0)
    read = newest(server, Request("", BEGIN, limit=largest + 1), count)
    assert read == (server.entries[-count:] if count else [])


def test_equal_lines_of_one_moment_are_all_read() -> None:
    same = [Entry(BEGIN + second * SECOND, STREAMS[0], "tick") for second in range(3) for _ in range(4)]
    assert [len(page) for page in oldest_first(Server(same), Request("", BEGIN, limit=5))] == [5, 4, 3]
    assert newest(Server(same), Request("", BEGIN, limit=5), 11) == same[1:]


def test_an_exact_server_is_read_whole_however_many_lines_a_second_has() -> None:
    server = Server(lines(*range(1000)))
    assert [entry for page in oldest_first(server, Request("", BEGIN, limit=7)) for entry in page] == server.entries
    assert newest(Server(server.entries), Request("", BEGIN, limit=7), 900) == server.entries[-900:]


@pytest.mark.parametrize("cuts", [True, False])
def test_a_moment_with_more_lines_than_a_page_is_skipped_not_read_for_ever(cuts: bool) -> None:
    crowd = [Entry(BEGIN, STREAMS[0], str(number)) for number in range(20)]
    later = Entry(BEGIN + 2 * SECOND, STREAMS[0], "later")
    read = [
        entry
        for page in oldest_first(Server([*crowd, later], cuts=cuts), Request("", BEGIN, limit=5))
        for entry in page
    ]
    assert read == [*crowd[:5], later]
    earlier = Entry(BEGIN - 2 * SECOND, STREAMS[0], "earlier")
    read = newest(Server([earlier, *crowd], cuts=cuts), Request("", BEGIN - 9 * SECOND, limit=5), 30)
    assert (read[0], read[-1]) == (earlier, crowd[-1])


def test_a_page_is_no_larger_than_what_is_asked_for() -> None:
    requests = []

    def fetch(request: Request) -> list[Entry]:
        requests.append(request)
        return []

    newest(fetch, Request("q", 1, 2), 200)
    assert requests == [Request("q", 1, 2, 200, backward=True)]
