import os

import pytest

from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.show.lines import Column, Table, bad, good, line
from datum_compute.cli.show.terminal import Style, Terminal
from tests.cli.conftest import Stream

PLAIN = Style()


class Screen:
    def __init__(
        self, style: Style = PLAIN, *, tty: bool = False, encoding: str = "utf-8", stdin: str = "", **environ: str
    ) -> None:
        self.out, self.err = Stream(tty=tty, encoding=encoding), Stream(tty=tty, encoding=encoding)
        environment = Environment(
            program="compute",
            environ=environ,
            stdin=Stream(stdin, tty=tty),
            stdout=self.out,
            stderr=self.err,
            columns=80 if tty else None,
        )
        self.terminal = Terminal(environment, style)


def test_a_table_prints_a_dash_for_unknown_values() -> None:
    screen = Screen()
    screen.terminal.show(
        Table((Column("NAME"), Column("IP"), Column("")), [("shop", "", ""), ("web", "10.0.0.1", "!")])
    )
    assert screen.out.getvalue() == "NAME   IP\nshop   —\nweb    10.0.0.1   !\n"


def test_lines_end_without_spaces() -> None:
    screen = Screen()
    screen.terminal.show(line("label   ", "value  ", "   "), "text  ")
    assert screen.out.getvalue() == "label   value\ntext\n"


@pytest.mark.parametrize(
    ("color", "tty", "environ", "colored"),
    [
        ("auto", False, {}, False),
        ("auto", True, {}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", False, {"CLICOLOR_FORCE": "1"}, True),
        ("auto", False, {"CLICOLOR_FORCE": "0"}, False),
        ("auto", False, {"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"CLICOLOR_FORCE": "1"}, False),
    ],
)
def test_colour_by_flag_then_environment_then_terminal(
    color: str, tty: bool, environ: dict[str, str], colored: bool
) -> None:
    screen = Screen(Style(color=color), tty=tty, **environ)
    screen.terminal.show(line("Health  ", good("Available")))
    available = "\x1b[32mAvailable\x1b[0m" if colored else "Available"
    assert screen.out.getvalue() == f"Health  {available}\n"


def test_other_character_sets_get_plain_signs_aligned_as_ever() -> None:
    screen = Screen(encoding="ascii")
    screen.terminal.show("a — b → c ∞ ü", Table((Column("IP"), Column("X")), [("", "y")]))
    assert screen.out.getvalue() == "a - b -> c inf ?\nIP   X\n-    y\n"


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"LC_ALL": "C"}, "a - b... ?"),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "a - b... ?"),
        ({"LC_CTYPE": "C", "LANG": "de_DE.UTF-8"}, "a - b... ?"),
        ({"LC_ALL": "", "LANG": "C"}, "a - b... ?"),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, "a — b… ü"),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, "a — b… ü"),
        ({}, "a — b… ü"),
    ],
)
def test_a_locale_of_ascii_gets_plain_signs_on_any_stream(environ: dict[str, str], line: str) -> None:
    screen = Screen(PLAIN, tty=False, **environ)
    screen.terminal.show("a — b… ü")
    assert screen.out.getvalue() == f"{line}\n"


def test_names_are_whole_in_every_locale() -> None:
    screen = Screen(LC_ALL="C")
    screen.terminal.name("/home/jürgen/kubeconfig.yaml")
    assert screen.out.getvalue() == "/home/jürgen/kubeconfig.yaml\n"


def test_latin_1_keeps_what_it_has() -> None:
    screen = Screen(encoding="iso-8859-1")
    screen.terminal.show("café — ∞")
    assert screen.out.getvalue() == "café - inf\n"


def test_json_stays_json_in_every_character_set() -> None:
    screen = Screen(Style(output="json"), encoding="ascii")
    screen.terminal.data({"health": "Degraded — 1"}, "json")
    screen.terminal.record({"health": "—"})
    assert screen.out.getvalue() == '{\n  "health": "Degraded \\u2014 1"\n}\n{"health": "\\u2014"}\n'


def test_json_is_indented_by_two_and_yaml_is_in_blocks() -> None:
    screen = Screen()
    screen.terminal.data({"a": [1, {"b": "—"}]}, "json")
    screen.terminal.data({"a": [1, {"b": "—"}]}, "yaml")
    assert screen.out.getvalue() == '{\n  "a": [\n    1,\n    {\n      "b": "—"\n    }\n  ]\n}\na:\n- 1\n- b: —\n'


@pytest.mark.parametrize("output", ["json", "yaml", "name"])
def test_with_a_structured_format_stdout_carries_data_only(output: str) -> None:
    screen = Screen(Style(output=output))
    screen.terminal.show("a result")
    screen.terminal.note("a note")
    screen.terminal.hint("a hint")
    assert (screen.out.getvalue(), screen.err.getvalue()) == ("", "a result\na note\na hint\n")


def test_quiet_drops_notes_and_hints_and_keeps_results_and_warnings() -> None:
    screen = Screen(Style(quiet=True))
    screen.terminal.show("result")
    screen.terminal.note("note")
    screen.terminal.hint("hint")
    screen.terminal.aside("aside")
    screen.terminal.warn("warning")
    assert (screen.out.getvalue(), screen.err.getvalue()) == ("result\n", "warning\n")


@pytest.mark.parametrize(
    ("answer", "default", "agreed"),
    [
        ("\n", True, True), ("\n", False, False), ("y\n", False, True), ("YES\n", False, True), ("n\n", True, False),
        ("no\n", True, False), ("maybe\n", False, False), ("", True, False), ("", False, False),
    ],
)  # fmt: skip
def test_enter_is_the_default_and_the_end_of_input_is_a_no(answer: str, default: bool, agreed: bool) -> None:
    screen = Screen(tty=True, stdin=answer)
    assert screen.terminal.confirm("Apply? (Y/n): ", default=default) is agreed
    assert screen.err.getvalue().startswith("Apply? (Y/n): ")
    assert screen.out.getvalue() == ""


