"""The spans of passes. Entry points: `begin`, `count_write`.

A pass that writes something is a span, whose parent is named by the object that the pass is about. Most passes write
nothing, and leave no trace.
"""

from contextvars import ContextVar
from datetime import datetime

from datum_compute.kube.meta import KubeObject
from datum_compute.kube.tracing import Attributes, Tracer, of
from datum_compute.runtime.requests import Request


class PassTrace:
    """Counts the writes of one pass, in whatever task they are made, and on which planes."""

    def __init__(self, controller: str, request: Request, number: int, began: datetime) -> None:
        self._controller = controller
        self._request = request
        self._number = number
        self._began = began
        self._writes = 0
        self._planes: dict[str, None] = {}  # in the order of the first write

    def count(self, plane: str) -> None:
        self._writes += 1
        self._planes[plane] = None

    def end(self, tracer: Tracer, subject: KubeObject | None, at: datetime, error: Exception | None) -> None:
        if self._writes:
            kind = type(error).__name__ if error is not None else ""
            tracer.begin(self._controller, of(subject), self._began).end(at, self._attributes(), kind)

    def _attributes(self) -> Attributes:
        """Named as in log lines, so that the number of a pass finds its lines."""
        return {
            "controller": self._controller,
            "plane": self._request.plane,
            "namespace": self._request.namespace,
            "name": self._request.name,
            "pass": self._number,
            "writes": self._writes,
            "written_planes": tuple(self._planes),
        }


_current: ContextVar[PassTrace | None] = ContextVar("pass_trace", default=None)


def begin(controller: str, request: Request, number: int, at: datetime) -> PassTrace:
    """From now on, every write of this task, and of those that it starts, belongs to this pass."""
    trace = PassTrace(controller, request, number, at)
    _current.set(trace)
    return trace


def count_write(plane: str) -> None:
    if (trace := _current.get()) is not None:
        trace.count(plane)
