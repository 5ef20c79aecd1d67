"""The one place that knows terminals: streams, colour, width, character set and questions. Entry point: `Terminal`."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from msgspec import Struct

from datum_compute.cli.shell.environment import Environment, put
from datum_compute.cli.show.documents import json_text, yaml_text
from datum_compute.cli.show.escapes import visible
from datum_compute.cli.show.lines import NONE, Line, Piece, Span, Table, Tone, View, cut, dim, hints, laid_out, text_of

# For streams that cannot carry them; everything else they lack becomes a question mark.
_PLAIN_SYMBOLS = str.maketrans({"—": "-", "→": "->", "∞": "inf", "…": "...", "’": "'"})

_COLUMNS, _ROWS = 80, 24  # of a terminal that does not tell

STRUCTURED = ("json", "yaml", "name")
_TRIES = 3  # to answer a question with yes or no


class Style(Struct, frozen=True):
    """How the user wants it: `output` a format, `color` auto, always or never."""

    output: str = "table"
    color: str = "auto"
    quiet: bool = False
    headers: bool = True


class Terminal:
    """Results, notes, warnings and questions, each to the stream it belongs to.

    With a structured format stdout carries data only, so that everything said for people goes to stderr.
    """

    def __init__(self, environment: Environment, style: Style) -> None:
        self._out = _Stream(environment.stdout, environment.environ, style.color)
        self._err = _Stream(environment.stderr, environment.environ, style.color)
        self._stdin = environment.stdin
        self._style = style
        self._columns = environment.columns
        self._capable = environment.environ.get("TERM") != "dumb"
        self._people = self._err if style.output in STRUCTURED else self._out
        self._drawing: Drawing | None = None

    @property
    def live(self) -> bool:
        """Whether somebody looks at the output as it comes."""
        return self._out.tty

    @property
    def asks(self) -> bool:
        """Whether there is somebody to ask."""
        return self._stdin.isatty() and self._err.tty

    @property
    def redraws(self) -> bool:
        """Whether what was shown can be replaced by something newer, in its place."""
        return self._people.tty and not self._style.quiet and self._capable

    def drawing(self) -> "Drawing":
        """A place in the terminal, below everything shown so far, for what is shown again and again."""
        self._drawing = Drawing(self._people, self._laid, self._columns)
        return self._drawing

    def show(self, *view: str | Line | Table) -> None:
        """What the command was asked for: kept by --quiet, and data when the format is structured."""
        self._write(self._people, view)

    def note(self, *view: str | Line | Table) -> None:
        """Progress, notes and hints: dropped by --quiet."""
        if not self._style.quiet:
            self._write(self._people, view)

    def hint(self, *view: str) -> None:
        """A note that may be overlooked."""
        self.note(*hints(*view))

    def aside(self, text: str) -> None:
        """A note beside the output of the command, always on stderr."""
        if not self._style.quiet:
            self._write(self._err, (text,))

    def warn(self, text: str) -> None:
        self._write(self._err, (text,))

    def data(self, value: Any, format_: str) -> None:
        """One document of plain values on stdout."""
        ascii_only = not self._out.unicode
        if format_ == "yaml":
            self._out.write(yaml_text(value, ascii_only=ascii_only))
        else:
            self._out.write(json_text(value, indent=2, ascii_only=ascii_only))

    def record(self, value: Any) -> None:
        """One compact JSON object on a line of its own, for output that goes on."""
        self._out.write(json_text(value, indent=0, ascii_only=not self._out.unicode))

    def name(self, text: str) -> None:
        self._out.write(f"{self._out.encodable(visible(text))}\n")

    def confirm(self, question: str, *, default: bool) -> bool:
        """Asks on stderr. Enter is the default; the end of the input is a no.

        Anything but a yes or a no is asked again, because it may have been meant for the shell; three times, then no.
        """
        for _ in range(_TRIES):
            answer = self.ask(question)
            if answer is None:
                return False
            match answer.lower():
                case "":
                    return default
                case "y" | "yes":
                    return True
                case "n" | "no":
                    return False
            self.warn("Answer y or n.")
        return False

    def ask(self, question: str) -> str | None:
        """The answer to a question on stderr, without spaces around it; None at the end of the input."""
        self._err.write(self._err.encodable(visible(question)))
        answer = self._stdin.readline()
        if not answer:
            self._err.write("\n")
            return None
        return answer.strip()

    def _write(self, stream: "_Stream", view: View) -> None:
        if self._drawing is not None:
            self._drawing.leave()
        columns = self._columns if stream.tty else None
        for laid in self._laid(view, columns, stream):
            stream.line(laid.pieces)

    def _laid(self, view: View, columns: int | None, stream: "_Stream") -> list[Line]:
        """With the characters that the stream can carry: replacing them later would move what stands behind them."""
        lines: list[Line] = []
        for item in view:
            if isinstance(item, Table):
                rows = [stream.carried(row) for row in _filled(item)]
                table = Table(item.columns, rows, item.indent)
                lines += laid_out(table, columns=columns, headers=self._style.headers, ellipsis=stream.ellipsis)
            else:
                pieces = item.pieces if isinstance(item, Line) else (item,)
                lines.append(Line(stream.carried(_visible(pieces))))
        return lines


class Drawing:
    """A part of a terminal that is drawn anew in its place. What is too wide or too high for it is cut."""

    def __init__(
        self, stream: "_Stream", laid: Callable[[View, int | None, "_Stream"], list[Line]], columns: int | None
    ) -> None:
        self._stream = stream
        self._laid = laid
        self._columns = columns
        self._drawn: list[str] = []
        self._widths: list[int] = []  # of the lines on the screen

    @property
    def room(self) -> int:
        """How many lines there are, as large as the window is now."""
        _, rows = self._stream.size(self._columns)
        return max(rows - 1, 1)  # the cursor stands on the line below

    @property
    def columns(self) -> int:
        return self._stream.size(self._columns)[0]

    def draw(self, *view: str | Line | Table) -> None:
        columns = self.columns
        lines = self._laid(view, columns, self._stream)
        room = self.room
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], Line((dim(f"{self._stream.ellipsis} and {hidden} more lines"),))]
        lines = [cut(line, columns, self._stream.ellipsis) for line in lines]
        texts = [self._stream.text(line) for line in lines]
        if texts == self._drawn:
            return
        self._stream.write(self._erased(columns) + "".join(f"{text}\n" for text in texts))
        self._drawn = texts
        self._widths = [sum(len(text_of(piece)) for piece in line.pieces) for line in lines]

    def leave(self) -> None:
        """Something else is written below: what was drawn stays as it is, and the next begins after that."""
        self._drawn, self._widths = [], []

    def end(self) -> None:
        """Whatever comes now stands below; what was typed meanwhile, a Ctrl-C for one, is wiped away."""
        self._stream.write("\r\x1b[J")

    def _erased(self, columns: int) -> str:
        """Back to where the drawing began. A window made narrower has broken its lines into several."""
        rows = sum(max(-(-width // columns), 1) for width in self._widths)
        return f"\r\x1b[{rows}A\x1b[J" if rows else "\r\x1b[J"


class _Stream:
    def __init__(self, stream: TextIO, environ: Mapping[str, str], color: str) -> None:
        self._stream = stream
        self.tty = stream.isatty()
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
        self._encoding = encoding
        self.unicode = encoding.replace("-", "").replace("_", "").startswith("utf")
        self.ellipsis = "…" if self.unicode else "..."
        self._color = _wants_color(color, environ, tty=self.tty)

    def line(self, pieces: tuple[Piece, ...]) -> None:
        self.write(f"{self.text(Line(pieces))}\n")

    def text(self, line: Line) -> str:
        return self.encodable("".join(self._colored(piece) for piece in _trimmed(line.pieces)))

    def size(self, columns: int | None) -> tuple[int, int]:
        """Columns and rows as they are now: whoever looks may make the window larger or smaller."""
        try:
            now = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return columns or _COLUMNS, _ROWS
        return now.columns or columns or _COLUMNS, now.lines or _ROWS

    def write(self, text: str) -> None:
        put(self._stream, text)

    def encodable(self, text: str) -> str:
        if self.unicode:
            return text
        plain = text.translate(_PLAIN_SYMBOLS)
        return plain.encode(self._encoding, "replace").decode(self._encoding)

    def carried(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """The same in characters that the stream can carry."""
        if self.unicode:
            return pieces
        return tuple(
            Span(self.encodable(piece.text), piece.tone) if isinstance(piece, Span) else self.encodable(piece)
            for piece in pieces
        )

    def _colored(self, piece: Piece) -> str:
        if isinstance(piece, str) or not self._color or piece.tone is Tone.PLAIN or not piece.text:
            return text_of(piece)
        return f"\x1b[{piece.tone.value}m{piece.text}\x1b[0m"


def _wants_color(flag: str, environ: Mapping[str, str], *, tty: bool) -> bool:
    """The flag wins over the environment, NO_COLOR over CLICOLOR_FORCE."""
    if flag != "auto":
        return flag == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return tty and environ.get("TERM") != "dumb"


def _trimmed(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Without spaces at the end of the line."""
    kept = list(pieces)
    while kept and isinstance(last := kept[-1], str):
        kept.pop()
        if last.rstrip():
            kept.append(last.rstrip())
            break
    return tuple(kept)


def _visible(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Before anything is measured or coloured: whatever still moves the cursor afterwards is our own."""
    return tuple(
        Span(visible(piece.text), piece.tone) if isinstance(piece, Span) else visible(piece) for piece in pieces
    )


def _filled(table: Table) -> list[tuple[Piece, ...]]:
    """The rows. A cell that has nothing to say still says so; columns without a title may stay empty."""
    return [
        tuple(NONE if not text_of(cell) and table.columns[index].title else cell for index, cell in enumerate(row))
        for row in map(_visible, table.rows)
    ]
