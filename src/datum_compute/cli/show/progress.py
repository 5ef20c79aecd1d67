"""The progress of a rollout, redrawn in place, line by line, or as JSON. Entry points: `Board`, `board_for`."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.answers.health import Block
from datum_compute.answers.places import Place
from datum_compute.answers.rollout import Phase, Progress, Row
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.durations import elapsed
from datum_compute.cli.show.lines import NONE, Column, Piece, Table, aligned, bad, busy, good, text_of
from datum_compute.kube.meta import timestamp

_TITLES = ("PLACEMENT", "CITY", "DESIRED", "UPDATED", "READY", "OLD", "PHASE")
_UNFINISHED_FIRST = (Phase.BLOCKED, Phase.UPDATING, Phase.PENDING, Phase.PAUSED, Phase.DONE)
_TONES = {Phase.DONE: good, Phase.PENDING: busy, Phase.UPDATING: busy, Phase.PAUSED: busy, Phase.BLOCKED: bad}


class Board(Protocol):
    def show(self, rows: Sequence[Row], progress: Progress) -> None:
        """Shows the rows that changed; `progress` has all of them."""
        ...

    def began(self, seconds_ago: float) -> None:
        """Sets when the change was made, if it was made by an earlier command."""
        ...

    def ended(self, end: "End") -> None: ...


class End(Struct, frozen=True):
    """How a wait ended. `seconds` is the time since the change; None if it is not known."""

    complete: bool
    seconds: float | None

    @property
    def sentence(self) -> str:
        return "Rollout complete." if self.seconds is None else f"Rollout complete in {elapsed(self.seconds)}."


def board_for(run: Run) -> Board:
    """The board for people: redrawn in place if possible, else one line per change."""
    return LiveBoard(run) if run.terminal.redraws else LineBoard(run)


class LineBoard:
    """One line per change, for logs."""

    def __init__(self, run: Run) -> None:
        self._terminal = run.terminal
        self._titled = not run.settings.no_headers
        self._widths: list[int] = []

    def began(self, seconds_ago: float) -> None:
        """Lines have no times except at the end."""

    def show(self, rows: Sequence[Row], progress: Progress) -> None:
        if not self._widths:
            # Fixed at the start, so that all rows align with their titles.
            self._widths = _widths(progress)
            self._terminal.note("", *([aligned(_TITLES, self._widths, indent=2)] if self._titled else []))
        for row in rows:
            if row.changed:
                self._terminal.note(aligned(_cells(row), self._widths, indent=2))
            if row.blocked is not None:
                self._terminal.note(*_cause_lines(row))

    def ended(self, end: End) -> None:
        if end.complete:
            self._terminal.note(end.sentence)


class LiveBoard:
    """One row per place, redrawn in a terminal, and below them how many are done and how long it has taken."""

    def __init__(self, run: Run) -> None:
        self._terminal = run.terminal
        self._clock = run.clock
        self._began = run.clock.monotonic()
        self._drawing = run.terminal.drawing()
        self._rows: dict[Place, Row] = {}
        self._order: list[Place] = []

    def began(self, seconds_ago: float) -> None:
        self._began = self._clock.monotonic() - seconds_ago

    def show(self, rows: Sequence[Row], progress: Progress) -> None:
        if not self._rows:
            self._terminal.note("")
        for row in rows:
            before = self._rows.get(row.state.place)
            blocked = row.blocked or (before.blocked if before and row.phase is Phase.BLOCKED else None)
            self._rows[row.state.place] = Row(row.state, row.phase, row.changed, blocked)
        self._order = [row.place for row in progress.rows if row.place in self._rows]
        ordered = [self._rows[place] for place in self._order]
        fitting = _fitting(ordered, self._drawing.room - _LINES_AROUND, self._drawing.columns)
        hidden = f" ({len(ordered) - len(fitting)} not shown)" if len(fitting) < len(ordered) else ""
        done = sum(row.phase is Phase.DONE for row in ordered)
        seconds = self._clock.monotonic() - self._began
        clock = elapsed(seconds) if seconds >= 10 else f"{seconds:.0f}s"
        summary = f"  {done} of {len(ordered)} done, {clock}{hidden}"
        self._drawing.draw(*_table(fitting, self._drawing.columns), "", summary)

    def ended(self, end: End) -> None:
        if end.complete:
            rows = [self._rows[place] for place in self._order]
            if len(rows) + _LINES_AROUND <= self._drawing.room:  # else the summary stays: it counts the hidden rows
                self._drawing.draw(*_table(rows, self._drawing.columns))
        self._drawing.end()
        if end.complete:
            self._terminal.note(end.sentence)


_LINES_AROUND = 3  # titles and summary


def _fitting(rows: Sequence[Row], room: int, columns: int) -> list[Row]:
    """All rows if there is room, else those that are not done first."""

    def lines(row: Row) -> int:
        return 1 + (len(_wrapped(_cause_lines(row), columns)) if row.blocked is not None else 0)

    if sum(map(lines, rows)) <= room:
        return list(rows)
    fitting: list[Row] = []
    causes: set[Block] = set()  # each is shown only once
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
    """One table per row, all with the same widths, so that what blocks a row can be shown below it."""
    cells = [_cells(row) for row in rows]
    widths = [max(len(text_of(line[index])) for line in [_TITLES, *cells]) for index in range(len(_TITLES))]
    widths[-1] = max(len(phase.value) for phase in Phase)
    titled = [
        Column(title, least=width, shrinks=not i) for i, (title, width) in enumerate(zip(_TITLES, widths, strict=True))
    ]
    columns = tuple(Column("", least=column.least, shrinks=column.shrinks) for column in titled)
    content: list[str | Table] = [Table(tuple(titled), (), indent=2)]
    for row, line in zip(rows, cells, strict=True):
        content.append(Table(columns, [line], indent=2))
        if row.blocked is not None:
            content += _wrapped(_cause_lines(row), terminal_columns)
    return content


class JsonBoard:
    """One JSON object per change, and one at the end."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def began(self, seconds_ago: float) -> None:
        """Only the last object has a duration."""

    def show(self, rows: Sequence[Row], progress: Progress) -> None:
        for row in rows:
            numbers, cause = row.state.numbers, row.blocked or (row.state.cause if row.state.is_explained else None)
            self._run.terminal.record(
                {
                    "time": timestamp(self._run.clock.now()),
                    "placement": row.state.place.placement,
                    "city": row.state.place.city,
                    "updated": numbers.updated if row.state.answered else None,
                    "ready": numbers.ready,
                    "old": row.state.old,
                    "desired": numbers.desired,
                    "phase": row.phase.value,
                    "reason": cause.reason if cause else "",
                    "message": cause.message if cause else "",
                }
            )

    def ended(self, end: End) -> None:
        seconds = None if end.seconds is None else round(end.seconds, 1)
        self._run.terminal.record({"complete": end.complete, "elapsedSeconds": seconds})


