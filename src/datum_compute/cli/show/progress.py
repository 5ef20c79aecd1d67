"""Where the rows of a rollout are shown: in place, line by line, or as JSON. Entry points: `Board`, `board_for`."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.health import Block
from datum_compute.answers.places import Place
from datum_compute.answers.rollout import Phase, Picture, Row
from datum_compute.api.reasons import Acts, explain
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.durations import elapsed
from datum_compute.cli.show.lines import NONE, Column, Piece, Table, aligned, bad, busy, good, text_of
from datum_compute.kube.meta import timestamp

_TITLES = ("PLACEMENT", "CITY", "DESIRED", "UPDATED", "READY", "OLD", "PHASE")
_UNFINISHED_FIRST = (Phase.BLOCKED, Phase.UPDATING, Phase.PENDING, Phase.PAUSED, Phase.DONE)
_TONES = {Phase.DONE: good, Phase.PENDING: busy, Phase.UPDATING: busy, Phase.PAUSED: busy, Phase.BLOCKED: bad}


class Board(Protocol):
    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        """What changed, and the whole of it."""
        ...

    def began(self, seconds_ago: float) -> None:
        """When the change was made that is watched, where that is known."""
        ...

    def ended(self, end: "End") -> None: ...


class End(Struct, frozen=True):
    """How a wait ended. `seconds` is the time since the change; None when nobody knows how long it took."""

    complete: bool
    seconds: float | None

    @property
    def sentence(self) -> str:
        return "Rollout complete." if self.seconds is None else f"Rollout complete in {elapsed(self.seconds)}."


def board_for(run: Run) -> Board:
    """For people: in place where that is possible, else a line for each change."""
    return LiveBoard(run) if run.terminal.redraws else LineBoard(run)


class LineBoard:
    """A line for each change, for logs."""

    def __init__(self, run: Run) -> None:
        self._terminal = run.terminal
        self._titled = not run.settings.no_headers
        self._widths: list[int] = []

    def began(self, seconds_ago: float) -> None:
        """Times stand in its lines only at the end."""

    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        if not self._widths:
            # Fixed at the start, so that every later row stands under its title.
            self._widths = _widths(seen)
            self._terminal.note("", *([aligned(_TITLES, self._widths, indent=2)] if self._titled else []))
        for row in rows:
            if row.changed:
                self._terminal.note(aligned(_cells(row), self._widths, indent=2))
            if row.blocked is not None:
                self._terminal.note(*_why(row.blocked))

    def ended(self, end: End) -> None:
        if end.complete:
            self._terminal.note(end.sentence)


class LiveBoard:
    """One row for each place, drawn anew in a terminal, and below them how many are done and how long it takes."""

    def __init__(self, run: Run) -> None:
        self._terminal = run.terminal
        self._clock = run.clock
        self._began = run.clock.monotonic()
        self._drawing = run.terminal.drawing()
        self._rows: dict[Place, Row] = {}
        self._order: list[Place] = []

    def began(self, seconds_ago: float) -> None:
        self._began = self._clock.monotonic() - seconds_ago

    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        if not self._rows:
            self._terminal.note("")
        for row in rows:
            before = self._rows.get(row.seen.place)
            blocked = row.blocked or (before.blocked if before and row.phase is Phase.BLOCKED else None)
            self._rows[row.seen.place] = Row(row.seen, row.phase, row.changed, blocked)
        self._order = [one.place for one in seen.rows if one.place in self._rows]
        shown = [self._rows[place] for place in self._order]
        fitting = _fitting(shown, self._drawing.room - _LINES_AROUND, self._drawing.columns)
        hidden = f" ({len(shown) - len(fitting)} not shown)" if len(fitting) < len(shown) else ""
        done = sum(row.phase is Phase.DONE for row in shown)
        seconds = self._clock.monotonic() - self._began
        clock = elapsed(seconds) if seconds >= 10 else f"{seconds:.0f}s"
        counted = f"  {done} of {len(shown)} done, {clock}{hidden}"
        self._drawing.draw(*_table(fitting, self._drawing.columns), "", counted)

    def ended(self, end: End) -> None:
        if end.complete:
            shown = [self._rows[place] for place in self._order]
            if len(shown) + _LINES_AROUND <= self._drawing.room:  # what is counted stays where it says what is hidden
                self._drawing.draw(*_table(shown, self._drawing.columns))
        self._drawing.end()
        if end.complete:
            self._terminal.note(end.sentence)


_LINES_AROUND = 3  # titles, and what is counted


def _fitting(rows: Sequence[Row], room: int, columns: int) -> list[Row]:
    """All of them where there is room; else those that matter most, what is not done first."""

    def lines(row: Row) -> int:
        return 1 + (len(_wrapped(_why(row.blocked), columns)) if row.blocked is not None else 0)

    if sum(map(lines, rows)) <= room:
        return list(rows)
    fitting: list[Row] = []
    causes: set[Block] = set()  # each is told once, where room is scarce
    for row in sorted(rows, key=lambda row: _UNFINISHED_FIRST.index(row.phase)):
        if row.blocked in causes:
            row = replace(row, blocked=None)
        room -= lines(row)
        if room < 0:
            break
        fitting.append(row)
        if row.blocked is not None:
            causes.add(row.blocked)
    return fitting


def _table(rows: Sequence[Row], terminal_columns: int) -> list[str | Table]:
    """A table for each row, all of the same widths, so that what blocks one can stand below it."""
    cells = [_cells(row) for row in rows]
    widths = [max(len(text_of(one[index])) for one in [_TITLES, *cells]) for index in range(len(_TITLES))]
    widths[-1] = max(len(phase.value) for phase in Phase)
    titled = [
        Column(title, least=width, shrinks=not i) for i, (title, width) in enumerate(zip(_TITLES, widths, strict=True))
    ]
    columns = tuple(Column("", least=column.least, shrinks=column.shrinks) for column in titled)
    view: list[str | Table] = [Table(tuple(titled), (), indent=2)]
    for row, one in zip(rows, cells, strict=True):
        view.append(Table(columns, [one], indent=2))
        if row.blocked is not None:
            view += _wrapped(_why(row.blocked), terminal_columns)
    return view


class JsonBoard:
    """One JSON object for each change, and one at the end."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def began(self, seconds_ago: float) -> None:
        """Times stand in its lines only at the end."""

    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        for row in rows:
            numbers, cause = row.seen.numbers, row.blocked or (row.seen.cause if row.seen.is_explained else None)
            self._run.terminal.record(
                {
                    "time": timestamp(self._run.clock.now()),
                    "placement": row.seen.place.placement,
                    "city": row.seen.place.city,
                    "updated": numbers.updated if row.seen.answered else None,
                    "ready": numbers.ready,
                    "old": row.seen.old,
                    "desired": numbers.desired,
                    "phase": row.phase.value,
                    "reason": cause.reason if cause else "",
                    "message": cause.message if cause else "",
                }
            )

    def ended(self, end: End) -> None:
        seconds = None if end.seconds is None else round(end.seconds, 1)
        self._run.terminal.record({"complete": end.complete, "elapsedSeconds": seconds})


