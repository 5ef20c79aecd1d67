"""One Pod as a process: the program of a container with the paths and ports of its own that a Pod has. Entry: `main`.

Runs in namespaces that `unshare` made, where it may mount folders and listen on any port without anybody noticing.
Nothing leaves or enters but through sockets in files: `planes/<port>.sock` leads to an API server on the machine's
loopback, `<port>.sock` to a port of the Pod, and `exec.sock` runs a command as `kubectl exec` does.
"""

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_SET_FLAGS, _IS_UP = 0x8914, 0x41
_HOST = "127.0.0.1"
_TIMEOUT_SECONDS = 120


def main(folder: Path) -> int:
    """`folder` has `pod.json` with the command, the environment, the mounts and the ports of the Pod."""
    pod = json.loads((folder / "pod.json").read_text("utf-8"))
    _bring_loopback_up()
    _enter(folder / "root", {PurePosixPath(path): Path(source) for path, source in pod["mounts"].items()})
    return asyncio.run(_run(folder, pod))


async def _run(folder: Path, pod: Mapping[str, Any]) -> int:
    for port in pod["planes"]:
        await _relay_from_port(port, folder.parent / "planes" / f"{port}.sock")
    for port in pod["ports"]:
        await _relay_to_port(folder / f"{port}.sock", port)
    process = await asyncio.create_subprocess_exec(
        *pod["command"], env=pod["environment"], cwd="/", stdin=asyncio.subprocess.DEVNULL
    )

    async def execute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A line with the command, answered by its exit code and what it printed."""
        command = json.loads(await reader.readline())
        done = await asyncio.create_subprocess_exec(
            *command,
            env=pod["environment"],
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(done.communicate(), _TIMEOUT_SECONDS)
        writer.write(json.dumps([done.returncode, output.decode()]).encode())
        await writer.drain()
        writer.close()

    await asyncio.start_unix_server(execute, folder / "exec.sock")
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, process.send_signal, signal.SIGTERM)
    loop.add_reader(sys.stdin.fileno(), os._exit, 1)  # its other end closes when the test ends, however it ends
    return await process.wait()


async def _relay_from_port(port: int, target: Path) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await relay(reader, writer, *await asyncio.open_unix_connection(target))
        writer.close()

    await asyncio.start_server(connected, _HOST, port)


async def _relay_to_port(path: Path, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await relay(reader, writer, *await asyncio.open_connection(_HOST, port))
        writer.close()

    await asyncio.start_unix_server(connected, path)


async def relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    there: asyncio.StreamReader,
    back: asyncio.StreamWriter,
) -> None:
    """Until both sides have ended."""
    try:
        await asyncio.gather(_pump(reader, back), _pump(there, writer))
    finally:
        back.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _IS_UP))


def _enter(root: Path, mounts: Mapping[PurePosixPath, Path]) -> None:
    """Changes to a root like that of the machine, in which each path of `mounts` is the folder that it names."""
    _mount("none", "/", _RECURSIVE | _PRIVATE)
    root.mkdir()
    _mount("tmpfs", str(root), 0, "tmpfs")
    resolved = {PurePosixPath(os.path.realpath(path)): source for path, source in mounts.items()}
    _copy(PurePosixPath("/"), root, list(resolved))
    for path, source in resolved.items():
        place = root / path.relative_to("/")
        place.mkdir(parents=True, exist_ok=True)
        _mount(str(source), str(place), _BIND)
    os.chroot(root)
    os.chdir("/")


def _copy(folder: PurePosixPath, place: Path, wanted: Sequence[PurePosixPath]) -> None:
    """The content of a folder, down to the mount points in it; bound, not copied, where there are none."""
    for entry in os.scandir(folder):
        path, copy = folder / entry.name, place / entry.name
        if path in wanted or Path(path) == place:
            continue
        if entry.is_symlink():
            copy.symlink_to(os.readlink(path))
        elif entry.is_dir():
            copy.mkdir()
            if any(path in point.parents for point in wanted):
                _copy(path, copy, wanted)
            else:
                _mount(str(path), str(copy), _BIND | _RECURSIVE)
        else:
            copy.touch()
            _mount(str(path), str(copy), _BIND)


_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, flags: int, kind: str = "none") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None):
        number = ctypes.get_errno()
        raise OSError(number, f"{source} cannot be mounted on {target}: {os.strerror(number)}")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
