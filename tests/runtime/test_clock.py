from datetime import timedelta

from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.simulation import Simulation


async def test_a_shifted_clock_runs_at_the_same_pace_as_the_clock_it_differs_from(simulation: Simulation) -> None:
    clock = ShiftedClock(simulation, 301)
    assert clock.now() - simulation.now() == timedelta(seconds=301)
    await simulation.advance(60)
    assert clock.now() - simulation.now() == timedelta(seconds=301)
    clock.ahead = -5
    assert clock.now() - simulation.now() == timedelta(seconds=-5)