def _widths(progress: Progress) -> list[int]:
    cells = [_TITLES, *((row.place.placement, row.place.city, "", "", "", "", "") for row in progress.rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(_TITLES))]
    widths[-1] = max(len(phase.value) for phase in Phase)
    return widths


def _cells(row: Row) -> tuple[Piece, ...]:
    """The cells of a row, with a dash for numbers from before the change."""
    state, counted = row.state, row.state.numbers
    updated = str(counted.updated) if state.answered else NONE
    old = NONE if state.old is None else str(state.old)
    numbers = (str(counted.desired), updated, str(counted.ready), old)
    return (state.place.placement, state.place.city, *numbers, _TONES[row.phase](row.phase.value))


def _cause_lines(row: Row) -> list[str]:
    """Why the row is blocked and who can act, what the server says about it, and what to do."""
    state, blocked = row.state, row.blocked
    assert blocked is not None
    lines = (state.sentence, blocked.message, state.advice) if state.sentence else (f"Blocked reason: {blocked}",)
    return [f"    {line}" for line in lines if line]


def _wrapped(lines: Sequence[str], columns: int) -> list[str]:
    """The lines wrapped, with continuations indented."""
    from textwrap import wrap

    return [part for line in lines for part in wrap(line, columns, subsequent_indent="      ")]
