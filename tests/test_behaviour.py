"""docs/behaviour.md names tests that exist, and nothing in the tree refers to a rule that it does not have."""

import ast
import re
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BEHAVIOUR = ROOT / "docs" / "behaviour.md"
REFERRING = ("src", "tests", "docs", "bench", "engine", "tools", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")

TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
HELD_BY = re.compile(r"Held by: (`[^`]+`(?:,\n`[^`]+`)*)\n")
ANCHOR = re.compile(r"behaviour\.md#([\w-]+)")


def anchor(heading: str) -> str:
    """The anchor of a heading, as it is rendered by the usual hosts of repositories."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def rules(text: str) -> dict[str, str]:
    """The text of each rule by its heading."""
    parts = re.split(r"^(?=##+ )", text, flags=re.MULTILINE)
    return {part.partition("\n")[0].removeprefix("### "): part for part in parts if part.startswith("### ")}


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def names_of_tests(module: ast.Module) -> Iterator[str]:
    """Every test of a module, with its class if it has one."""
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=owner, body=body):
                for inner in body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{owner}::{inner.name}"


@cache
def defined_tests(path: str) -> frozenset[str]:
    file = ROOT / path
    return frozenset(names_of_tests(ast.parse(file.read_text(encoding="utf-8")))) if file.is_file() else frozenset()


def referring_files() -> Iterator[Path]:
    for name in REFERRING:
        path = ROOT / name
        yield from (
            [path]
            if path.is_file()
            else sorted(
                file
                for file in path.rglob("*")
                if file.suffix in {".py", ".md", ".txt", ".yaml"} and "__pycache__" not in file.parts
            )
        )


TEXT = BEHAVIOUR.read_text(encoding="utf-8")
RULES = rules(TEXT)


@pytest.mark.parametrize("rule", RULES, ids=anchor)
def test_a_rule_names_the_tests_that_hold_it(rule: str) -> None:
    [held_by] = HELD_BY.findall(RULES[rule] + "\n")
    ids = TEST_ID.findall(held_by)
    assert len(ids) == held_by.count("`") // 2, "a test is written as `tests/folder/test_file.py::test_name`"
    assert [f"{path}::{name}" for path, name in ids if name not in defined_tests(path)] == []


def test_every_anchor_is_unique() -> None:
    anchors = [anchor(heading) for heading in headings(TEXT)]
    assert sorted(anchors) == sorted(set(anchors))


def test_every_reference_to_a_rule_leads_to_one() -> None:
    known = {anchor(heading) for heading in headings(TEXT)}
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in referring_files()
        for name in ANCHOR.findall(file.read_text(encoding="utf-8"))
        if name not in known
    ]
    assert missing == []


# References into documents that are not in this repository: numbers of rules, rows, sections and invariants.
NUMBER = re.compile(
    r"\bR\d{1,2}\b"
    r"|(?i:\b(?:invariants?|sections?) \d)"
    r"|(?i:\brows? \d+(?=[:,.)]| and\b| of\b))"
    r"|(?m:^\s*# \d{1,2}(?:\.\d{1,2})*(?=[:,]| and\b|$))"
    r"|\.md`? \d|\bcontract/|\bfindings\b"
)
NUMBERED_TEST = re.compile(
    r"test_(?:\d{1,2}(?:_|$)|(?:cli|platform|api)_\d|(?:\w+_)?(?:rows?_(?:of_)?\d|r\d{1,2}_|(?:regression|invariant)_\d))"
)
DOCUMENT = re.compile(r"(?<![\w*<{}./-])([\w-]+\.md)\b")


def outside_references(text: str, documents: Container[str]) -> list[str]:
    """Every mention of a rule by its number, and of a document that is not there."""
    numbers = [match[0].strip() for match in NUMBER.finditer(text)]
    return [*numbers, *(name for name in DOCUMENT.findall(text) if name not in documents)]


def test_nothing_refers_to_a_document_outside_of_the_repository() -> None:
    documents = {file.name for file in referring_files() if file.suffix == ".md"} | {"SECURITY.md"}
    wrong = [
        f"{file.relative_to(ROOT)}: {reference}"
        for file in referring_files()
        if file != Path(__file__)
        for reference in outside_references(file.read_text(encoding="utf-8"), documents)
    ]
    assert wrong == []


def test_no_test_is_named_after_the_number_of_a_rule() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in defined_tests(file.relative_to(ROOT).as_posix())
        if NUMBERED_TEST.match(name.rpartition(":")[2])
    ]
    assert sorted(wrong) == []


@pytest.mark.parametrize(
    "text",
    [
        '"""Denied claims are created again (R9)."""',
        "# R22: copies",
        "# 7.5",
        "# 3.2 and 9: the way down",
        '"row 40: drifted"',
        "see section 7.5",
        "Invariant 9: whose it is",
        "docs/cli.md 4.5",
        "in contract/api",
        '"""notes.md: how it was."""',
    ],
)
def test_a_reference_to_an_outside_document_is_found(text: str) -> None:
    assert len(outside_references(text, {"cli.md"})) == 1


@pytest.mark.parametrize(
    "text", ["row 2 cannot be read", "Kubernetes 1.30", "# 0.2 s", "[cli](docs/cli.md)", "HTTP/1.1 404", "<name>.md"]
)
def test_other_numbers_and_documents_are_not(text: str) -> None:
    assert outside_references(text, {"cli.md"}) == []


@pytest.mark.parametrize(
    "name",
    [
        "test_5_2_it",
        "test_10_4",
        "test_row_28_it",
        "test_rows_of_4_1_it",
        "test_r9_it",
        "test_regression_01_it",
        "test_cli_4_5",
    ],
)
def test_a_numbered_test_is_found(name: str) -> None:
    assert NUMBERED_TEST.match(name)


@pytest.mark.parametrize(
    "name", ["test_404_is_told_once", "test_401", "test_two_rows_are_shown", "test_a_row_is_one_city"]
)
def test_other_names_are_not(name: str) -> None:
    assert NUMBERED_TEST.match(name) is None
