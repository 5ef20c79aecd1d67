"""Files that only their owner can read. Entry point: `write_private`."""

import os
import secrets
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file atomically; at no moment can anybody else read it, or anybody see half of it."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
