"""All lines of a window, page by page. Entry points: `newest`, `oldest_first`, `Request`.

Some servers cut the ends of a window to whole seconds. So each page begins where the one before ended, and lines that
both have are left out of the second.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.cli.logs.entries import Entry
from datum_compute.cli.logs.memory import Memory

LARGEST = 5000  # lines of a page
SECOND = 1_000_000_000


class Request(Struct, frozen=True):
    query: str
    start: int
    end: int | None = None  # exclusive; None for now, as the server sees it
    limit: int = LARGEST
    backward: bool = False


Fetch = Callable[[Request], Sequence[Entry]]
"""Returns lines in order of time, whatever the direction."""


def oldest_first(fetch: Fetch, request: Request) -> Iterator[list[Entry]]:
    """All lines of the window, in pages."""
    memory = Memory()
    start = request.start
    while True:
        memory.begin()
        page = fetch(replace(request, start=start))
        fresh = memory.fresh(page)
        if fresh:
            yield fresh
        if len(page) < request.limit:
            return
        last = page[-1].time
        memory.forget_before(_second(last))
        if fresh:
            start = last
        else:  # more lines in one moment than fit on a page: the rest cannot be read
            cut_to_seconds = page[0].time < start
            start = _second(last) + SECOND if cut_to_seconds else last + 1


def newest(fetch: Fetch, request: Request, count: int) -> list[Entry]:
    """The newest lines of the window, oldest first."""
    if count <= 0:
        return []
    memory = Memory()
    lines: list[Entry] = []
    end, limit = request.end, min(count, request.limit)
    repeated = 0
    while True:
        memory.begin()
        page = fetch(replace(request, end=end, limit=limit, backward=True))
        fresh = memory.fresh(page)
        lines = [*fresh, *lines]
        if len(lines) >= count or len(page) < limit:
            return lines[-count:]
        oldest = page[0].time
        repeated = 0 if fresh else repeated + 1
        end = (_second(oldest) + SECOND, oldest + 1, oldest)[min(repeated, 2)]


def _second(time: int) -> int:
    return time - time % SECOND
