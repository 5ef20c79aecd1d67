"""Lines that the instances of a workload write. Entry point: `command`."""

import heapq
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice

from msgspec import Struct

from datum_compute.answers.health import State, instance_health
from datum_compute.cli.logs.entries import Entry
from datum_compute.cli.logs.following import Follower
from datum_compute.cli.logs.generations import Chosen, chosen
from datum_compute.cli.logs.pages import LARGEST, Fetch, Request, newest, oldest_first
from datum_compute.cli.logs.selection import Selection
from datum_compute.cli.logs.subject import Choice, Subject
from datum_compute.cli.logs.window import ALL, DEFAULT_TAIL, Moment, Tail, Window, nanoseconds, window_of
from datum_compute.cli.shell.failures import usage
from datum_compute.cli.shell.flags import Cities, Duration, ShortNames, option, verb, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.log_entries import Appearance, short_name
from datum_compute.cli.show.log_screen import LogScreen
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.log_api import LogApi
from datum_compute.telemetry.query import MOST_BYTES

_REMEMBERED = timedelta(days=30)  # how far back names are looked for that exist no more
_STARTED = (State.AVAILABLE, State.CRASHING, State.FAILED, State.TERMINATING, State.STOPPING)


class LogFlags(Struct, frozen=True):
    workload: str
    city: Sequence[Sequence[str]] = ()
    instance: Sequence[Sequence[str]] = ()
    container: str | None = None
    search: str | None = None
    follow: bool = False
    since: float | None = None
    since_time: datetime | None = None
    until: datetime | None = None
    current: bool = False
    previous: bool = False
    tail: int | None = None
    timestamps: bool = True
    prefix: bool = True
    utc: bool = False
    show_query: bool = False

    @property
    def choice(self) -> Choice:
        return Choice(tuple(chain(*self.city)), tuple(chain(*self.instance)), self.container or "")

    def window(self, now: datetime, *, since: float | None = None) -> Window:
        """`since` is the default."""
        is_named = self.since is not None or self.since_time is not None
        return window_of(
            now,
            since=self.since if is_named else since,
            since_time=self.since_time,
            until=self.until,
            tail=self.tail if self.tail is not None or is_named else DEFAULT_TAIL,
            utc=self.utc,
            generations=self.current or self.previous,
        )


def _check(flags: LogFlags) -> None:
    if flags.since is not None and flags.since_time is not None:
        raise usage("--since cannot be combined with --since-time")
    if flags.since is not None and flags.since <= 0:
        raise usage("--since: use a duration such as 15m, 2h or 7d")
    if flags.current and flags.previous:
        raise usage("--current cannot be combined with --previous")
    for flag, is_given in (
        ("until", flags.until is not None),
        ("previous", flags.previous),
        ("current", flags.current),
    ):
        if flags.follow and is_given:
            raise usage(f"--{flag} cannot be combined with --follow, which shows what is written from now on")
    if flags.search is not None and not flags.search:
        raise usage("--search needs a text: --search=TEXT")


@verb("logs", needs=ENTITLED_PROJECT, outputs=("text", "json"), flags=LogFlags, check=_check)
@workload_argument
@option("-f", "--follow", is_flag=True, help="Continue with new lines until Ctrl-C.")
@option("--city", type=Cities(), multiple=True, help="Only instances in these cities.")
@option(
    "--instance", type=ShortNames(), multiple=True, help="Only these instances; short names will do: default-dfw-0."
)
@option("-c", "--container", metavar="NAME", help="Only this container.")
@option("--search", metavar="TEXT", help="Only lines that contain this text; upper and lower case differ.")
@option("--since", type=Duration(), metavar="DURATION", help="All lines from so long ago on: 15m, 2h, 7d.")
@option("--since-time", type=Moment(), metavar="TIME", help="All lines from this time on: 2026-11-16T11:03:00Z.")
@option("--until", type=Moment(), metavar="TIME", help="Only lines before this time.")
@option("--current", is_flag=True, help="Of each instance, only lines since it was last replaced.")
@option("--previous", is_flag=True, help="Of each instance, only lines of the generation before that.")
@option("--tail", type=Tail(), metavar="N", help="Only the newest lines; -1 for all, 200 by default.")
@option("--timestamps/--no-timestamps", default=True, help="Show when each line was written; the default.")
@option("--prefix/--no-prefix", default=True, help="Show which instance wrote each line; the default.")
@option("--utc", is_flag=True, help="Show and read times in UTC instead of local time.")
@option("--show-query", is_flag=True, help="Show the query in LogQL on stderr.")
def command(run: Run, flags: LogFlags) -> None:
    """Show or follow what the instances of a workload write.

    Lines of all instances are merged by time. Without --since or --since-time, these are the newest 200 of the last 24
    hours. A replaced instance has the name of the one before it, and begins a new generation. Lines of both are shown,
    and those of deleted instances and workloads, as long as the platform stores them. With -o json each line is an
    object.
    """
    try:
        _read(run, flags)
    except KeyboardInterrupt:
        if run.terminal.live:
            run.terminal.lines("\n")  # after the ^C that the terminal shows


