"""What a terminal obeys and what nobody sees, in a text from elsewhere. Entry points: `visible`, `escaped`."""

import re

# What turns the direction of writing, ends a line, joins or hides: all format characters of Unicode, fillers that look
# like nothing, and selectors that can carry a text of their own. Only U+FE0E and U+FE0F are left out, which choose the
# look of a character that is seen.
_HIDDEN = (
    "\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
HIDDEN = re.compile(f"[{_HIDDEN}]")
# Also C0, and bytes of an argument that were no text.
_CONTROLS = re.compile(f"[\x00-\x1f{_HIDDEN}\ud800-\udfff]")
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_FIRST_BYTE = 0xDC00  # where Python puts bytes that are no text


def visible(text: str) -> str:
    """The same, each of them spelled out: `\\n`, `\\x1b`."""
    return _CONTROLS.sub(_spelled, text)


def escaped(document: str) -> str:
    """A document whose quoted strings may hold hidden characters, with those escaped as JSON does it."""
    return HIDDEN.sub(_in_json, document)


def _spelled(found: "re.Match[str]") -> str:
    character = found[0]
    code = ord(character)
    if _FIRST_BYTE + 0x80 <= code <= _FIRST_BYTE + 0xFF:
        code -= _FIRST_BYTE
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return _NAMED.get(character) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")


def _in_json(found: "re.Match[str]") -> str:
    """Beyond the first plane as two halves."""
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
