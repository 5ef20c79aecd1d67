import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.show.escapes import visible


@pytest.mark.parametrize(
    ("text", "shown"),
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
def test_what_a_terminal_would_obey_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters()))
def test_any_text_becomes_one_line_that_can_be_written(text: str) -> None:
    shown = visible(text)
    assert len(shown.splitlines()) <= 1
    assert shown.encode().decode() == shown
