"""The commands of docs/install.md as a script. Entry points: `blocks`, `Shell`.

A fence `bash` has commands to run, and a fence `text` right behind it lines that they print, where `…` is anything. A
comment `<!-- not run: why -->` in front of a fence leaves it out.
"""

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "install.md"

_FENCE = re.compile(
    r"(?:<!-- not run: (?P<excuse>[^>]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```\n|^## (?P<heading>[^\n]+)$",
    re.MULTILINE | re.DOTALL,
)
_END = "\x1e"


class Block(Struct, frozen=True):
    section: str
    commands: str
    output: str = ""  # lines that it prints
    excuse: str = ""  # why it is not run


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    section, end = "", 0
    for match in _FENCE.finditer(text):
        if match["heading"]:
            section = match["heading"]
        elif match["language"] == "bash":
            found.append(Block(section, match["text"], excuse=match["excuse"] or ""))
        elif match["language"] == "text":
            assert found, f"output before any command: {match['text']}"
            assert not text[end : match.start()].strip(), f"the output in {section} is not right behind its command"
            found[-1] = Block(section, found[-1].commands, match["text"], found[-1].excuse)
        end = match.end()
    return found


def missing_lines(expected: str, actual: str) -> list[str]:
    """Lines that are not in the output in this order, however wide its columns are."""
    lines = iter([" ".join(line.split()) for line in actual.splitlines()])
    return [line for line in expected.splitlines() if line.strip() and not any(map(_pattern(line).fullmatch, lines))]


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(" ".join(part.split())) for part in _spaced(line)))


def _spaced(line: str) -> Iterator[str]:
    """The parts between wildcards, which may stand for any words with their spaces."""
    return iter(re.split(r"\s*…\s*", line))


class Shell:
    """One bash that runs block after block, so that variables and functions last. It stops at the first failure."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.times: list[tuple[str, float]] = []
        self._folder = folder
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-s"],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, block: Block) -> str:
        """What it printed."""
        file = self._folder / "block.sh"
        file.write_text(f"set -euo pipefail\n{block.commands}", "utf-8")
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        begin = time.monotonic()
        self._bash.stdin.write(f"source {file} </dev/null\nprintf '{_END}\\n'\n")
        self._bash.stdin.flush()
        lines = []
        for line in self._bash.stdout:
            if line.endswith(f"{_END}\n"):
                break
            lines.append(line)
        else:
            raise AssertionError(f"{block.section}: this failed:\n{block.commands}\nIt printed:\n{''.join(lines)}")
        output = "".join(lines)
        self.times.append((block.section, time.monotonic() - begin))
        missing = missing_lines(block.output, output)
        assert not missing, f"{block.section}:\n{block.commands}\nshould print {missing}, and printed:\n{output}"
        return output

    def close(self) -> None:
        if self._bash.stdin is not None:
            self._bash.stdin.close()
        self._bash.kill()
        self._bash.wait()
        if self._bash.stdout is not None:
            self._bash.stdout.close()
