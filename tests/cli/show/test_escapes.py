import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.show.escapes import harmless, visible


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


@pytest.mark.parametrize(
    ("line", "in_colour", "plain"),
    [
        ("café — plain", "café — plain", "café — plain"),
        ("a\tb", "a\tb", "a\tb"),
        ("\x1b[32mok\x1b[0m", "\x1b[32mok\x1b[0m\x1b[0m", "ok"),
        ("\x1b[1;38;5;8mgrey", "\x1b[1;38;5;8mgrey\x1b[0m", "grey"),
        ("\x1b[38;2;1;2;3mtrue", "\x1b[38;2;1;2;3mtrue\x1b[0m", "true"),
        ("\x1b[mend", "\x1b[mend\x1b[0m", "end"),
        ("\x1b[8mhidden", "hidden", "hidden"),
        ("\x1b[5mblinks", "blinks", "blinks"),
        ("\x1b[38;5mhalf", "half", "half"),
        ("\x1b[38mhalf", "half", "half"),
        ("\x1b[2J\x1b[1;1Hcleared", "cleared", "cleared"),
        ("\x9b2Jcleared", "cleared", "cleared"),
        ("\x1b]0;title\x07rest", "rest", "rest"),
        ("\x1b]8;;http://example.test\x1b\\link\x1b]8;;\x1b\\", "link", "link"),
        ("\x1bP1;2|text\x1b\\rest", "rest", "rest"),
        ("\x1b]52;c;c2VjcmV0", "", ""),
        ("\x1bcreset", "reset", "reset"),
        ("\x1b(0box", "box", "box"),
        ("cut \x1b", "cut ", "cut "),
        ("cut \x1b[3", "cut ", "cut "),
        ("\x1b\x00[2J", "[2J", "[2J"),
        ("\x1b\x1b[2J", "", ""),
        ("50%\r100%\r", "50% 100%", "50% 100%"),
        ("two\nlines\x85", "two lines ", "two lines "),
        ("\a\bbell\x7f", "bell", "bell"),
        ("\u202egnp.exe\u200b", "gnp.exe", "gnp.exe"),
    ],
)
def test_only_colours_of_other_programs_reach_a_terminal(line: str, in_colour: str, plain: str) -> None:
    assert harmless(line, colours=True) == in_colour
    assert harmless(line, colours=False) == plain


_LEFT = re.compile(r"\x1b\[[0-9;]*m|[^\x00-\x08\x0a-\x1f\x7f-\x9f]")


@given(st.text(st.sampled_from("\x1b\x9b\x90\x07[]P;mJ0123?\\ax\n\r\x00\u202e") | st.characters(), max_size=40))
def test_whatever_a_program_writes_a_terminal_gets_text_and_colours(line: str) -> None:
    assert _LEFT.sub("", harmless(line, colours=True)) == ""
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", harmless(line, colours=False))
