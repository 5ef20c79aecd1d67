"""Patterns of label values, matched in time that only grows with the value. Entry point: `compile_pattern`.

Python's `re` tries one way after the other and takes years for some short patterns, even without any repetition. Here
all ways are followed at once: a set of positions in the pattern is a number with one bit per position, as in the
automaton of Glushkov.
"""

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

MOST_REPETITIONS = 4
DEEPEST_GROUP = 32

_STEPS = 512
_REPETITIONS = "*+?"
_SPECIAL = r"\.+*?()|[]{}^$"
_DIGITS = (("0", "9"),)
_WORDS = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACES = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class PatternError(ValueError):
    """Names the part of a pattern that is not supported."""


class _Class(Struct, frozen=True):
    """The characters of some ranges, or all others."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def __contains__(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) is not self.negated


_ANY = _Class((), negated=True)


class _Part(Struct, frozen=True):
    """Positions with which a part of a pattern may begin and end, and whether it matches nothing at all."""

    empty: bool
    first: int
    last: int
    repeats: bool = False  # has a repetition inside


class Pattern:
    """Whether a whole value matches: `matches`."""

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        whole = parser.pattern()
        self._empty, self._first, self._last = whole.empty, whole.first, whole.last
        self._literals = parser.literals
        self._classes = parser.classes
        self._masks: dict[str, int] = {}  # by character, the positions that match it
        self._steps: dict[tuple[int, str], int] = {}
        follow = parser.follow
        # Most positions are followed by the next one alone; others share what follows, as the ends of alternatives do.
        self._next = sum(1 << position for position, after in enumerate(follow) if after == 1 << (position + 1))
        self._others = sum(1 << position for position, after in enumerate(follow) if after) & ~self._next
        self._after = follow
        shared: dict[int, int] = {}
        for position in _bits(self._others):
            shared[follow[position]] = shared.get(follow[position], 0) | 1 << position
        self._shared = shared

    def matches(self, value: str) -> bool:
        if not value:
            return self._empty
        here = self._first & self._mask(value[0])
        for character in value[1:]:
            if not here:
                return False
            here = self._step(here, character)
        return bool(here & self._last)

    def _step(self, here: int, character: str) -> int:
        """Values that are compared with one pattern resemble each other, so most steps were made before."""
        after = self._steps.get((here, character))
        if after is None:
            after = self._following(here) & self._mask(character)
            if len(self._steps) < _STEPS:
                self._steps[here, character] = after
        return after

    def _following(self, here: int) -> int:
        after = (here & self._next) << 1
        others = here & self._others
        while others:
            follow = self._after[(others & -others).bit_length() - 1]
            after |= follow
            others &= ~self._shared[follow]
        return after

    def _mask(self, character: str) -> int:
        mask = self._masks.get(character)
        if mask is None:
            mask = self._literals.get(character, 0)
            for class_, positions in self._classes.items():
                if character in class_:
                    mask |= positions
            if len(self._masks) < 256:
                self._masks[character] = mask
        return mask


@lru_cache(maxsize=32)  # a large pattern with all its steps takes a quarter of a megabyte
def compile_pattern(text: str) -> Pattern:
    """Raises `PatternError`."""
    return Pattern(text)


def escaped(text: str) -> str:
    """The pattern that matches this text alone."""
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in text)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._repetitions = 0
        self.follow: list[int] = []  # by position
        self.literals: dict[str, int] = {}
        self.classes: dict[_Class, int] = {}

    def pattern(self) -> _Part:
        whole = self._alternatives()
        if self._at < len(self._text):
            raise PatternError("the group that ends with ) has no beginning")
        return whole

    def _alternatives(self) -> _Part:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        if len(branches) > 1 and any(branch.empty and not branch.first for branch in branches):
            self._count()  # as if the others had ?
            branches.append(_Part(empty=True, first=0, last=0, repeats=True))
        first = last = 0
        for branch in branches:
            first |= branch.first
            last |= branch.last
        empty = any(branch.empty for branch in branches)
        return _Part(empty, first, last, repeats=any(branch.repeats for branch in branches))

    def _sequence(self) -> _Part:
        whole = _Part(empty=True, first=0, last=0)
        while (character := self._peek()) not in ("", "|", ")"):
            whole = self._joined(whole, self._repeated(self._single(character)))
        return whole

    def _joined(self, one: _Part, other: _Part) -> _Part:
        for position in _bits(one.last):
            self.follow[position] |= other.first
        return _Part(
            one.empty and other.empty,
            one.first | (other.first if one.empty else 0),
            other.last | (one.last if other.empty else 0),
            one.repeats or other.repeats,
        )

    def _repeated(self, part: _Part) -> _Part:
        character = self._peek()
        if not character or character not in _REPETITIONS:
            if character == "{":
                raise PatternError("the counted repetition {")
            return part
        self._at += 1
        following = self._peek()
        if following and following in _REPETITIONS:
            raise PatternError(f"the repetition {character}{following}")
        if part.repeats:
            raise PatternError(f"the repetition {character} of a group that has one inside")
        self._count()
        if character != "?":
            for position in _bits(part.last):
                self.follow[position] |= part.first
        return _Part(part.empty or character != "+", part.first, part.last, repeats=True)

    def _count(self) -> None:
        self._repetitions += 1
        if self._repetitions > MOST_REPETITIONS:
            raise PatternError(f"more than {MOST_REPETITIONS} repetitions (* + ?, or an empty alternative)")

    def _single(self, character: str) -> _Part:
        self._at += 1
        match character:
            case "(":
                return self._group()
            case "[":
                return self._position(self._class())
            case ".":
                return self._position(_ANY)
            case "\\":
                return self._position(self._escape())
            case "*" | "+" | "?":
                raise PatternError(f"the repetition {character} of nothing")
            case "^" | "$":
                raise PatternError(f"the anchor {character} (a pattern matches the whole value without it)")
            case "{":
                raise PatternError("the counted repetition {")
        return self._position(character)

    def _group(self) -> _Part:
        if self._peek() == "?":
            if not self._text.startswith("?:", self._at):
                raise PatternError(f"the group ({self._text[self._at : self._at + 2]}")
            self._at += 2
        self._depth += 1
        if self._depth > DEEPEST_GROUP:
            raise PatternError(f"groups inside one another more than {DEEPEST_GROUP} deep")
        inside = self._alternatives()
        if self._peek() != ")":
            raise PatternError("the group that begins with ( has no end")
        self._at += 1
        self._depth -= 1
        return inside

    def _class(self) -> _Class:
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[str, str]] = []
        while (character := self._peek()) != "]" or not ranges:
            if not character:
                raise PatternError("the class that begins with [ has no end")
            self._at += 1
            if character == "[" and self._peek() in (":", ".", "="):
                raise PatternError(f"the class [{self._peek()}")
            low = self._escape() if character == "\\" else character
            if isinstance(low, _Class):
                if low.negated:
                    raise PatternError("a negated class inside of [ ]")
                ranges.extend(low.ranges)
                continue
            ranges.append((low, self._upper(low)))
        self._at += 1
        return _Class(tuple(ranges), negated)

    def _upper(self, low: str) -> str:
        """The end of a range of characters; the beginning itself where there is no range."""
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return low
        self._at += 2
        high: str | _Class = self._text[self._at - 1]
        if high == "\\":
            high = self._escape()
        if isinstance(high, _Class) or high < low:
            raise PatternError(f"the range that begins with {low}-")
        return high

    def _escape(self) -> str | _Class:
        character = self._peek()
        self._at += 1
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character.lower() in _CLASSES:
            return _Class(_CLASSES[character.lower()], negated=character.isupper())
        if not character or character.isalnum() or not character.isascii():
            raise PatternError(f"the escape \\{character}")
        return character

    def _position(self, matcher: str | _Class) -> _Part:
        bit = 1 << len(self.follow)
        self.follow.append(0)
        if isinstance(matcher, str):
            self.literals[matcher] = self.literals.get(matcher, 0) | bit
        else:
            self.classes[matcher] = self.classes.get(matcher, 0) | bit
        return _Part(empty=False, first=bit, last=bit)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]


def _bits(positions: int) -> Iterator[int]:
    while positions:
        lowest = positions & -positions
        yield lowest.bit_length() - 1
        positions ^= lowest
