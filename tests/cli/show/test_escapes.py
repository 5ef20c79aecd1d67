import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.show.escapes import visible


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("café — plain", "café — plain"),
        ("two\nlines\r\n", r"two\nlines\r\n"),
        ("a\tb", r"a\tb"),
        ("\x1b[2J\x9b2J\x7f", r"\x1b[2J\x9b2J\x7f"),
        ("\u202egnp.exe\u2028", r"\u202egnp.exe\u2028"),
        ("ad\u200bmin\u2060\ufeff\xad", r"ad\u200bmin\u2060\ufeff\xad"),
        ("\u2067right\u2069 to left\u200f", r"\u2067right\u2069 to left\u200f"),
        ("filled \u3164, tagged \U000e0041", r"filled \u3164, tagged \U000e0041"),
        ("byte \udcff", r"byte \xff"),
        ("half \ud83d", r"half \ud83d"),
    ],
)
def test_control_characters_are_spelled_out(text: str, escaped: str) -> None:
    assert visible(text) == escaped


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_that_can_be_written(text: str) -> None:
    escaped = visible(text)
    assert len(escaped.splitlines()) <= 1
    assert escaped.encode().decode() == escaped
