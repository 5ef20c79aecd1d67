"""Control characters in a text that came from elsewhere: a terminal would obey them. Entry point: `visible`."""

import re

# C0 and C1, what ends a line or turns the direction of writing, and bytes of an argument that were no text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_FIRST_BYTE = 0xDC00  # where Python puts bytes that are no text


def visible(text: str) -> str:
    """The same, each of them spelled out: `\\n`, `\\x1b`."""
    return _CONTROLS.sub(_spelled, text)


def _spelled(found: "re.Match[str]") -> str:
    character = found[0]
    code = ord(character)
    if _FIRST_BYTE + 0x80 <= code <= _FIRST_BYTE + 0xFF:
        code -= _FIRST_BYTE
    return _NAMED.get(character) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")
