"""Writes every file that follows from the tables of this package. Entry point: `main`, which `make generate` calls."""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from datum_compute.api import crd, policies, roles
from tools import reference

_ORIGIN = "datum_compute.api"


def mark(origin: str) -> str:
    """What the first line of every file says that is written from `origin`."""
    return f"Generated from {origin} by `make generate`; do not edit."


_MARK = mark(_ORIGIN)


def files() -> dict[str, str]:
    """Text by path below the repository."""
    return {
        **{f"deploy/crd/{name}": f"# {_MARK}\n{text}" for name, text in crd.files().items()},
        **{f"deploy/roles/{name}": f"# {_MARK}\n{text}" for name, text in roles.files().items()},
        **{f"deploy/policies/{name}": f"# {_MARK}\n{text}" for name, text in policies.files().items()},
        **{f"docs/reference/{name}": f"<!-- {_MARK} -->\n\n{text}" for name, text in reference.files().items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    return run(_ORIGIN, files(), arguments)


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
    """Files that an earlier table asked for; what people put beside them stays."""
    folders = sorted({path.parent for path in wanted if path.parent.is_dir()})
    found = (path for folder in folders for path in sorted(folder.iterdir()) if path.is_file() and path not in wanted)
    return [path for path in found if mark(origin) in _first_line(path)]


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
