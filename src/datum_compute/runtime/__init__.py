"""The loop: caches, queues and controllers over planes that come and go. Knows nothing of what it controls.

What is exported here is for those who write controllers and is described in docs/runtime.md; `testing` is for their
tests, `logs`, `asgi` and `bodies` are for their programs. Every other module may change at any time.
"""

from datum_compute.runtime.clock import Clock, SystemClock
from datum_compute.runtime.controller import Controller, Reconciler, Source, controller_of, itself
from datum_compute.runtime.fleet import Fleet, NotEngaged
from datum_compute.runtime.health import Probes, all_tried, away, engaged, latched
from datum_compute.runtime.informer import Change, Informer
from datum_compute.runtime.leases import Election, LeaseLost
from datum_compute.runtime.manager import Manager
from datum_compute.runtime.passes import Events, Handle, Pass
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.problems import Problem, Problems
from datum_compute.runtime.requests import Drop, Request, Unfinished
from datum_compute.runtime.selection import Selection
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
