"""Writes every file that follows from the tables of this package. Entry point: `main`, which `make generate` calls."""

import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import manifests, monitoring, reference

_ORIGIN = "datum_compute.api"
_OPERATOR = "datum_compute.operator"


def mark(origin: str) -> str:
    """The first line of every file that is generated from `origin`."""
    return f"Generated from {origin} by `make generate`; do not edit."


_MARK = mark(_ORIGIN)


def files() -> dict[str, str]:
    """Text by path below the repository."""
    return {
        **{f"deploy/{path}": f"# {_MARK}\n{text}" for path, text in manifests.files().items()},
        **{f"docs/reference/{name}": f"<!-- {_MARK} -->\n\n{text}" for name, text in reference.files().items()},
    }


def operator_files() -> dict[str, str]:
    """Text by path below the repository, of what follows from the tables of compute-manager."""
    written = mark(_OPERATOR)
    pages = reference.operator_files()
    return {
        **{f"docs/reference/{name}": f"<!-- {written} -->\n\n{text}" for name, text in pages.items()},
        **monitoring.files(written),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    return max(run(_ORIGIN, files(), arguments), run(_OPERATOR, operator_files(), arguments))


def run(origin: str, files: Mapping[str, str], arguments: Sequence[str] | None) -> int:
    """Writes files, each with the mark of `origin` in its first line, or checks that they are up to date."""
    parser = ArgumentParser(description=f"Writes what follows from {origin}.")
    parser.add_argument("repository", type=Path, nargs="?", default=Path())
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not up to date")
    options = parser.parse_args(arguments)
    wanted = {options.repository / path: text for path, text in files.items()}
    return _check(origin, options.repository, wanted) if options.check else _write(origin, wanted)


def _write(origin: str, wanted: Mapping[Path, str]) -> int:
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in _left_over(origin, wanted):
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    return 0


def _check(origin: str, repository: Path, wanted: Mapping[Path, str]) -> int:
    old = [path for path, text in wanted.items() if not _holds(path, text)] + _left_over(origin, wanted)
    if old:
        named = ", ".join(path.relative_to(repository).as_posix() for path in old)
        print(f"not what the tables in {origin} say: {named}; run make generate", file=sys.stderr)
    return 1 if old else 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _left_over(origin: str, wanted: Mapping[Path, str]) -> list[Path]:
    """Files of an earlier table, also in folders of their own; files of people beside them stay."""
    folders = {path.parent for path in wanted if path.parent.is_dir()}
    parents = [parent for parent, number in Counter(folder.parent for folder in folders).items() if number > 1]
    folders |= {folder for parent in parents for folder in parent.iterdir() if folder.is_dir()}
    found = (path for folder in sorted(folders) for path in sorted(folder.iterdir()) if path.is_file())
    return [path for path in found if path not in wanted and mark(origin) in _first_line(path)]


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
