"""The trace that a command begins or continues. Entry point: `CommandTrace`.

It is noted on the workload in the write that changes the spec, for controllers on every plane to continue. Where nobody
asked for a trace, nothing is noted and nothing is loaded.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from datum_compute import __version__
from datum_compute.cli.shell.environment import Environment
from datum_compute.kube.meta import Json
from datum_compute.kube.tracing import (
    VARIABLE,
    Span,
    Traceparent,
    Tracer,
    TracingUnavailable,
    is_exported,
    marked,
    open_tracer,
)

SEND_SECONDS = 1.0


class CommandTrace:
    """A command that changes nothing has no trace. `warn` prints one line."""

    def __init__(self, environment: Environment, command: str, began: datetime, warn: Callable[[str], None]) -> None:
        self._environment = environment
        self._command = command
        self._warn = warn
        self._began = began
        self._tracer: Tracer | None = None
        self._span: Span | None = None
        self._noted: list[Traceparent | None] = []
        self._attributes: dict[str, str | int] = {}

    def noted_on(self, body: Json, project: str) -> Json:
        """An object that names this trace; without one, it no longer names the trace of an earlier change."""
        metadata = body["metadata"]
        self._attributes = {"plane": project, "namespace": metadata.get("namespace", ""), "name": metadata["name"]}
        if not self._noted:
            self._noted.append(self._begin())
        return marked(body, self._noted[0])

    def _begin(self) -> Traceparent | None:
        """The span of this command if it is exported, else the span of whoever runs it."""
        environ = self._environment.environ
        parent = Traceparent.parse(environ.get(VARIABLE))
        if not is_exported(environ):
            return parent
        try:
            self._tracer = self._open_tracer()
        except TracingUnavailable as error:
            self._warn(f"  warning: no trace is sent: {error}")
            return parent or Traceparent.new(self._environment.random_bytes)
        self._span = self._tracer.begin(f"compute {self._command}", parent, self._began)
        return self._span.traceparent

    def _open_tracer(self) -> Tracer:
        environment = self._environment
        if environment.tracer is not None:
            return environment.tracer
        tracer = open_tracer(environment.environ, "compute", __version__, environment.random_bytes)
        assert tracer is not None
        return tracer

    def end(self, error: BaseException | None) -> None:
        """Sends the span of this command, if it has one; a collector that does not answer is not waited for."""
        if self._span is None or self._tracer is None:
            return
        kind = type(error.__cause__ or error).__name__ if isinstance(error, Exception) else ""
        with suppress(Exception):  # whatever is wrong with the trace, the command has done its work
            self._span.end(self._environment.clock.now(), {"command": self._command, **self._attributes}, kind)
            if self._tracer.close(SEND_SECONDS):
                return
        self._warn("  warning: the trace of this command could not be sent")
