"""Ports on loopback that stay free while their process is away. Entry points: `choose`, `free`."""

import random
import socket
from pathlib import Path

_LOWEST = 20000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def choose(count: int, taken: frozenset[int] = frozenset()) -> list[int]:
    """Free ports below those that the kernel gives to outgoing connections.

    From that range one of our own clients could take the port of a server that is down, or even connect to itself.
    """
    highest = int(_EPHEMERAL.read_text("ascii").split()[0])
    candidates = [port for port in range(min(_LOWEST, highest - 5000), highest) if port not in taken]
    random.shuffle(candidates)
    chosen: list[int] = []
    for port in candidates:
        if len(chosen) == count:
            break
        if free(port):
            chosen.append(port)
    return chosen


def free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that was closed a moment ago does not hold its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
