"""Measurements that depend on the machine, and so are no tests. Run one with `.venv/bin/python -m bench.NAME`."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of a bench, whose docstring is the help."""
    return argparse.ArgumentParser(
        prog=f"python -m bench.{Path(sys.argv[0]).stem}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def chosen(description: str | None, names: Iterable[str]) -> list[str]:
    """The names on the command line, or all of them."""
    arguments, known = parser(description), list(names)
    arguments.add_argument("names", nargs="*", metavar="name", help=", ".join(known))
    found: list[str] = arguments.parse_args().names
    if unknown := [name for name in found if name not in known]:
        arguments.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(known)}")
    return found or known
