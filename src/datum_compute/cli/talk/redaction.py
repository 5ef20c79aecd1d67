"""Credentials in a text that came from elsewhere: some servers send back what they were sent. Entry point: `masked`."""

import re

HIDDEN = "(hidden)"

_CREDENTIALS = re.compile(r"\b(Bearer|Basic) [\w.~+/=-]+")  # as the header spells them; "basic" is a word as well


def masked(text: str) -> str:
    return _CREDENTIALS.sub(rf"\1 {HIDDEN}", text)
