"""What a reconciler works with during one pass. Entry points: `Pass`, `Handle`."""

from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct

from datum_compute.kube.client import Client
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.runtime.caches.informer import Informer
from datum_compute.runtime.caches.selection import EVERYTHING, Selection
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.events import Recorder
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request
from datum_compute.runtime.writes import Writer

T = TypeVar("T", bound=KubeObject)


class Signature(Struct, frozen=True):
    """Identifies a controller: writes are counted under `controller`, events show `component`."""

    controller: str
    component: str
    clock: Clock


class Events:
    """The events of one controller on one plane. Record transitions, not every pass that finds a state."""

    def __init__(self, recorder: Recorder, signature: Signature) -> None:
        self._recorder = recorder
        self._signature = signature

    def warning(self, object_: KubeObject, reason: str, message: str) -> None:
        self._recorder.warning(self._signature.component, object_, reason, message, now=self._signature.clock.now())

    def normal(self, object_: KubeObject, reason: str, message: str) -> None:
        self._recorder.normal(self._signature.component, object_, reason, message, now=self._signature.clock.now())


class Handle:
    """A plane as one controller works on it: its caches and client, and writes and events in the controller's name."""

    def __init__(self, plane: Plane, signature: Signature) -> None:
        self.plane = plane
        self._signature = signature

    @property
    def name(self) -> str:
        return self.plane.name

    @property
    def client(self) -> Client:
        """For reads that must not come from a cache."""
        return self.plane.client

    @cached_property
    def write(self) -> Writer:
        return self.plane.writer(self._signature.controller)

    @cached_property
    def events(self) -> Events:
        return Events(self.plane.events, self._signature)

    def informer(self, kind: Kind[T], selection: Selection = EVERYTHING) -> Informer[T]:
        return self.plane.informer(kind, selection)

    def serves(self, kind: Kind[Any]) -> bool:
        return self.plane.serves(kind)

    def now(self) -> datetime:
        """Wall time, for timestamps in objects; durations are asyncio's."""
        return self._signature.clock.now()


class Pass(Handle):
    """One run of a controller over one request, and its handle on the plane that the request names.

    However it ends, the floor it declared is honoured.
    """

    def __init__(self, request: Request, fleet: Fleet, signature: Signature, since: float = 0.0) -> None:
        super().__init__(fleet.plane(request.plane), signature)
        self.request = request
        self.since = since  # loop time of the oldest change that led to this pass
        self.floor: float | None = None
        self.subject: KubeObject | None = None  # the object that the pass is about, as it was first read
        self._fleet = fleet

    def get(self, kind: Kind[T], selection: Selection = EVERYTHING) -> T | None:
        """The object that the request names, from the cache."""
        found = self.plane.informer(kind, selection).get(self.request.namespace, self.request.name)
        self.subject = self.subject or found
        return found

    def about(self, object_: KubeObject) -> None:
        """Names the object that the pass is about, where the one that the request names is gone."""
        self.subject = self.subject or object_

    def on(self, where: Plane | str) -> Handle:
        """The handle on another plane: this one, or the only one of a role.

        Raises `NotEngaged` when no plane of the role is engaged; the request then runs again as soon as one is.
        """
        return Handle(self._fleet.only(where) if isinstance(where, str) else where, self._signature)

    def no_later_than(self, seconds: float | None) -> None:
        """Runs the request again after at most this long, whatever happens in the rest of the pass."""
        if seconds is not None:
            self.floor = seconds if self.floor is None else min(self.floor, seconds)
