"""Control and invisible characters in untrusted text. Entry points: `visible`, `escaped`, `harmless`."""

import re

# Characters that change the direction of text, end a line, join or hide: all format characters of Unicode, invisible
# fillers, and variation selectors, which can smuggle text. Only U+FE0E and U+FE0F are left out, which choose between
# text and emoji style.
_HIDDEN = (
    "\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
HIDDEN = re.compile(f"[{_HIDDEN}]")
# Also C0 controls, and surrogates that stand for undecodable bytes of an argument.
_CONTROLS = re.compile(f"[\x00-\x1f{_HIDDEN}\ud800-\udfff]")
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_FIRST_BYTE = 0xDC00  # where Python maps undecodable bytes

# What a terminal acts on: sequences with a text up to its end, control sequences, short ones, and single characters. A
# sequence that does not end takes the rest of the line, as it would in a terminal. Tabs stay.
_ACTIONS = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f]).*?(?:\x1b\\|[\x07\x9c]|$)"
    r"|(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]|$)"
    r"|\x1b[ -/]*(?:[0-~]|$)"
    "|(?P<breaks>[\n\v\f\r\x85\u2028\u2029]+)"
    f"|[\x00-\x08\x0e-\x1f{_HIDDEN}\ud800-\udfff]",
    re.DOTALL,
)
# Parameters of control sequences that set colours or the weight of letters; none hides text or makes it blink.
_COLOURS = frozenset(map(str, (1, 2, 3, 4, 7, 9, *range(21, 25), 27, 29, *range(30, 38), 39, *range(40, 48), 49))) | {
    *map(str, (*range(90, 98), *range(100, 108))),
    "",  # and 0, which end them
}
_LONGER = {"5": 2, "2": 4}  # how many more parameters a colour has, by the first of them


def visible(text: str) -> str:
    """The text with these characters escaped: `\\n`, `\\x1b`."""
    return _CONTROLS.sub(_spelled, text)


def escaped(document: str) -> str:
    """A document with invisible characters in its quoted strings escaped as in JSON."""
    return HIDDEN.sub(_in_json, document)


def harmless(line: str, *, colours: bool) -> str:
    """A line of another program for a terminal: without control characters and escape sequences other than colours.

    Breaks in the line become spaces, and colours end with the line.
    """
    if line.isprintable():  # nearly all are
        return line

    def allowed(match: "re.Match[str]") -> str:
        if match["breaks"]:
            return " "
        is_colour = colours and match["final"] == "m" and _is_colour(match["parameters"])
        return f"\x1b[{match['parameters']}m" if is_colour else ""

    text = _ACTIONS.sub(allowed, line.strip("\r\n"))
    return f"{text}\x1b[0m" if "\x1b" in text else text


def _is_colour(parameters: str) -> bool:
    numbers = [number.lstrip("0") for number in parameters.split(";")]
    while numbers:
        number = numbers.pop(0)
        if number in ("38", "48"):
            longer = _LONGER.get(numbers[0] if numbers else "", 0)
            if not longer or len(numbers) < longer:
                return False
            del numbers[:longer]
        elif number not in _COLOURS:
            return False
    return True


def _spelled(match: "re.Match[str]") -> str:
    character = match[0]
    code = ord(character)
    if _FIRST_BYTE + 0x80 <= code <= _FIRST_BYTE + 0xFF:
        code -= _FIRST_BYTE
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return _NAMED.get(character) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")


def _in_json(match: "re.Match[str]") -> str:
    """Characters beyond the basic plane become surrogate pairs."""
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
