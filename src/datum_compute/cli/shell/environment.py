"""The environment of a command: program name, variables, streams and time. Entry point: `Environment`.

Everything that a test must be able to set is here; nothing else in the CLI looks at the process itself.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TextIO

from datum_compute.cli.shell.failures import Failure

if TYPE_CHECKING:
    from datum_compute.cli.talk.watching import Watching
    from datum_compute.kube.access.kubeconfig import Endpoint
    from datum_compute.kube.blocking import BlockingTransport
    from datum_compute.kube.tracing import Tracer


class Clock(Protocol):
    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def alarm(self, seconds: float, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Runs an action on another thread unless the context is left within so many seconds."""
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
    """`columns` is the width of the terminal, if there is one. `directory` is the base of relative file names. Tests
    use `watching` to replace waiting for changes, `connect` to replace connections, `browse` to replace the browser,
    and `tracer` and `random_bytes` to know the spans of traces and their ids."""

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
        tracer: "Tracer | None" = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        browse: Callable[[str], object] | None = None,
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
        self.tracer = tracer
        self.random_bytes = random_bytes
        self.browse = browse or self._browse

    def _browse(self, url: str) -> None:
        """Opens a page where there is a screen to show it: a browser in this terminal would be a surprise."""
        if sys.platform.startswith("linux") and not (self.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}):
            return
        import webbrowser

        webbrowser.open(url)


def put(stream: TextIO, text: str) -> None:
    """Writes and flushes; raises a `Failure` if the stream cannot be written to, for example on a full disk."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"the output cannot be written: {(error.strerror or 'it is closed').lower()}") from None


def program_name(argv0: str, environ: Mapping[str, str]) -> str:
    """How the user calls this program. A plugin that datumctl manages is stored under the bare name `compute`, and gets
    no variables when it is asked for help."""
    *directories, name = argv0.replace(os.sep, "/").split("/")
    is_managed = directories[-2:] == [".datumctl", "plugins"] or "DATUM_PLUGIN_API_VERSION" in environ
    return "datumctl compute" if is_managed or name.startswith(("datumctl-", "milo-")) else "compute"
