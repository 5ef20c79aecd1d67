import pytest

from datum_compute.cli.show.lines import Column, Line, Table, good, laid_out, text_of


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text_of(piece) for piece in line.pieces) for line in lines]


def lines_of(table: Table, columns: int | None = None, *, headers: bool = True) -> list[str]:
    return texts(laid_out(table, columns=columns, headers=headers, ellipsis="…"))


NAMES = Table((Column("NAME"), Column("CITY")), [("shop", "DFW"), ("a-longer-name", "AMS")])


def test_columns_stand_three_spaces_apart_and_the_last_is_not_padded() -> None:
    assert lines_of(NAMES) == ["NAME            CITY", "shop            DFW", "a-longer-name   AMS"]


def test_without_titles_columns_are_as_wide_as_their_cells() -> None:
    table = Table((Column("A LONG TITLE"), Column("B")), [("x", "y")])
    assert lines_of(table, headers=False) == ["x   y"]


def test_colour_does_not_count_as_width() -> None:
    table = Table((Column("HEALTH"), Column("AGE")), [(good("Available"), "3m"), ("Unknown", "9d")])
    assert lines_of(table) == ["HEALTH      AGE", "Available   3m", "Unknown     9d"]


IMAGES = Table(
    (Column("NAME"), Column("IMAGE", shrinks=True), Column("AGE")),
    [("shop", "team/with/a/very/long/path/and/a/long/name/for/an/image:2026.11.02-0815", "3m")],
)


def test_a_table_too_wide_for_the_terminal_gives_up_what_may_be_cut() -> None:
    title, row = lines_of(IMAGES, 60)
    assert title == "NAME   IMAGE                                             AGE"
    assert row == "shop   team/with/a/very/long/p…n/image:2026.11.02-0815   3m"
    assert len(title) == 60


def test_names_are_never_cut() -> None:
    table = Table((Column("NAME"), Column("STATUS")), [("x" * 70, "Pending (quota exceeded)")])
    assert lines_of(table, 80)[1] == "x" * 70 + "   Pending (quota exceeded)"


def test_nothing_is_cut_where_there_is_no_terminal() -> None:
    assert lines_of(IMAGES)[1] == "shop   team/with/a/very/long/path/and/a/long/name/for/an/image:2026.11.02-0815   3m"


@pytest.mark.parametrize("text", ["", " "])
def test_a_last_column_without_text_has_nothing_to_wrap(text: str) -> None:
    table = Table((Column("TYPE"), Column("MESSAGE", wraps=True)), [("Ready", text)])
    assert len(laid_out(table, columns=80, headers=True, ellipsis="…")) == 2


def test_the_text_of_the_last_column_wraps() -> None:
    table = Table(
        (Column("TYPE"), Column("MESSAGE", wraps=True)), [("Ready", "one two three four five six"), ("Other", "seven")]
    )
    assert lines_of(table, 30) == [
        "TYPE    MESSAGE",
        "Ready   one two three four",
        "        five six",
        "Other   seven",
    ]


def test_a_column_too_narrow_to_wrap_is_left_to_the_terminal() -> None:
    table = Table((Column("TYPE"), Column("MESSAGE", wraps=True)), [("Ready", "one two three four five six")])
    assert lines_of(table, 20) == ["TYPE    MESSAGE", "Ready   one two three four five six"]