def _read(run: Run, flags: LogFlags) -> None:
    now = run.clock.now()
    window = flags.window(now)
    logs = LogApi(run.target.logs, f"instances --workload={flags.workload}", run.terminal.warn)
    subject = Subject(run.project, logs, flags.workload, nanoseconds(now - _REMEMBERED))
    if subject.workload is None:
        run.terminal.warn(f'workload "{subject.name}" is gone; these lines are left of it')
        window = flags.window(now, since=_REMEMBERED.total_seconds())
    screen = _screen(run, flags, subject)
    selection = subject.selection(flags.choice)
    fetch: Fetch = logs.lines
    selections = [selection]
    if flags.previous and logs.page(Request(selection.query, window.start, window.end, 1), previous=True)[1]:
        run.terminal.aside(
            "Lines of replaced instances are not stored here: these were written before the last restart."
        )
        fetch = lambda request: logs.page(request, previous=True)[0]  # noqa: E731
    elif flags.current or flags.previous:
        found = _generation(logs, selection, window, index=1 if flags.previous else 0)
        _report_missing(run, flags, found, window)
        selections = list(found.selections)
    queries = [narrowed.containing(flags.search or "").query for narrowed in selections]
    for query in queries:
        if flags.show_query:
            run.terminal.warn(query)
        if len(query.encode()) > MOST_BYTES:
            raise usage("the query is too long for the server: name fewer instances, or a shorter text")
    if flags.follow:
        Follower(logs, queries[0], screen, run.clock).follow(window)
        return
    for entries in _entries(fetch, queries, window):
        screen.show(entries)
    if not screen.count and queries:
        stored = not logs.page(Request(selection.query, window.start, window.end, 1), previous=True)[1]
        run.terminal.aside(_hint(run, flags, subject, window, stored=stored))


def _screen(run: Run, flags: LogFlags, subject: Subject) -> LogScreen:
    appearance = Appearance(
        timestamps=flags.timestamps,
        prefix=flags.prefix,
        zone=UTC if flags.utc else None,
        terminal=run.terminal.live,
        colours=run.terminal.coloured,
    )
    return LogScreen(
        run.terminal,
        subject.name,
        appearance,
        cities=subject.cities,
        containers=[flags.container] if flags.container else subject.containers,
        is_gone=subject.is_gone,
    )


def _generation(logs: LogApi, selection: Selection, window: Window, *, index: int) -> Chosen:
    request = Request(selection.query, window.start, window.end)
    return chosen(
        selection,
        lambda query: logs.series(query, window.start, window.end),
        logs.lines,
        request,
        index=index,
    )


def _report_missing(run: Run, flags: LogFlags, found: Chosen, window: Window) -> None:
    which = "earlier generation" if flags.previous else "generation"
    if not found.instances:
        run.terminal.aside(f"No instance has an {which} in {window.length}; look further back with --since=30d.")
    elif found.missing:
        names = ", ".join(short_name(flags.workload, name) for name in found.missing)
        run.terminal.aside(f"No {which} in {window.length}: {names}")


def _entries(fetch: Fetch, queries: Sequence[str], window: Window) -> Iterator[Sequence[Entry]]:
    """The lines of the window in batches, by time."""
    requests = [Request(query, window.start, window.end) for query in queries]
    if window.tail != ALL:
        lines = chain.from_iterable(newest(fetch, request, window.tail) for request in requests)
        latest = sorted(lines, key=lambda entry: entry.time)
        yield latest[len(latest) - window.tail :] if len(latest) > window.tail else latest
    elif len(requests) == 1:
        yield from oldest_first(fetch, requests[0])
    else:
        streams = [chain.from_iterable(oldest_first(fetch, request)) for request in requests]
        merged = heapq.merge(*streams, key=lambda entry: entry.time)
        while batch := list(islice(merged, LARGEST)):
            yield batch


def _hint(run: Run, flags: LogFlags, subject: Subject, window: Window, *, stored: bool) -> str:
    """What to do when there are no lines. `stored` if lines of what runs no more can be read."""
    if flags.tail == 0:
        return "--tail=0 shows no lines without --follow."
    if subject.workload is not None:
        states = [instance_health(instance).state for instance in subject.instances()]
        if not any(state in _STARTED for state in states):
            return f'No instance of "{subject.name}" has started yet: {run.try_next(f"status {subject.name}")}'
    text = f' with "{flags.search}"' if flags.search else ""
    if not stored:
        return f"No lines{text} in {window.length}; sites know only what instances wrote since they started."
    wider = "30d" if flags.since is not None or flags.current or flags.previous else "7d"
    return f"No lines{text} in {window.length}; look further back with --since={wider}."
