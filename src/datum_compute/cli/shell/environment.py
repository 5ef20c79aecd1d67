"""What a command finds around it: program name, environment, streams and time. Entry point: `Environment`.

Everything a test must be able to set is here, and nothing else of the program looks at the process itself.
"""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol, TextIO

from datum_compute.cli.shell.failures import Failure

if TYPE_CHECKING:
    from datum_compute.cli.talk.watching import Watching
    from datum_compute.kube.access.kubeconfig import Endpoint
    from datum_compute.kube.blocking import BlockingTransport


class Clock(Protocol):
    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def alarm(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Does something from another thread when so many seconds have passed before it is left."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def alarm(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        from datum_compute.kube.blocking import alarm

        return alarm(seconds, action)


class Environment:
    """`columns` is the width of the terminal when there is one; `watching` replaces how changes are waited for, and
    `connect` how a server is reached; `directory` is where file names that are not absolute begin."""

    def __init__(
        self,
        *,
        program: str,
        environ: Mapping[str, str],
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        columns: int | None = None,
        clock: Clock | None = None,
        watching: "Watching | None" = None,
        connect: "Callable[[Endpoint], BlockingTransport] | None" = None,
        directory: str = "",
    ) -> None:
        self.program = program
        self.environ = environ
        self.stdin = stdin or sys.stdin
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr
        self.columns = columns
        self.clock: Clock = clock or SystemClock()
        self.watching = watching
        self.connect = connect
        self.directory = directory


def put(stream: TextIO, text: str) -> None:
    """Writes at once. A stream that takes nothing, a full disk for one, is told in words."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"the output cannot be written: {(error.strerror or 'it is closed').lower()}") from None


def program_name(argv0: str, environ: Mapping[str, str]) -> str:
    """How the user calls us; a plugin that datumctl manages is stored under the bare name `compute`, and gets no
    environment when it is asked for help."""
    path = PurePath(argv0)
    managed = path.parts[-3:-1] == (".datumctl", "plugins") or "DATUM_PLUGIN_API_VERSION" in environ
    as_plugin = managed or path.name.startswith(("datumctl-", "milo-"))
    return "datumctl compute" if as_plugin else "compute"
