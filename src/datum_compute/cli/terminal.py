"""The one place that knows terminals: streams, colour, width, character set and questions. Entry point: `Terminal`."""

from collections.abc import Mapping
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from datum_compute.cli.lines import NONE, Line, Piece, Table, Tone, View, dim, laid_out, text_of
from datum_compute.cli.surroundings import Surroundings

# For streams that cannot carry them; everything else they lack becomes a question mark.
_PLAIN_SYMBOLS = str.maketrans({"—": "-", "→": "->", "∞": "inf", "…": "...", "’": "'"})

STRUCTURED = ("json", "yaml", "name")


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

    def __init__(self, surroundings: Surroundings, style: Style) -> None:
        self._out = _Stream(surroundings.stdout, surroundings.environ, style.color)
        self._err = _Stream(surroundings.stderr, surroundings.environ, style.color)
        self._stdin = surroundings.stdin
        self._style = style
        self._columns = surroundings.columns
        self._people = self._err if style.output in STRUCTURED else self._out

    @property
    def live(self) -> bool:
        """Whether somebody looks at the output as it comes."""
        return self._out.tty

    @property
    def asks(self) -> bool:
        """Whether there is somebody to ask."""
        return self._stdin.isatty() and self._err.tty

    def show(self, *view: str | Line | Table) -> None:
        """What the command was asked for: kept by --quiet, and data when the format is structured."""
        self._write(self._people, view)

    def note(self, *view: str | Line | Table) -> None:
        """Progress, notes and hints: dropped by --quiet."""
        if not self._style.quiet:
            self._write(self._people, view)

    def hint(self, *view: str) -> None:
        """A note that may be overlooked."""
        self.note(*(Line((dim(text),)) for text in view))

    def aside(self, text: str) -> None:
        """A note beside the output of the command, always on stderr."""
        if not self._style.quiet:
            self._write(self._err, (text,))

    def warn(self, text: str) -> None:
        self._write(self._err, (text,))

    def data(self, value: Any, format_: str) -> None:
        """One document of plain values on stdout."""
        self._out.write(_document(value, format_, ascii_only=not self._out.unicode))

    def record(self, value: Any) -> None:
        """One compact JSON object on a line of its own, for output that goes on."""
        self._out.write(_json(value, indent=0, ascii_only=not self._out.unicode))

    def name(self, text: str) -> None:
        self._out.write(f"{text}\n")

    def confirm(self, question: str, *, default: bool) -> bool:
        """Asks on stderr. Enter is the default; the end of the input is a no."""
        self._err.write(self._err.encodable(question))
        answer = self._stdin.readline()
        if not answer:
            self._err.write("\n")
            return False
        match answer.strip().lower():
            case "":
                return default
            case "y" | "yes":
                return True
        return default and answer.strip().lower() not in ("n", "no")

    def _write(self, stream: "_Stream", view: View) -> None:
        columns = self._columns if stream.tty else None
        ellipsis = "…" if stream.unicode else "..."
        for item in view:
            if isinstance(item, Table):
                for laid in laid_out(_filled(item), columns=columns, headers=self._style.headers, ellipsis=ellipsis):
                    stream.line(laid.pieces)
            elif isinstance(item, Line):
                stream.line(item.pieces)
            else:
                stream.line((item,))


class _Stream:
    def __init__(self, stream: TextIO, environ: Mapping[str, str], color: str) -> None:
        self._stream = stream
        self.tty = stream.isatty()
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
        self._encoding = encoding
        self.unicode = encoding.replace("-", "").replace("_", "").startswith("utf")
        self._color = _wants_color(color, environ, tty=self.tty)

    def line(self, pieces: tuple[Piece, ...]) -> None:
        text = "".join(self._colored(piece) for piece in _trimmed(pieces))
        self.write(f"{self.encodable(text)}\n")

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def encodable(self, text: str) -> str:
        if self.unicode:
            return text
        plain = text.translate(_PLAIN_SYMBOLS)
        return plain.encode(self._encoding, "replace").decode(self._encoding)

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


def _filled(table: Table) -> Table:
    """A cell that has nothing to say still says so; columns without a title may stay empty."""
    rows = [
        tuple(NONE if not text_of(cell) and table.columns[index].title else cell for index, cell in enumerate(row))
        for row in table.rows
    ]
    return Table(table.columns, rows, table.indent)


def _document(value: Any, format_: str, *, ascii_only: bool) -> str:
    if format_ == "json":
        return _json(value, indent=2, ascii_only=ascii_only)
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        _plain(value), Dumper=dumper, sort_keys=False, allow_unicode=not ascii_only, default_flow_style=False
    )
    return text


def _json(value: Any, *, indent: int, ascii_only: bool) -> str:
    if ascii_only:
        import json

        return json.dumps(_plain(value), indent=indent or None) + "\n"
    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=indent) if indent else text).decode() + "\n"


def _plain(value: Any) -> Any:
    """Plain values only, whatever JSON text was inside."""
    return msgspec.json.decode(msgspec.json.encode(value))
