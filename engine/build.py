"""Builds the tools from their pinned modules into a cache outside the tree. Entry points: `build`, `binary`,
`module_folder`.

Checksums are always verified: every module has a complete `go.sum`, and Go may not change it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import msgspec

from engine import EngineError
from engine.pins import Tool, tool_of

_QUIET_SECONDS = 30  # between two lines of progress where they cannot be overwritten
_KEPT_LINES = 15  # of the compiler's output, for the message of a build that failed
_PACKAGE_BYTES = 2 << 30  # memory that one compiler or linker may take

# Part of Go's output when the network kept a module from being downloaded.
_LOST = (
    "dial tcp",
    "i/o timeout",
    "TLS handshake timeout",
    "connection reset by peer",
    "connection refused",
    "unexpected EOF",
    "stream error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway Time",
)


def build(tools: Sequence[Tool], output: TextIO = sys.stderr) -> None:
    """Builds what is missing. After an interruption it resumes: Go caches what is compiled, and complete files stay."""
    missing = [(tool, name) for tool in tools for name in tool.binaries if not _path(tool, name).exists()]
    if not missing:
        print("the engine is built; nothing to do", file=output)
        return
    go = _go()
    with _alone(output):
        for number, (tool, name) in enumerate(missing, start=1):
            if not _path(tool, name).exists():  # an earlier build may have finished it
                progress = _Progress(f"[{number}/{len(missing)}] {name} {tool.version}", output)
                _build_one(go, tool, name, progress)
    for folder in sorted({_folder(tool) for tool, _ in missing}):
        print(f"built into {folder}", file=output)


def binary(name: str) -> Path:
    """The built file. Raises when it was not built, or built from other pins."""
    return binary_of(tool_of(name), name)


def binary_of(tool: Tool, name: str) -> Path:
    path = _path(tool, name)
    if not path.exists():
        raise EngineError(f"{name} is not built from the current pins; run `make engine`")
    return path


def module_folder(tool: Tool) -> Path:
    """Where Go keeps the sources of the tool, downloaded and verified again if they are gone."""
    command = [_go(), "mod", "download", "-json", tool.module]
    result = subprocess.run(command, cwd=tool.folder, env=_environment(tool), capture_output=True, check=False)
    if result.returncode != 0:
        raise EngineError(f"the sources of {tool.module} cannot be had: {result.stderr.decode().strip()}")
    found = msgspec.json.decode(result.stdout, type=dict[str, msgspec.Raw])
    return Path(msgspec.json.decode(found["Dir"], type=str))


def _folder(tool: Tool) -> Path:
    return _cache() / f"{tool.name}-{tool.key}"


def _path(tool: Tool, name: str) -> Path:
    return _folder(tool) / name


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "datum-compute" / "engine"


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise EngineError("Go is needed for the real engine, and there is no `go` on PATH; install Go 1.26 or newer")
    return go


def _environment(tool: Tool) -> Mapping[str, str]:
    # Without cgo the same files come out with and without a C compiler, and depend on no library of the machine.
    # The caller's flags could change what is built, or how it is checked.
    fixed = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    return os.environ | fixed | ({"GOTOOLCHAIN": tool.toolchain} if tool.toolchain else {})


def _build_one(go: str, tool: Tool, name: str, progress: "_Progress") -> None:
    target = _path(tool, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{name}.partial")
    command = [go, "build", "-v", "-mod=readonly", "-buildvcs=false", f"-ldflags={tool.linker_flags}"]
    command += [*_at_once(len(os.sched_getaffinity(0)), _memory()), "-o", str(partial), tool.binaries[name]]
    for last in (False, False, True):
        if _succeeds(command, tool, progress):
            partial.replace(target)
            progress.done()
            return
        if last or not progress.lost_connection():
            break
        progress.again()
    progress.failed()
    log = "\n".join(progress.last)
    raise EngineError(f"{name} could not be built; go build in {tool.folder} said:\n{log}")


def _succeeds(command: Sequence[str], tool: Tool, progress: "_Progress") -> bool:
    with subprocess.Popen(
        command, cwd=tool.folder, env=_environment(tool), stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            progress.line(line.rstrip())
    return process.returncode == 0


def _at_once(processors: int, memory: int) -> list[str]:
    """How many packages to compile at once, when memory does not allow one per processor."""
    affordable = max(1, memory // _PACKAGE_BYTES)
    return ["-p", str(affordable)] if affordable < processors else []


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def _alone(output: TextIO) -> Iterator[None]:
    """One build at a time: two would only compete for the processor."""
    _cache().mkdir(parents=True, exist_ok=True)
    with open(_cache() / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build is under way; waiting for it", file=output, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Progress:
    """One line per binary: overwritten on a terminal, repeated now and then elsewhere."""

    def __init__(self, title: str, output: TextIO) -> None:
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._title = title
        self._output = output
        self._started = self._reported = time.monotonic()
        self._compiled = 0
        self._show("", "\r" if output.isatty() else "\n")

    def line(self, text: str) -> None:
        self.last.append(text)
        if not text.startswith("go: "):
            self._compiled += 1
        if self._output.isatty():
            self._show(f"{self._compiled} packages", "\r")
        elif time.monotonic() - self._reported > _QUIET_SECONDS:
            self._reported = time.monotonic()
            self._show(f"{self._compiled} packages", "\n")

    def done(self) -> None:
        self._show("done", "\n")

    def failed(self) -> None:
        self._show("failed", "\n")

    def again(self) -> None:
        """Starts again; finished downloads and packages stay."""
        self._show("the connection was lost; trying again", "\n")
        self.last.clear()

    def lost_connection(self) -> bool:
        """Whether the output ends with an interrupted download, which a retry may fix."""
        return any(sign in line for line in self.last for sign in _LOST)

    def _show(self, state: str, end: str) -> None:
        seconds = f"{time.monotonic() - self._started:4.0f} s" if state else ""
        clear = "\033[K" if self._output.isatty() else ""
        print(f"{self._title:<48} {seconds:>6}  {state}{clear}".rstrip(), end=end, file=self._output, flush=True)
