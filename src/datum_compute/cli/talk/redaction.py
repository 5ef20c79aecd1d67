"""Hides credentials in text: some servers echo what they were sent. Entry point: `masked`."""

import re

HIDDEN = "(hidden)"

_CREDENTIALS = re.compile(r"\b(Bearer|Basic) [\w.~+/=-]+")  # case-sensitive, because "basic" is also a word


def masked(text: str) -> str:
    return _CREDENTIALS.sub(rf"\1 {HIDDEN}", text)
