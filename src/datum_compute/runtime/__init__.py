"""Caches, queues and controllers over planes that come and go.

The names exported here are stable and documented in docs/runtime.md. So are `testing`, for tests of controllers, and
`telemetry.logs`, `serving.asgi` and `serving.bodies`, for programs. Every other module may change at any time.
"""

from datum_compute.runtime.caches.informer import Change, Informer
from datum_compute.runtime.caches.selection import Selection
from datum_compute.runtime.clock import Clock, SystemClock
from datum_compute.runtime.controller import Controller, Reconciler
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.leases import Election, LeaseLost
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.passes import Events, Handle, Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.problems import Problem, Problems
from datum_compute.runtime.requests import Drop, Request, Unfinished
from datum_compute.runtime.sources import Scope, Source, controller_of, itself
from datum_compute.runtime.telemetry.health import Probes, all_tried, away, engaged, latched
from datum_compute.runtime.writes import Writer, Writes

__all__ = [
    "Change",
    "Clock",
    "Controller",
    "Drop",
    "Election",
    "Events",
    "Fleet",
    "Handle",
    "Informer",
    "LeaseLost",
    "Manager",
    "NotEngaged",
    "Pass",
    "Plane",
    "Probes",
    "Problem",
    "Problems",
    "Reconciler",
    "Request",
    "Scope",
    "Selection",
    "Source",
    "SystemClock",
    "Unfinished",
    "Writer",
    "Writes",
    "all_tried",
    "away",
    "controller_of",
    "engaged",
    "itself",
    "latched",
]
