"""Output to streams and terminals: colour, width, character set, and questions to the user. Entry point: `Terminal`."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from msgspec import Struct

from datum_compute.cli.shell.environment import Environment, put
from datum_compute.cli.show.documents import json_text, yaml_text
from datum_compute.cli.show.echo import Echo
from datum_compute.cli.show.escapes import visible
from datum_compute.cli.show.lines import (
    NONE,
    Content,
    Item,
    Line,
    Piece,
    Span,
    Table,
    Tone,
    cut,
    dim,
    hints,
    laid_out,
    text_of,
)

# Replacements for streams without Unicode, where every other character becomes a question mark.
_ASCII_SYMBOLS = str.maketrans({"—": "-", "→": "->", "∞": "inf", "…": "...", "’": "'", "✓": "ok", "✗": "NO", "·": "."})

_COLUMNS, _ROWS = 80, 24  # of a terminal whose size is not known

STRUCTURED = ("json", "yaml", "name")
_TRIES = 3  # for a yes or a no


class Style(Struct, frozen=True):
    """How the user wants the output: `output` is a format, `color` auto, always or never."""

    output: str = "table"
    color: str = "auto"
    quiet: bool = False
    headers: bool = True


class Terminal:
    """Results, notes, warnings and questions, each on its stream.

    With a structured format stdout carries data only, and all text for people goes to stderr.
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
    def structured(self) -> bool:
        """Whether stdout carries data for programs."""
        return self._style.output in STRUCTURED

    @property
    def live(self) -> bool:
        """Whether stdout is a terminal."""
        return self._out.tty

    @property
    def coloured(self) -> bool:
        """Whether stdout is in colour."""
        return self._out.coloured

    @property
    def asks(self) -> bool:
        """Whether there is somebody to ask."""
        return self._stdin.isatty() and self._err.tty

    @property
    def redraws(self) -> bool:
        """Whether content can be replaced in place by newer content."""
        return self._people.tty and not self._style.quiet and self._capable

    def drawing(self) -> "Drawing":
        """An area below everything shown so far, whose content can be replaced."""
        self._drawing = Drawing(self._people, self._laid_out, self._columns)
        return self._drawing

    def show(self, *content: Item) -> None:
        """Shows a result, also with --quiet."""
        self._write(self._people, content)

    def note(self, *content: Item) -> None:
        """Shows progress, notes and hints, but not with --quiet."""
        if not self._style.quiet:
            self._write(self._people, content)

    def hint(self, *texts: str) -> None:
        """Shows a dimmed note."""
        self.note(*hints(*texts))

    def aside(self, text: str) -> None:
        """Shows a note on stderr, whatever the format."""
        if not self._style.quiet:
            self._write(self._err, (text,))

    def warn(self, text: str) -> None:
        self._write(self._err, (text,))

    def data(self, value: Any, format_: str) -> None:
        """Writes one document to stdout."""
        ascii_only = not self._out.unicode
        if format_ == "yaml":
            self._out.write(yaml_text(value, ascii_only=ascii_only))
        else:
            self._out.write(json_text(value, indent=2, ascii_only=ascii_only))

    def record(self, value: Any) -> None:
        """Writes one compact JSON object on a line of its own, for a stream of objects."""
        self._out.write(json_text(value, indent=0, ascii_only=not self._out.unicode))

    def name(self, text: str) -> None:
        """Writes a line for programs: whole, as far as the stream can encode it."""
        self._out.write(f"{self._out.encoded(visible(text))}\n")

    def lines(self, text: str) -> None:
        """Writes whole lines to stdout as they are, as far as the stream can encode them."""
        if text:
            self._out.write(self._out.encoded(text))

    def check_reader(self) -> None:
        """Raises `BrokenPipeError` if nobody reads stdout any more, which else only a write would show."""
        if self._out.abandoned:
            raise BrokenPipeError

    def confirm(self, question: str, *, default: bool) -> bool:
        """Asks on stderr. Enter chooses the default; the end of the input is a no.

        After anything but a yes or a no, which may have been typed ahead for the shell, it asks again, three times.
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
        """Asks on stderr and returns the stripped answer, or None at the end of the input."""
        self._err.write(self._err.encodable(visible(question)))
        answer = self._stdin.readline()
        if not answer:
            self._err.write("\n")
            return None
        return answer.strip()

    def _write(self, stream: "_Stream", content: Content) -> None:
        if self._drawing is not None:
            self._drawing.leave()
        columns = self._columns if stream.tty else None
        for line in self._laid_out(content, columns, stream):
            stream.line(line.pieces)

    def _laid_out(self, content: Content, columns: int | None, stream: "_Stream") -> list[Line]:
        """The lines in the character set of the stream: replacing characters later would break the alignment."""
        lines: list[Line] = []
        for item in content:
            if isinstance(item, Table):
                rows = [stream.encodable_pieces(row) for row in _filled(item)]
                table = Table(item.columns, rows, item.indent)
                lines += laid_out(table, columns=columns, headers=self._style.headers, ellipsis=stream.ellipsis)
            else:
                pieces = item.pieces if isinstance(item, Line) else (item,)
                lines.append(Line(stream.encodable_pieces(_visible(pieces))))
        return lines


class Drawing:
    """An area of a terminal that is redrawn in place. Content that is too wide or too high is truncated."""

    def __init__(
        self, stream: "_Stream", layout: Callable[[Content, int | None, "_Stream"], list[Line]], columns: int | None
    ) -> None:
        self._stream = stream
        self._layout = layout
        self._columns = columns
        self._drawn: list[str] = []
        self._widths: list[int] = []  # of the lines on the screen

    @property
    def room(self) -> int:
        """The number of lines that fit into the window now."""
        _, rows = self._stream.size(self._columns)
        return max(rows - 1, 1)  # the cursor is on the line below

    @property
    def columns(self) -> int:
        return self._stream.size(self._columns)[0]

    def draw(self, *content: Item) -> None:
        columns = self.columns
        lines = self._layout(content, columns, self._stream)
        room = self.room
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], Line((dim(f"{self._stream.ellipsis} and {hidden} more lines"),))]
        lines = [cut(line, columns, self._stream.ellipsis) for line in lines]
        texts = [self._stream.text(line) for line in lines]
        if texts == self._drawn:
            return
        self._stream.echo.off()
        self._stream.write(self._erased(columns) + "".join(f"{text}\n" for text in texts))
        self._drawn = texts
        self._widths = [sum(len(text_of(piece)) for piece in line.pieces) for line in lines]

    def leave(self) -> None:
        """Leaves the drawing as it is, because something else is written below; the next one starts after that."""
        self._drawn, self._widths = [], []

    def end(self) -> None:
        """Ends the drawing, and erases what was echoed in spite of it."""
        self._stream.write("\r\x1b[J")
        self._stream.echo.restore()

    def _erased(self, columns: int) -> str:
        """The escape sequence that erases the drawing. In a window that became narrower its lines are wrapped."""
        rows = sum(max(-(-width // columns), 1) for width in self._widths)
        return f"\r\x1b[{rows}A\x1b[J" if rows else "\r\x1b[J"


class _Stream:
    def __init__(self, stream: TextIO, environ: Mapping[str, str], color: str) -> None:
        self._stream = stream
        self.tty = stream.isatty()
        self.echo = Echo(stream)
        self._encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
        self._charset = "ascii" if _is_c_locale(environ) else self._encoding
        self.unicode = _is_unicode(self._charset)
        self.ellipsis = "…" if self.unicode else "..."
        self.coloured = _wants_color(color, environ, tty=self.tty)

    def line(self, pieces: tuple[Piece, ...]) -> None:
        self.write(f"{self.text(Line(pieces))}\n")

    def text(self, line: Line) -> str:
        return self.encodable("".join(self._colored(piece) for piece in _trimmed(line.pieces)))

    def size(self, columns: int | None) -> tuple[int, int]:
        """The current columns and rows of the window, which may change at any time."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return columns or _COLUMNS, _ROWS
        return size.columns or columns or _COLUMNS, size.lines or _ROWS

    @property
    def abandoned(self) -> bool:
        """Whether it is a pipe that nobody reads any more."""
        import select

        try:
            number = self._stream.fileno()
        except (OSError, ValueError):  # not a file
            return False
        poll = select.poll()
        poll.register(number, 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))

    def write(self, text: str) -> None:
        put(self._stream, text)

    def encodable(self, text: str) -> str:
        return _in_charset(text, self._charset)

    def encoded(self, text: str) -> str:
        """The text for programs, whose locale says nothing about what they can read."""
        return _in_charset(text, self._encoding)

    def encodable_pieces(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return pieces if self.unicode else _mapped(self.encodable, pieces)

    def _colored(self, piece: Piece) -> str:
        if isinstance(piece, str) or not self.coloured or piece.tone is Tone.PLAIN or not piece.text:
            return text_of(piece)
        return f"\x1b[{piece.tone.value}m{piece.text}\x1b[0m"


def _is_unicode(charset: str) -> bool:
    return charset.replace("-", "").replace("_", "").startswith("utf")


def _in_charset(text: str, charset: str) -> str:
    if _is_unicode(charset):
        return text
    return text.translate(_ASCII_SYMBOLS).encode(charset, "replace").decode(charset)


def _is_c_locale(environ: Mapping[str, str]) -> bool:
    """Whether the locale promises nothing but ASCII: Python then makes its streams UTF-8 all the same.

    Without LC_ALL, Python also sets LC_CTYPE to C.UTF-8 before we see it, unless PYTHONCOERCECLOCALE=0 forbids that.
    """
    names = (environ.get(variable) for variable in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, names), "") in ("C", "POSIX")


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
    """The pieces without trailing spaces."""
    trimmed = list(pieces)
    while trimmed and isinstance(last := trimmed[-1], str):
        trimmed.pop()
        if last.rstrip():
            trimmed.append(last.rstrip())
            break
    return tuple(trimmed)


def _visible(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Escapes control characters before anything is measured or coloured: those that follow are our own."""
    return _mapped(visible, pieces)


def _mapped(change: Callable[[str], str], pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    return tuple(Span(change(piece.text), piece.tone) if isinstance(piece, Span) else change(piece) for piece in pieces)


def _filled(table: Table) -> list[tuple[Piece, ...]]:
    """The rows with a dash in empty cells, except in columns without a title."""
    return [
        tuple(NONE if not text_of(cell) and table.columns[index].title else cell for index, cell in enumerate(row))
        for row in map(_visible, table.rows)
    ]
