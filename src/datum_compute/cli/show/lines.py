"""What commands show, as values: spans, lines and tables. Entry points: `Content`, `table`.

Nothing here depends on a terminal; `terminal` turns content into characters.
"""

from collections.abc import Iterable, Sequence
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
    """Pieces of text side by side; trailing spaces are not printed."""

    pieces: tuple[Piece, ...]


def line(*pieces: Piece) -> Line:
    return Line(pieces)


def hints(*texts: str) -> list[Line]:
    """Dimmed lines, which are easily overlooked."""
    return [Line((dim(text),)) for text in texts]


class Column(Struct, frozen=True):
    """A column, and how it adapts to a terminal that is too narrow for the table.

    `shrinks`: its cells are truncated, in the middle, or at the end if they are `prose`. `wraps`: the text continues in
    the row below; only the last column can do this. `left_out`: columns with a number may be replaced by an ellipsis,
    the highest number first. `least` is the minimum width where there is room.
    """

    title: str
    shrinks: bool = False
    wraps: bool = False
    prose: bool = False
    left_out: int = 0
    least: int = 0


class Table(Struct, frozen=True):
    """Columns three spaces apart. A row may end early; an empty cell shows a dash."""

    columns: tuple[Column, ...]
    rows: Sequence[tuple[Piece, ...]]
    indent: int = 0


def table(columns: Iterable[str | Column], rows: Iterable[tuple[Piece, ...]], indent: int = 0) -> Table:
    """A table of columns, of which plain ones are given by their titles."""
    titled = tuple(Column(column) if isinstance(column, str) else column for column in columns)
    return Table(titled, list(rows), indent)


Item = str | Line | Table
Content = Sequence[Item]

_GAP = 3
_COMFORTABLE = 20  # how far columns shrink before the gaps between them do
_NARROW, _NARROWEST = 8, 6
_ROOM_TO_WRAP = 20
_BREAKS = "/:@"  # what separates the parts of an image


