"""The supported part of LogQL. Entry points: `Query`, `parse`, `write`, `matches`, `line_matches`."""

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from datum_compute.telemetry.pattern import PatternError, compile_pattern

MOST_BYTES = 4096
MOST_MATCHERS = 32
MOST_FILTERS = 8

PLAIN_FILTERS = ("|=", "!=")
ALL_FILTERS = (*PLAIN_FILTERS, "|~", "!~")
"""For a source that evaluates patterns on lines itself."""

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK = " \t\r\n"
_STAGE = re.compile(r"\|\s*([A-Za-z_][A-Za-z0-9_]*)?")
_SUPPORTED = 'supported are {label="value", ...} with = != =~ !~, then |= "text" and != "text"'
_ESCAPES = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v", "\\": b"\\", '"': b'"',
}  # fmt: skip
_NUMBERS = {"x": 2, "u": 4, "U": 8}  # digits after the letter


class QueryError(ValueError):
    """One sentence that names what is wrong with a query."""


class Matcher(Struct, frozen=True):
    label: str
    operator: str  # =, !=, =~, !~
    value: str


class Filter(Struct, frozen=True):
    operator: str  # of PLAIN_FILTERS or ALL_FILTERS
    text: str


class Query(Struct, frozen=True):
    matchers: tuple[Matcher, ...]
    filters: tuple[Filter, ...] = ()


