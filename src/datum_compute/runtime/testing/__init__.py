"""Tests of controllers: an event loop with simulated time, a server in memory, and faults between the two.

Entry points: `Simulation`, `Server`, `Faults`, `ShiftedClock`, `background`.
"""

from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.faults import Faults, calls, reads, watches, writes
from datum_compute.runtime.testing.server import Server, background
from datum_compute.runtime.testing.simulation import Simulation

__all__ = ["Faults", "Server", "ShiftedClock", "Simulation", "background", "calls", "reads", "watches", "writes"]
