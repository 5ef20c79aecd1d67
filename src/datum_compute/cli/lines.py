"""What commands show, as values: spans, lines and tables. Entry points: `View`, `Table`, `good`, `busy`, `bad`, `dim`.

Nothing here knows a terminal; `terminal` turns a view into characters.
"""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

NONE = "—"  # an empty cell


class Tone(Enum):
    PLAIN = ""
    GOOD = "32"
    BUSY = "33"
    BAD = "31"
    DIM = "2"


class Span(Struct, frozen=True):
    text: str
    tone: Tone = Tone.PLAIN


def good(text: str) -> Span:
    return Span(text, Tone.GOOD)


def busy(text: str) -> Span:
    return Span(text, Tone.BUSY)


def bad(text: str) -> Span:
    return Span(text, Tone.BAD)


def dim(text: str) -> Span:
    return Span(text, Tone.DIM)


Piece = str | Span


class Line(Struct, frozen=True):
    """Pieces one after the other; spaces at the end are not printed."""

    pieces: tuple[Piece, ...]


def line(*pieces: Piece) -> Line:
    return Line(pieces)


def hints(*texts: str) -> list[Line]:
    """Lines that may be overlooked."""
    return [Line((dim(text),)) for text in texts]


class Column(Struct, frozen=True):
    """On a terminal too narrow for the table a column that `shrinks` is cut, and the last one, if it `wraps`, goes on
    below. `least`: never narrower than this."""

    title: str
    shrinks: bool = False
    wraps: bool = False
    least: int = 0


class Table(Struct, frozen=True):
    """Columns three spaces apart. A row may end early; a cell without text shows a dash."""

    columns: tuple[Column, ...]
    rows: Sequence[tuple[Piece, ...]]
    indent: int = 0


View = Sequence[str | Line | Table]

_GAP = 3
_NARROWEST = 8  # of a column that shrinks
_ROOM_TO_WRAP = 20


def text_of(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.text


def laid_out(table: Table, *, columns: int | None, headers: bool, ellipsis: str) -> list[Line]:
    """The lines of a table; `columns` is the room there is, None for any."""
    if columns is not None:
        table = _wrapped(table, columns, headers=headers)
    widths = _widths(table, headers=headers)
    if columns is not None:
        widths = _narrowed(table, widths, columns)
    titles = tuple(column.title for column in table.columns)
    rows = ([titles] if headers and any(titles) else []) + list(table.rows)
    return [aligned(row, widths, table.indent, ellipsis) for row in rows]


def cut(line: Line, columns: int) -> Line:
    """What of a line fits into so many columns."""
    pieces: list[Piece] = []
    for piece in line.pieces:
        text = text_of(piece)[:columns]
        columns -= len(text)
        pieces.append(Span(text, piece.tone) if isinstance(piece, Span) else text)
    return Line(tuple(pieces))


def _wrapped(table: Table, columns: int, *, headers: bool) -> Table:
    """The text of the last column in several rows, when it has a room worth the name."""
    *before, _ = _widths(table, headers=headers)
    room = columns - table.indent - sum(before) - _GAP * len(before)
    if not table.columns[-1].wraps or room < _ROOM_TO_WRAP:
        return table
    from textwrap import wrap

    rows: list[tuple[Piece, ...]] = []
    for row in table.rows:
        first, *more = wrap(text_of(row[-1]), room) if len(row) == len(table.columns) else [""]
        rows.append((*row[:-1], first) if first else row)
        rows += [(*[""] * len(before), text) for text in more]
    return Table(table.columns, rows, table.indent)


def _widths(table: Table, *, headers: bool) -> list[int]:
    widths = [max(column.least, len(column.title) if headers else 0) for column in table.columns]
    for row in table.rows:
        for index, cell in enumerate(row):
            widths[index] = max(widths[index], len(text_of(cell)))
    return widths


def _narrowed(table: Table, widths: list[int], columns: int) -> list[int]:
    """Takes what is too much from the widest column that shrinks, again and again; names are never cut."""
    widths = list(widths)
    excess = table.indent + sum(widths) + _GAP * (len(widths) - 1) - columns
    while excess > 0:
        candidates = [
            index
            for index, column in enumerate(table.columns)
            if column.shrinks and widths[index] > max(_NARROWEST, len(column.title))
        ]
        if not candidates:
            break
        widest = max(candidates, key=lambda index: widths[index])
        widths[widest] -= 1
        excess -= 1
    return widths


def aligned(row: Sequence[Piece], widths: Sequence[int], indent: int, ellipsis: str = "…") -> Line:
    """One row of a table whose widths are known; the last cell is not padded, and what does not fit is cut."""
    pieces: list[Piece] = [" " * indent]
    for index, cell in enumerate(row):
        width = widths[index]
        text = text_of(cell)
        if len(text) > width:
            text = text[: width - len(ellipsis)] + ellipsis
        pieces.append(Span(text, cell.tone) if isinstance(cell, Span) else text)
        if index < len(row) - 1:
            pieces.append(" " * (width - len(text) + _GAP))
    return Line(tuple(pieces))