def _widths(seen: Picture) -> list[int]:
    cells = [_TITLES, *((row.place.placement, row.place.city, "", "", "", "", "") for row in seen.rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(_TITLES))]
    widths[-1] = max(len(phase.value) for phase in Phase)
    return widths


def _cells(row: Row) -> tuple[Piece, ...]:
    """A dash where a number would tell of the time before the change."""
    seen, counted = row.seen, row.seen.numbers
    updated = str(counted.updated) if seen.answered else NONE
    old = NONE if seen.old is None else str(seen.old)
    numbers = (str(counted.desired), updated, str(counted.ready), old)
    return (seen.place.placement, seen.place.city, *numbers, _TONES[row.phase](row.phase.value))


def _why(cause: Block) -> list[str]:
    """The cause, and who can act on it; what clears by itself is not anybody's to do."""
    explained = explain(cause.reason)
    match explained.acts:
        case Acts.YOU | Acts.PLATFORM:
            follows = explained.line
        case Acts.WAIT | Acts.STALLED | Acts.POINTER:
            follows = "The rollout resumes on its own when this clears."
        case _:
            follows = ""
    return [f"    Blocked reason: {cause}", *([f"    {follows}"] if follows else [])]


def _wrapped(lines: Sequence[str], columns: int) -> list[str]:
    """What does not fit goes on below, a little further in."""
    from textwrap import wrap

    return [part for line in lines for part in wrap(line, columns, subsequent_indent="      ")]
