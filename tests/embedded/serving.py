"""An engine over HTTPS in a process that can be killed. Entry point: `Process`."""

import asyncio
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.embedded.storage import store
from datum_compute.embedded.storage.log import Log
from datum_compute.embedded.storage.writer import WriterThread
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.errors import AlreadyExists
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.local.engine import compute_engine
from tests.https import PLANES


class Process:
    """A process that is ready once constructed, and killed at the end of its context.

    `retained` is how many rows of history its log keeps, `endpoint` leads to `demo`.
    """

    def __init__(self, directory: Path, *, retained: int = store.RETAINED_ROWS) -> None:
        command = [sys.executable, "-m", "tests.embedded.serving", str(directory), str(retained)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self.endpoint = msgspec.json.decode(self._output.readline(), type=Endpoint)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()
        self._output.close()

    def limit_files(self, size: int) -> None:
        """Keeps its files from growing beyond this size, as on a full disk; -1 removes the limit."""
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def serve(directory: Path, retained: int) -> None:
    store.RETAINED_ROWS, store._LONGEST, store._STEP = retained, 2 * retained, max(retained // 10, 1)
    engine = compute_engine(Log(directory / "log.db"), writer=WriterThread)
    for plane, role in PLANES.items():
        engine.serve(plane, role)
    server = HttpsServer(engine, Credentials.ensure(directory / "credentials"))
    await server.start()
    with suppress(AlreadyExists):  # from an earlier life
        await engine.client("demo").create(NAMESPACE, NAMESPACE.body("default"))
    os.write(1, msgspec.json.encode(server.endpoint("demo")) + b"\n")
    await engine.run()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