def parse(text: str, filters: Collection[str] = PLAIN_FILTERS) -> Query:
    """Raises `QueryError`. `filters` are the operators on lines that the source supports."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise QueryError(f"the query is longer than {MOST_BYTES} bytes")
    return _Parser(text).query(filters)


def write(query: Query) -> str:
    """The text of a query; `parse` returns the same query for it."""
    matchers = ", ".join(f"{matcher.label}{matcher.operator}{quoted(matcher.value)}" for matcher in query.matchers)
    filters = "".join(f" {filter_.operator} {quoted(filter_.text)}" for filter_ in query.filters)
    return f"{{{matchers}}}{filters}"


def quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def matches(labels: Mapping[str, str], query: Query) -> bool:
    """Whether a stream with these labels is selected; a label that it does not have is empty."""
    return all(_holds(matcher, labels.get(matcher.label, "")) for matcher in query.matchers)


def line_matches(text: str, query: Query) -> bool:
    """Whether a line passes the plain filters."""
    return all((filter_.text in text) is (filter_.operator == "|=") for filter_ in query.filters)


def _holds(matcher: Matcher, value: str) -> bool:
    match matcher.operator:
        case "=":
            return value == matcher.value
        case "!=":
            return value != matcher.value
        case "=~":
            return compile_pattern(matcher.value).matches(value)
    return not compile_pattern(matcher.value).matches(value)


def _escaped(character: str) -> str:
    match character:
        case '"' | "\\":
            return f"\\{character}"
        case "\n":
            return "\\n"
        case "\t":
            return "\\t"
    return character if character.isprintable() else f"\\U{ord(character):08x}"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def query(self, filters: Collection[str]) -> Query:
        self._skip()
        if not self._text[self._at :]:
            raise QueryError(f"the query is empty; {_SUPPORTED}")
        if self._peek() != "{":
            raise QueryError(f"the query begins with {self._coming()}, which is not supported; {_SUPPORTED}")
        self._at += 1
        matchers = self._matchers()
        found: list[Filter] = []
        self._skip()
        while self._at < len(self._text):
            found.append(self._filter(filters))
            if len(found) > MOST_FILTERS:
                raise QueryError(f"the query has more than {MOST_FILTERS} filters of lines")
            self._skip()
        return Query(tuple(matchers), tuple(found))

    def _matchers(self) -> list[Matcher]:
        matchers: list[Matcher] = []
        while True:
            self._skip()
            if self._peek() == "}" and not matchers:
                raise QueryError('the selector {} is empty; name at least one label, as in {datum_workload_name="api"}')
            matchers.append(self._matcher())
            if len(matchers) > MOST_MATCHERS:
                raise QueryError(f"the query has more than {MOST_MATCHERS} matchers")
            self._skip()
            match self._peek():
                case ",":
                    self._at += 1
                case "}":
                    self._at += 1
                    return matchers
                case "":
                    raise QueryError("the selector { has no end; } is missing")
                case _:
                    raise QueryError(f"after a matcher , or }} is expected, not {self._coming()}")

    def _matcher(self) -> Matcher:
        name = _LABEL.match(self._text, self._at)
        if name is None:
            raise QueryError(f"a label is expected in the selector, not {self._coming()}")
        self._at = name.end()
        self._skip()
        operator = self._operator(("=~", "!~", "!=", "="))
        if not operator:
            raise QueryError(f"after label {name[0]} one of = != =~ !~ is expected, not {self._coming()}")
        value = self._string(f"label {name[0]}")
        if operator.endswith("~"):
            try:
                compile_pattern(value)
            except PatternError as error:
                raise QueryError(f"the pattern of label {name[0]} has {error}, which is not supported") from None
        return Matcher(name[0], operator, value)

    def _filter(self, supported: Collection[str]) -> Filter:
        operator = self._operator(("|=", "!=", "|~", "!~", "|>", "!>"))
        if not operator:
            raise QueryError(f"the query has {self._stage()}, which is not supported; {_SUPPORTED}")
        if operator not in supported:
            raise QueryError(f"the filter {operator} on lines is not supported here; use |= or != with a text")
        self._skip()
        if self._peek() not in ('"', "`", ""):
            raise QueryError(f"after {operator} a text in quotes is expected, not {self._coming()}")
        text = self._string(f"the filter {operator}")
        self._skip()
        if re.match(r"or\b", self._text[self._at :]):
            raise QueryError(f"the query has the word or after a filter, which is not supported; {_SUPPORTED}")
        return Filter(operator, text)

    def _stage(self) -> str:
        stage = _STAGE.match(self._text, self._at)
        if stage is None:
            return self._coming()
        return f"the stage | {stage[1]}" if stage[1] else "the stage |"

    def _operator(self, operators: Collection[str]) -> str:
        for operator in operators:
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                return operator
        return ""

    def _string(self, whose: str) -> str:
        self._skip()
        quote = self._peek()
        if quote not in ('"', "`") or not quote:
            raise QueryError(f"the value of {whose} has to be in quotes")
        self._at += 1
        if quote == "`":
            end = self._text.find("`", self._at)
            if end < 0:
                raise QueryError(f"the value of {whose} has no closing quote")
            text, self._at = self._text[self._at : end], end + 1
            return text.replace("\r", "")
        return self._escapes(whose)

    def _escapes(self, whose: str) -> str:
        text = bytearray()
        while True:
            character = self._peek()
            self._at += 1
            match character:
                case "" | "\n":
                    raise QueryError(f"the value of {whose} has no closing quote")
                case '"':
                    break
                case "\\":
                    text += self._escape(whose)
                case _:
                    text += character.encode("utf-8", "surrogatepass")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise QueryError(f"the value of {whose} is not UTF-8") from None

    def _escape(self, whose: str) -> bytes:
        letter = self._peek()
        if letter in _ESCAPES:
            self._at += 1
            return _ESCAPES[letter]
        if letter in _NUMBERS:
            self._at += 1
            digits, base = self._text[self._at : self._at + _NUMBERS[letter]], 16
            complete = len(digits) == _NUMBERS[letter]
        else:
            digits, base = self._text[self._at : self._at + 3], 8
            complete = len(digits) == 3
        try:
            if not complete or not digits.isalnum() or not digits.isascii():
                raise ValueError
            number = int(digits, base)
            encoded = bytes([number]) if letter == "x" or base == 8 else chr(number).encode()
        except (ValueError, OverflowError):  # UnicodeEncodeError, for half of a pair, is a ValueError
            raise QueryError(f"the value of {whose} has the escape \\{letter}, which is not valid") from None
        self._at += len(digits)
        return encoded

    def _skip(self) -> None:
        while self._peek() and self._peek() in _BLANK:
            self._at += 1
        if self._peek() == "#":
            raise QueryError("the query has a comment (#), which is not supported")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _coming(self) -> str:
        """What comes next, as part of a sentence."""
        rest = self._text[self._at :].split(maxsplit=1)
        return f'"{rest[0][:20]}"' if rest else "the end"
