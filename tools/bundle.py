"""Builds the plugin as one executable file that carries everything it needs. Entry point: `main`, called by
`make plugin`.

datumctl checks a plugin by the hash of a single file. The same content gives the same file, whenever it is built.
"""

import hashlib
import io
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import datum_compute
from tools import boot

_PROJECT = "datum-compute"
_ROOT = Path(datum_compute.__file__).parent

# Enough to answer --plugin-manifest: read from the archive itself, with nothing unpacked.
_AT_HAND = (
    "__init__.py",
    "cli/__init__.py",
    "cli/main.py",
    "cli/shell/__init__.py",
    "cli/shell/failures.py",
    "cli/shell/environment.py",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="tools.bundle", description="Builds the single-file plugin.")
    parser.add_argument("file", type=Path, nargs="?", default=Path("dist/datumctl-compute"))
    file: Path = parser.parse_args(arguments).file
    content = archive(_files())
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.write_bytes(content)
    unfinished.chmod(0o755)
    unfinished.replace(file)
    print(f"{file}  {len(content) / 2**20:.1f} MiB  sha256 {hashlib.sha256(content).hexdigest()}")
    return 0


def archive(files: Mapping[str, bytes]) -> bytes:
    """The plugin that carries these files."""
    payload = _zip(files, ZIP_DEFLATED)
    outer = {f"{_ROOT.name}/{name}": files[f"{_ROOT.name}/{name}"] for name in _AT_HAND} | {
        "__main__.py": Path(boot.__file__).read_bytes(),
        boot.DIGEST: hashlib.sha256(payload).hexdigest()[:32].encode(),
        boot.MADE_FOR: boot.this_machine().encode(),
        boot.PAYLOAD: payload,
    }
    return _zip(outer, ZIP_STORED, b"#!/usr/bin/env python3\n")


def _zip(files: Mapping[str, bytes], compression: int, first: bytes = b"") -> bytes:
    target = io.BytesIO()
    target.write(first)
    with ZipFile(target, "w", compression) as whole:
        for name in sorted(files):
            entry = ZipInfo(name)  # its date is fixed
            entry.external_attr = 0o644 << 16
            whole.writestr(entry, files[name], compression)
    return target.getvalue()


def _files() -> dict[str, bytes]:
    """This package and the distributions it needs, as they are installed here."""
    found = {
        f"{_ROOT.name}/{path.relative_to(_ROOT).as_posix()}": path.read_bytes()
        for path in _ROOT.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for distribution in _needed(_PROJECT, {_PROJECT}):
        for file in distribution.files or ():
            if file.parts[0] != os.pardir and "__pycache__" not in file.parts:
                found[file.as_posix()] = Path(str(file.locate())).read_bytes()
    return found


def _needed(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """Whatever is not installed is for other platforms or Pythons: the lock has installed what this one needs."""
    for requirement in metadata.requires(name) or ():
        needed = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
        if needed in seen or re.search(r"\bextra\s*==", requirement):
            continue
        seen.add(needed)
        try:
            yield metadata.distribution(needed)
        except metadata.PackageNotFoundError:
            continue
        yield from _needed(needed, seen)


if __name__ == "__main__":
    sys.exit(main())