def text_of(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.text


def laid_out(table: Table, *, columns: int | None, headers: bool, ellipsis: str) -> list[Line]:
    """The lines of a table; `columns` is the width of the terminal, None for unlimited."""
    if columns is not None:
        table = _wrapped(_without_columns(table, columns, headers=headers, ellipsis=ellipsis), columns, headers=headers)
    widths, gap = _widths(table, headers=headers), _GAP
    if columns is not None:
        widths, gap = _fitted(table, widths, columns)
    titles = tuple(column.title for column in table.columns)
    rows = [_cut_cells(row, table, widths, ellipsis) for row in table.rows]
    if headers and any(titles):
        rows.insert(0, tuple(_middle(title, width, ellipsis) for title, width in zip(titles, widths, strict=True)))
    return [aligned(row, widths, table.indent, gap) for row in rows]


def cut(line: Line, columns: int, ellipsis: str) -> Line:
    """A line truncated to so many columns, with an ellipsis at its end."""
    if sum(len(text_of(piece)) for piece in line.pieces) <= columns:
        return line
    room = max(columns - len(ellipsis), 0)
    pieces: list[Piece] = []
    for piece in line.pieces:
        text = text_of(piece)[:room]
        room -= len(text)
        pieces.append(Span(text, piece.tone) if isinstance(piece, Span) else text)
    return Line((*pieces, ellipsis[:columns]))


def _without_columns(table: Table, columns: int, *, headers: bool, ellipsis: str) -> Table:
    """The table without as many optional columns as it takes to fit; one ellipsis stands for adjacent ones."""
    placeholder = Column(ellipsis, least=len(ellipsis))
    reduced = table
    for number in sorted({column.left_out for column in table.columns if column.left_out}, reverse=True):
        widths = _widths(reduced, headers=headers)
        if reduced.indent + sum(widths) + len(widths) - 1 <= columns:
            break
        hidden = {index for index, column in enumerate(table.columns) if column.left_out >= number}
        indexes = [index for index in range(len(table.columns)) if index not in hidden or index - 1 not in hidden]
        reduced = Table(
            tuple(placeholder if index in hidden else table.columns[index] for index in indexes),
            [
                tuple(ellipsis if index in hidden else row[index] for index in indexes if index < len(row))
                for row in table.rows
            ],
            table.indent,
        )
    return reduced


def _wrapped(table: Table, columns: int, *, headers: bool) -> Table:
    """The table with the text of its last column broken into several rows, if there is enough room for that."""
    *before, _ = _widths(table, headers=headers)
    room = columns - table.indent - sum(before) - _GAP * len(before)
    if not table.columns[-1].wraps or room < _ROOM_TO_WRAP:
        return table
    from textwrap import wrap

    rows: list[tuple[Piece, ...]] = []
    for row in table.rows:
        text = text_of(row[-1]) if len(row) == len(table.columns) else ""
        first, *more = wrap(text, room, break_on_hyphens=False) or [""]  # names have hyphens
        rows.append((*row[:-1], first) if first else row)
        rows += [(*[""] * len(before), text) for text in more]
    return Table(table.columns, rows, table.indent)


def _widths(table: Table, *, headers: bool) -> list[int]:
    widths = [max(column.least, len(column.title) if headers else 0) for column in table.columns]
    for row in table.rows:
        for index, cell in enumerate(row):
            widths[index] = max(widths[index], len(text_of(cell)))
    return widths


def _fitted(table: Table, widths: list[int], columns: int) -> tuple[list[int], int]:
    """Widths and gap that fit: cells shrink a little first, then gaps, then cells again. A table that is still too wide
    is left to the terminal."""
    widths, gap = list(widths), _GAP

    def excess() -> int:
        return table.indent + sum(widths) + gap * (len(widths) - 1) - columns

    def shrink(least: int, *, whole_titles: bool) -> None:
        while excess() > 0:
            candidates = [
                index
                for index, column in enumerate(table.columns)
                if column.shrinks and widths[index] > max(least, len(column.title) if whole_titles else 0)
            ]
            if not candidates:
                return
            widths[max(candidates, key=lambda index: widths[index])] -= 1

    shrink(_COMFORTABLE, whole_titles=True)
    while excess() > 0 and gap > 1:
        gap -= 1
    shrink(_NARROW, whole_titles=True)
    shrink(_NARROWEST, whole_titles=False)
    return widths, gap if excess() <= 0 else _GAP


def _cut_cells(row: Sequence[Piece], table: Table, widths: Sequence[int], ellipsis: str) -> tuple[Piece, ...]:
    cells: list[Piece] = []
    for index, cell in enumerate(row):
        text, width = text_of(cell), widths[index]
        if len(text) > width:
            if table.columns[index].prose:
                text = text[: max(width - len(ellipsis), 0)] + ellipsis
            else:
                same = same_beginning([text_of(other[index]) for other in table.rows if index < len(other)])
                text = _middle(text, width, ellipsis, same)
        cells.append(Span(text, cell.tone) if isinstance(cell, Span) else text)
    return tuple(cells)


def same_beginning(texts: Sequence[str]) -> int:
    """Length of the prefix that all texts share, up to the last separator of parts; 0 when they are all equal."""
    low, high = min(texts), max(texts)
    shared = next((index for index, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    if low == high:
        return 0
    return max(low.rfind(sign, 0, shared) for sign in _BREAKS) + 1


def _middle(text: str, width: int, ellipsis: str, same: int = 0) -> str:
    """A text shortened to this width in its middle; first in the prefix that all cells share, so that they still
    differ."""
    room = width - len(ellipsis)
    if len(text) <= width or room < 1:
        return text[:width]
    left_out = len(text) - room
    if left_out < same:
        remaining = same - left_out
        return text[: remaining // 2] + ellipsis + text[same - (remaining - remaining // 2) :]
    if same and width >= _NARROW:
        return ellipsis + _middle(text[same:], room, ellipsis)
    return text[: room // 2] + ellipsis + text[len(text) - (room - room // 2) :]


def aligned(row: Sequence[Piece], widths: Sequence[int], indent: int, gap: int = _GAP) -> Line:
    """One row of a table with these widths; the last cell is not padded."""
    pieces: list[Piece] = [" " * indent]
    for index, cell in enumerate(row):
        pieces.append(cell)
        if index < len(row) - 1:
            pieces.append(" " * (widths[index] - len(text_of(cell)) + gap))
    return Line(tuple(pieces))