def test_titles_can_be_left_out() -> None:
    screen = Screen(Style(headers=False))
    screen.terminal.show(Table((Column("NAME"),), [("shop",)]))
    assert screen.out.getvalue() == "shop\n"


def test_a_failed_state_is_red() -> None:
    screen = Screen(Style(color="always"))
    screen.terminal.show(Table((Column("STATUS"), Column("X")), [(bad("Failed"), "y")]))
    assert screen.out.getvalue() == "STATUS   X\n\x1b[31mFailed\x1b[0m   y\n"


def drawn(screen: Screen) -> list[str]:
    """What was written, from one erasing to the next."""
    return screen.out.getvalue().split("\x1b[J")


def test_a_drawing_replaces_itself_and_leaves_what_is_above() -> None:
    screen = Screen(tty=True, NO_COLOR="1")
    screen.terminal.show("above")
    drawing = screen.terminal.drawing()
    drawing.draw("one", Table((Column("NAME"),), [("shop",)]))
    drawing.draw("two")
    drawing.end()
    screen.terminal.show("below")
    assert drawn(screen) == ["above\n\r", "one\nNAME\nshop\n\r\x1b[3A", "two\n\r", "below\n"]


def test_a_warning_between_two_drawings_stays_and_the_next_begins_below_it() -> None:
    screen = Screen(tty=True, NO_COLOR="1")
    drawing = screen.terminal.drawing()
    drawing.draw("one", "two")
    screen.terminal.warn("warning")
    drawing.draw("one", "two")
    assert drawn(screen) == ["\r", "one\ntwo\n\r", "one\ntwo\n"]


def test_a_narrowed_window_has_more_rows_to_erase(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(tty=True, NO_COLOR="1")
    drawing = screen.terminal.drawing()
    drawing.draw("x" * 60, "short", "")
    monkeypatch.setattr(screen.out, "fileno", lambda: 7, raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda handle: os.terminal_size((25, 10)))
    drawing.draw("new")
    assert drawn(screen)[1].endswith("\r\x1b[5A")


def test_an_unchanged_drawing_writes_nothing() -> None:
    screen = Screen(tty=True)
    drawing = screen.terminal.drawing()
    drawing.draw("same")
    before = screen.out.getvalue()
    drawing.draw("same")
    assert screen.out.getvalue() == before


def test_a_drawing_never_wraps_nor_scrolls() -> None:
    screen = Screen(tty=True, NO_COLOR="1")
    screen.terminal.drawing().draw("x" * 200, line("y" * 70, good("z" * 70)), *map(str, range(40)))
    lines = drawn(screen)[1].splitlines()
    assert lines[:2] == ["x" * 79 + "…", "y" * 70 + "z" * 9 + "…"]
    assert len(lines) == 23  # one less than the terminal has
    assert lines[-1] == "… and 20 more lines"


@pytest.mark.parametrize(
    ("style", "tty", "environ", "redraws"),
    [
        (Style(), True, {}, True),
        (Style(), False, {}, False),
        (Style(quiet=True), True, {}, False),
        (Style(), True, {"TERM": "dumb"}, False),
        (Style(output="json"), True, {}, True),  # on stderr
    ],
)
def test_only_a_terminal_that_somebody_looks_at_is_redrawn(
    style: Style, tty: bool, environ: dict[str, str], redraws: bool
) -> None:
    assert Screen(style, tty=tty, **environ).terminal.redraws is redraws


@pytest.mark.parametrize(("typed", "answer"), [(" shop \n", "shop"), ("\n", ""), ("", None)])
def test_an_answer_is_what_was_typed_without_its_spaces(typed: str, answer: str | None) -> None:
    screen = Screen(tty=True, stdin=typed)
    assert screen.terminal.ask("Name: ") == answer
    assert screen.err.getvalue().startswith("Name: ")


def test_foreign_text_can_neither_move_the_cursor_nor_forge_a_line() -> None:
    forged = "up\nshop   Available\x1b[2J"
    screen = Screen(Style(color="always"), tty=True)
    screen.terminal.show(
        forged,
        line("Health  ", bad(forged)),
        Table((Column("NAME"), Column("X")), [(forged, "y"), ("web", good("z"))]),
    )
    spelled = r"up\nshop   Available\x1b[2J"
    assert screen.out.getvalue().splitlines() == [
        spelled,
        f"Health  \x1b[31m{spelled}\x1b[0m",
        f"NAME{' ' * (len(spelled) - 1)}X",
        f"{spelled}   y",
        f"web{' ' * len(spelled)}\x1b[32mz\x1b[0m",
    ]


def test_foreign_text_is_harmless_in_drawings_warnings_names_and_questions() -> None:
    screen = Screen(tty=True, stdin="y\n", NO_COLOR="1")
    screen.terminal.drawing().draw("a\rb")
    screen.terminal.name("c\nd")
    screen.terminal.warn("e\x9bf")
    screen.terminal.ask("g\x1bh: ")
    assert drawn(screen)[1] == "a\\rb\nc\\nd\n"
    assert screen.err.getvalue() == "e\\x9bf\ng\\x1bh: "


def test_json_spells_out_control_characters_and_means_the_same() -> None:
    screen = Screen()
    screen.terminal.record({"a": "\x9b2J\x7f\x1b"})
    assert screen.out.getvalue() == '{"a":"\\u009b2J\\u007f\\u001b"}\n'
