"""Where the rows of a rollout are shown: in place, line by line, or as JSON. Entry points: `Board`, `board_for`."""

from collections.abc import Sequence
from typing import Protocol

from datum_compute.cli.durations import elapsed
from datum_compute.cli.health import Block
from datum_compute.cli.lines import Line, Piece, aligned, bad, busy, good
from datum_compute.cli.rollout import Phase, Picture, Place, Row
from datum_compute.cli.run import Run
from datum_compute.kube.meta import timestamp

_TITLES = ("PLACEMENT", "CITY", "UPDATED", "READY", "OLD", "PHASE")
_TONES = {Phase.DONE: good, Phase.PENDING: busy, Phase.UPDATING: busy, Phase.BLOCKED: bad}


class Board(Protocol):
    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        """What changed, and the whole of it."""
        ...

    def ended(self, *, complete: bool, seconds: float) -> None: ...


def board_for(run: Run) -> Board:
    """For people: in place where that is possible, else a line for each change."""
    return LiveBoard(run) if run.terminal.redraws else LineBoard(run)


class LineBoard:
    """A line for each change, for logs."""

    def __init__(self, run: Run) -> None:
        self._terminal = run.terminal
        self._titled = not run.settings.no_headers
        self._widths: list[int] = []

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

    def ended(self, *, complete: bool, seconds: float) -> None:
        if complete:
            self._terminal.note(f"Rollout complete in {elapsed(seconds)}.")


class LiveBoard:
    """One row for each place, drawn anew in a terminal."""

    def __init__(self, run: Run) -> None:
        self._terminal = run.terminal
        self._titled = not run.settings.no_headers
        self._drawing = run.terminal.drawing()
        self._rows: dict[Place, Row] = {}

    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        if not self._rows:
            self._terminal.note("")
        for row in rows:
            before = self._rows.get(row.seen.place)
            blocked = row.blocked or (before.blocked if before and row.phase is Phase.BLOCKED else None)
            self._rows[row.seen.place] = Row(row.seen, row.phase, row.changed, blocked)
        widths = _widths(seen)
        shown = [self._rows[one.place] for one in seen.rows if one.place in self._rows]
        lines: list[str | Line] = [aligned(_TITLES, widths, indent=2)] if self._titled else []
        for row in shown:
            lines.append(aligned(_cells(row), widths, indent=2))
            if row.blocked is not None:
                lines += _why(row.blocked)
        self._drawing.draw(*lines)

    def ended(self, *, complete: bool, seconds: float) -> None:
        self._drawing.end()
        if complete:
            self._terminal.note(f"Rollout complete in {elapsed(seconds)}.")


class JsonBoard:
    """One JSON object for each change, and one at the end."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def show(self, rows: Sequence[Row], seen: Picture) -> None:
        for row in rows:
            numbers, cause = row.seen.numbers, row.blocked or row.seen.cause
            self._run.terminal.record(
                {
                    "time": timestamp(self._run.clock.now()),
                    "placement": row.seen.place.placement,
                    "city": row.seen.place.city,
                    "updated": numbers.updated,
                    "ready": numbers.ready,
                    "old": row.seen.old,
                    "desired": numbers.desired,
                    "phase": row.phase.value,
                    "reason": cause.reason if cause else "",
                    "message": cause.message if cause else "",
                }
            )

    def ended(self, *, complete: bool, seconds: float) -> None:
        self._run.terminal.record({"complete": complete, "elapsedSeconds": int(seconds)})


def _widths(seen: Picture) -> list[int]:
    cells = [_TITLES, *((row.place.placement, row.place.city, "", "", "", "") for row in seen.rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(_TITLES))]
    widths[-1] = max(len(phase.value) for phase in Phase)
    return widths


def _cells(row: Row) -> tuple[Piece, ...]:
    place, numbers = row.seen.place, row.seen.numbers
    counted = (str(numbers.updated), str(numbers.ready), str(row.seen.old))
    return (place.placement, place.city, *counted, _TONES[row.phase](row.phase.value))


def _why(cause: Block) -> list[str]:
    return [f"    Blocked reason: {cause}", "    The rollout resumes on its own when this clears."]
