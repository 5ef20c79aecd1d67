"""Credentials for a registry, as Docker and Podman store them. Entry point: `registry_credentials`.

They are read for each pull, handed to the engine and forgotten: nothing here logs them, or puts them into an error.
"""

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from datum_compute.kube.meta import Json, decode, encode

HUB = "docker.io"
_HUB_ADDRESS = "https://index.docker.io/v1/"
_HUB_NAMES = frozenset({HUB, "index.docker.io", "registry-1.docker.io"})
_HELPER_SECONDS = 10.0
_HELPER_NAME = re.compile(r"[A-Za-z0-9._-]+")
_TOKEN_USER = "<token>"  # as helpers mark a secret that is a token

Helper = Callable[[str, str], Awaitable[bytes | None]]
"""Asks a credential helper, named without its prefix, for a registry."""


async def registry_credentials(
    reference: str, environ: Mapping[str, str], home: Path, *, ask: Helper | None = None
) -> str:
    """The value of `X-Registry-Auth` for an image; empty if nobody logged in to its registry."""

    async def run(name: str, registry: str) -> bytes | None:
        return await run_helper(name, registry, environ)

    name = repository(reference)
    for path in auth_files(environ, home):
        config = _read(path)
        if found := await _found(config, name, ask or run):
            return header(found, _address(registry_of(name)))
    return ""


def auth_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Where credentials may be; the first file that has some for a registry counts."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    named = environ.get("REGISTRY_AUTH_FILE", "")
    return [
        *([Path(named)] if named else []),
        *([Path(runtime) / "containers" / "auth.json"] if runtime else []),
        Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
    ]


def repository(reference: str) -> str:
    """The full name of an image with its registry, without tag and digest."""
    name = reference.partition("@")[0]
    colon = name.rfind(":")
    name = name[:colon] if colon > name.rfind("/") else name
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return f"{HUB}{name[len(first) :]}" if first in _HUB_NAMES else name
    return f"{HUB}/{name}" if slash else f"{HUB}/library/{name}"


def registry_of(name: str) -> str:
    return name.partition("/")[0]


def header(credentials: Json, address: str) -> str:
    return base64.urlsafe_b64encode(encode({**credentials, "serveraddress": address})).decode()


async def _found(config: Json, name: str, ask: Helper) -> Json:
    registry = registry_of(name)
    helpers = [helper for key, helper in _entries(config, "credHelpers") if _key(key) == registry]
    for helper in (*helpers, config.get("credsStore")):
        if isinstance(helper, str) and helper and (found := _secret(await ask(helper, _address(registry)))):
            return found
    stored = {_key(key): entry for key, entry in _entries(config, "auths")}
    for key in _scopes(name):
        if found := _stored(stored.get(key)):
            return found
    return {}


def _scopes(name: str) -> Iterator[str]:
    """A repository, and what contains it: Podman stores credentials for any of them."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _key(key: str) -> str:
    """A name in a file, written as an address by some."""
    plain = re.sub(r"^https?://", "", key).rstrip("/")
    plain = re.sub(r"/v[12]$", "", plain)
    host, slash, rest = plain.partition("/")
    return f"{HUB if host in _HUB_NAMES else host}{slash}{rest}"


def _address(registry: str) -> str:
    return _HUB_ADDRESS if registry == HUB else registry


def _stored(entry: Any) -> Json:
    if not isinstance(entry, dict):
        return {}
    token, user, password = (entry.get(field) for field in ("identitytoken", "username", "password"))
    if isinstance(token, str) and token:
        return {"identitytoken": token}
    if isinstance(auth := entry.get("auth"), str) and auth:
        with suppress(ValueError):
            user, _, password = base64.b64decode(auth).decode().rstrip("\0").partition(":")
    return _login(user, password)


def _secret(answer: bytes | None) -> Json:
    if answer is None:
        return {}
    found = _object(answer)
    user, secret = found.get("Username"), found.get("Secret")
    if user == _TOKEN_USER and isinstance(secret, str) and secret:
        return {"identitytoken": secret}
    return _login(user, secret)


def _login(user: Any, password: Any) -> Json:
    if isinstance(user, str) and isinstance(password, str) and user:
        return {"username": user, "password": password}
    return {}


async def run_helper(name: str, registry: str, environ: Mapping[str, str]) -> bytes | None:
    """What `docker-credential-NAME get` prints; None if it cannot be run, fails, or takes too long."""
    if not _HELPER_NAME.fullmatch(name):
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            f"docker-credential-{name}",
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_HELPER_SECONDS):
            output, _ = await process.communicate(registry.encode())
        return output if process.returncode == 0 else None
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _read(path: Path) -> Json:
    try:
        return _object(path.read_bytes())
    except OSError:
        return {}


def _object(data: bytes) -> Json:
    try:
        return decode(data, dict)
    except msgspec.MsgspecError:
        return {}


def _entries(config: Json, name: str) -> list[tuple[str, Any]]:
    entries = config.get(name)
    return list(entries.items()) if isinstance(entries, dict) else []
