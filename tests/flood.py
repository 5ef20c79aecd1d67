"""Very many clients that never get to the point, from a process of their own. Entry points: `flooding`, `observe`.

A quarter of them says nothing, a quarter stops in the middle of the TLS handshake (without TLS: of the request line), a
quarter never ends its header, and a quarter never ends its body. Where they can, they send a byte now and then.
"""

import contextlib
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from tests.conftest import LONG

GRANTED_BYTES = 50_000_000
ANSWER_SECONDS = 2.0 if LONG else 10.0  # in a short run other tests keep the machine busy

_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"  # the first bytes of one


class Target(Struct, frozen=True):
    port: int
    tls: bool
    path: str = "/"


class Observed(Struct):
    grown: int = 0  # bytes, at the most
    slowest: float = 0.0  # seconds for an answer


@contextmanager
def flooding(targets: Sequence[Target], count: int) -> Iterator[Callable[[], bool]]:
    """`count` connections to each of the targets. Yields whether all of them have been opened by now."""
    with ExitStack() as stack:
        clients = [stack.enter_context(_client(target, count)) for target in targets]
        yield lambda: all(opened.is_set() for opened in clients)


@contextmanager
def _client(target: Target, count: int) -> Iterator[threading.Event]:
    command = [sys.executable, "-m", "tests.flood", str(target.port), str(int(target.tls)), target.path, str(count)]
    opened = threading.Event()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        listening = threading.Thread(target=_listen, args=(process, opened))
        listening.start()
        try:
            yield opened
        finally:
            process.stdin.close()
            listening.join()


def _listen(process: "subprocess.Popen[bytes]", opened: threading.Event) -> None:
    assert process.stdout is not None
    if process.stdout.readline():
        opened.set()
    process.stdout.read()


def observe(pid: int, ask: Callable[[], None], finished: Callable[[], bool]) -> Observed:
    """Asks again and again until the flood has risen, and a few times afterwards."""
    observed, before, rounds = Observed(), resident(pid), 0
    while rounds < 5:
        rounds += finished()
        began = time.monotonic()
        ask()
        observed.slowest = max(observed.slowest, time.monotonic() - began)
        observed.grown = max(observed.grown, resident(pid) - before)
    return observed


def resident(pid: int) -> int:
    """Bytes of memory that the process really has."""
    return 1024 * int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)]))


# In the process


def _open(target: Target, number: int, tls: ssl.SSLContext) -> socket.socket:
    kind = ("bare", "hello", "head", "body")[number % 4]
    connection = socket.create_connection(("127.0.0.1", target.port), timeout=20)
    if kind == "bare":
        return connection
    if kind == "hello":
        connection.sendall(_HELLO if target.tls else b"GET /")
        return connection
    if target.tls:
        connection = tls.wrap_socket(connection)
    rest = "Content-Length: 100000\r\n\r\n{" if kind == "body" else "X-Slow: "
    connection.sendall(f"POST {target.path} HTTP/1.1\r\nHost: localhost\r\n{rest}".encode())
    return connection


def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _main(target: Target, count: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections, tls = list[socket.socket](), _tls()
    for number in range(count):
        with contextlib.suppress(OSError):  # displaced in the meantime
            connections.append(_open(target, number, tls))
    print("open", flush=True)
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    while not over.is_set():
        for number, connection in enumerate(connections):
            if number % 4 and not over.is_set():
                with contextlib.suppress(OSError):
                    connection.sendall(b"a")
        over.wait(1)


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    _main(Target(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3]), int(sys.argv[4]))
