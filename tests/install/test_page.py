"""The form of docs/install.md: its commands are bash, and whatever they name exists."""

import re
import subprocess

import pytest

from tests.deploy.rendered import EXAMPLES
from tests.install.page import PAGE, ROOT, blocks, missing_lines

TEXT = PAGE.read_text("utf-8")
BLOCKS = blocks(TEXT)
SCRIPT = "".join(block.commands for block in BLOCKS)

# What the variables of the page stand for.
VALUES = {"$site": ["deploy/example"], "$cell": ["pop-dfw", "pop-ord"]}


def spelled_out(path: str) -> list[str]:
    """A path for every value of its variables."""
    for name, values in VALUES.items():
        if name in path:
            return [found for value in values for found in spelled_out(path.replace(name, value, 1))]
    return [path]


def folders() -> set[str]:
    named = re.findall(r' -k "?([^\s";]+)', SCRIPT)
    return {path for name in named for path in spelled_out(name)}


def test_the_commands_are_bash() -> None:
    done = subprocess.run(["bash", "-n"], input=SCRIPT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_what_needs_a_registry_is_not_run() -> None:
    assert [block.excuse for block in BLOCKS if block.excuse] == ["the test has no registry"]
    assert [fence for fence in re.findall(r"^```(\w+)$", TEXT, re.MULTILINE) if fence not in ("bash", "text")] == []


def test_every_folder_that_is_applied_exists_and_the_whole_example_is_applied() -> None:
    assert [path for path in folders() if not (ROOT / path / "kustomization.yaml").is_file()] == []
    assert {f"deploy/{folder}" for folder in EXAMPLES} <= folders()


def test_whatever_is_applied_is_deleted_again() -> None:
    applied = set(re.findall(r'apply --server-side -k "?(\$site[^\s";]*)', SCRIPT))
    deleted = set(re.findall(r'delete --ignore-not-found -k "?(\$site[^\s";]*)', SCRIPT))
    assert applied == deleted


def test_storing_one_key_of_a_secret_keeps_those_of_other_projects() -> None:
    """A server-side apply removes whatever its manager has applied before and leaves out now."""
    [store] = re.findall(r"^store\(\) \{\n(.*?)^\}", SCRIPT, re.MULTILINE | re.DOTALL)
    assert re.search(r'apply --server-side --field-manager="[^"]*\$3[^"]*"', store)


def test_links_lead_to_files() -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", TEXT)]
    assert [link for link in links if link and not (PAGE.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("expected", "actual", "missing"),
    [
        ("a\nc\n", "a\nb\nc\n", []),
        ("c\na\n", "a\nb\nc\n", ["a"]),
        ("NAME … CITY\n", "NAME   READY  CITY\n", []),
        ("pop-dfw … DFW\n", "pop-dfw   True   ORD\n", ["pop-dfw … DFW"]),
        ("… Running …\n", "web   1/1  Running 3s\n", []),
    ],
)
def test_output_is_compared_line_by_line_whatever_the_width_of_columns(
    expected: str, actual: str, missing: list[str]
) -> None:
    assert missing_lines(expected, actual) == missing
