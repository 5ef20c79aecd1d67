"""Names say what they hold; the participles and loop variables of an earlier style stay out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "tools", "engine", "bench", "clients")

PARTICIPLES = frozenset({"told", "said", "shown", "kept", "asked"})
DISTRIBUTIVE = re.compile(r"\bone an? (?=[a-z])")


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every function, parameter, variable and attribute that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def loop_variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.For(target=ast.Name() as target) | ast.AsyncFor(target=ast.Name() as target):
                yield target.lineno, target.id
            case ast.comprehension(target=ast.Name() as target):
                yield target.lineno, target.id


def habits(text: str) -> list[str]:
    """One line for each habit of the earlier style, in names and in prose."""
    tree = ast.parse(text)
    return [
        *(f"{line}: {name}" for line, name in bound_names(tree) if name.strip("_") in PARTICIPLES),
        *(f"{line}: for {name} in" for line, name in loop_variables(tree) if name == "one"),
        *(
            f"{number}: {found[0].strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            for found in DISTRIBUTIVE.finditer(line)
        ),
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_code_is_written_in_plain_english(folder: str) -> None:
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert modules
    wrong = [
        f"{module.relative_to(ROOT)}:{habit}"
        for module in modules
        if module != Path(__file__)  # which has examples of each habit
        for habit in habits(module.read_text(encoding="utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "def told(events): ...",
        "for one in bindings: ...",
        "names = [one.name for one in bindings]",
        "def f(*, said): ...",
        "self._kept = {}",
        '"""Caches, one a plane."""',
        "# one an object",
    ],
)
def test_a_habit_is_found(text: str) -> None:
    assert len(habits(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for binding in bindings: ...",
        "def same(one, other): ...",
        '"""If it was asked for, one per plane is kept."""',
        "# as a server told us",
    ],
)
def test_plain_english_is_not(text: str) -> None:
    assert habits(text) == []
