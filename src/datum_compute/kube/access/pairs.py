"""Loads certificates with their keys into TLS contexts. Entry point: `load_pair`."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoFolder(Exception):
    """No temporary file can be written on this machine; the message says what to do."""


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Raises `ssl.SSLError` or `ValueError` when the two do not belong together, and `NoFolder`."""
    with _file(key + b"\n" + certificate) as path:
        context.load_cert_chain(path, password=lambda: "")  # an encrypted key is an error, never a prompt


@contextmanager
def _file(content: bytes) -> Iterator[Path]:
    """A temporary file, because the library loads nothing else; in memory where the machine supports it."""
    descriptor = _in_memory(content)
    if descriptor is not None:
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    try:
        folder = tempfile.TemporaryDirectory()
    except OSError:
        raise NoFolder(
            "a certificate can only be loaded from a file, and there is no folder to write one to: "
            "set TMPDIR to a folder that this process may write to"
        ) from None
    with folder:
        path = Path(folder.name) / "pair.pem"
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
        yield path


def _in_memory(content: bytes) -> int | None:
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create("pair")
    except OSError:  # not allowed here
        return None
    if not Path(f"/proc/self/fd/{descriptor}").exists():
        os.close(descriptor)
        return None
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor
