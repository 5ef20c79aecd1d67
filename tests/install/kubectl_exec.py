"""`kubectl exec deploy/compute-manager` where a replica is a process. Entry point: `main`."""

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path


def main(replicas: Path, arguments: Sequence[str]) -> int:
    words = list(arguments)
    end = words.index("--")
    assert "deploy/compute-manager" in words[:end]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(replicas / words[words.index("--context") + 1] / "exec.sock"))
        connection.sendall(json.dumps(words[end + 1 :]).encode() + b"\n")
        code, output = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))
    print(output, end="")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
