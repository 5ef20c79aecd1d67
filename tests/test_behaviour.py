"""docs/behaviour.md names tests that exist, and nothing in the tree refers to a rule that it does not have."""

import ast
import re
from collections.abc import Iterator
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
