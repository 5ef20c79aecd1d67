"""Finds the container engine of this machine. Entry points: `find_engine`, `candidates`, `NoEngine`.

An address that was asked for explicitly is the only one tried. Otherwise the usual variables and places are tried in
order, and the first engine that answers is used.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from datum_compute.kube.meta import Json, decode
from datum_compute.providers.engine.client import EngineClient
from datum_compute.providers.engine.interface import EngineError

FLAG = "--engine"
VARIABLE = "DATUM_COMPUTE_ENGINE"

Read = Callable[[Path], bytes | None]
Connect = Callable[[str], Awaitable[EngineClient]]


class Candidate(Struct, frozen=True):
    """An address to try, or the `problem` why it cannot be tried. Nothing is tried after a `last` one."""

    source: str  # who names it, empty for a usual place
    address: str
    problem: str = ""
    last: bool = False

    @property
    def path(self) -> str:
        return self.address.removeprefix("unix://")


class Attempt(Struct, frozen=True):
    source: str
    address: str
    answer: str

    def __str__(self) -> str:
        origin = f" ({self.source})" if self.source else ""
        return f"{self.address or 'no address'}{origin}: {self.answer}"


class NoEngine(EngineError):
    """No engine answers. The text is a sentence, then a line for each address that was tried."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        lines = "\n".join(f"  {attempt}" for attempt in attempts)
        super().__init__(
            f"no container engine answers; tried were\n{lines}" if lines else "no container engine answers"
        )
        self.attempts = list(attempts)


async def find_engine(
    environ: Mapping[str, str], home: Path, asked_address: str = "", *, connect: Connect = EngineClient.connect
) -> EngineClient:
    """The first engine that answers; `asked_address` is the value of the flag. Raises `NoEngine`."""
    attempts: list[Attempt] = []
    for candidate in await asyncio.to_thread(candidates, environ, home, asked_address, read_file):
        answer = candidate.problem
        if not answer:
            try:
                return await connect(candidate.path)
            except EngineError as error:
                answer = str(error)
        attempts.append(Attempt(candidate.source, candidate.address, answer))
    raise NoEngine(attempts)


def candidates(environ: Mapping[str, str], home: Path, asked_address: str, read: Read) -> list[Candidate]:
    """Where an engine may be, in the order in which it is looked for; no address twice."""
    found: list[Candidate] = []
    for candidate in _all(environ, home, asked_address, read):
        if candidate.problem or candidate.address not in {other.address for other in found}:
            found.append(candidate)
        if candidate.last:
            break
    return found


def _all(environ: Mapping[str, str], home: Path, asked_address: str, read: Read) -> list[Candidate]:
    for source, address in ((FLAG, asked_address), (VARIABLE, environ.get(VARIABLE, ""))):
        if address:
            return [_named(source, address, last=True)]
    variables = [
        _named(name, environ[name], last=False) for name in ("DOCKER_HOST", "CONTAINER_HOST") if environ.get(name)
    ]
    return [*variables, *_context(environ, home, read), *_usual(environ.get("XDG_RUNTIME_DIR", ""))]


def _usual(runtime: str) -> list[Candidate]:
    own = [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"] if runtime else []
    return [Candidate("", f"unix://{path}") for path in (*own, "/var/run/docker.sock", "/run/podman/podman.sock")]


def _named(source: str, address: str, *, last: bool) -> Candidate:
    """An address that somebody set. One of another machine ends the search: whoever set it means that machine."""
    if address.startswith("unix:///"):
        return Candidate(source, address, last=last)
    scheme = address.partition("://")[0] if "://" in address else ""
    if scheme in ("tcp", "ssh", "http", "https"):
        problem = f"only an engine on this machine can be used, by unix://PATH, and {source} names another by {scheme}"
        return Candidate(source, address, problem, last=True)
    return Candidate(source, address, f"{source} is not an address of the form unix:///PATH", last=last)


def _context(environ: Mapping[str, str], home: Path, read: Read) -> list[Candidate]:
    """Docker Desktop and others name their socket in a context."""
    folder = Path(environ.get("DOCKER_CONFIG") or home / ".docker")
    variable = environ.get("DOCKER_CONTEXT", "")
    name = variable or _text(_json(read(folder / "config.json")), "currentContext")
    if name in ("", "default"):
        return []
    source = "DOCKER_CONTEXT" if variable else f"Docker's context {name}"
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = _json(read(folder / "contexts" / "meta" / digest / "meta.json"))
    host = _text(_object(_object(meta, "Endpoints"), "docker"), "Host")
    if not host:
        return [Candidate(source, "", f"there is no context {name} with an address in {folder}")]
    named = _named(source, host, last=False)
    # A context chosen long ago for something else does not end the search; a variable was set for this command.
    return [named if variable or not named.last else Candidate(source, host, named.problem)]


def read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _json(data: bytes | None) -> Json:
    try:
        return decode(data, dict) if data else {}
    except msgspec.MsgspecError:
        return {}


def _object(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: Json, name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""
