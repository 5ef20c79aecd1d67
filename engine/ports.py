"""Ports on loopback that stay free while their process is stopped. Entry points: `choose`, `free`."""

import random
import socket
from itertools import islice
from pathlib import Path

from engine import EngineError

_PRIVILEGED = 1024
_FIRST = 20000
_ENOUGH = 5000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def choose(count: int, taken: frozenset[int] = frozenset()) -> list[int]:
    """Free ports below those that the kernel gives to outgoing connections.

    From that range one of our own clients could take the port of a server that is down, or even connect to itself.
    """
    candidates = [port for port in _range() if port not in taken]
    random.shuffle(candidates)
    chosen = list(islice(filter(free, candidates), count))
    if len(chosen) < count:
        raise EngineError(f"{count} free ports on loopback are needed, and there are only {len(chosen)}")
    return chosen


def _range() -> range:
    lowest = int(_EPHEMERAL.read_text("ascii").split()[0])
    first = min(_FIRST, lowest - _ENOUGH)
    # Where almost all are given to outgoing connections, there is no better choice than one of those.
    return range(first, lowest) if first > _PRIVILEGED else range(_FIRST, 65536)


def free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that was closed a moment ago does not hold its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
