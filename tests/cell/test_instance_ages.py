"""The age of an Instance does not depend on the difference between the clocks of two machines."""

from datetime import timedelta

import pytest

from datum_compute.api.instance import Instance
from datum_compute.cell.instance_ages import InstanceAges
from datum_compute.kube.meta import decode, encode, timestamp
from datum_compute.runtime.caches.informer import Change
from datum_compute.runtime.testing.clock import ShiftedClock
from datum_compute.runtime.testing.simulation import Simulation


def instance(simulation: Simulation, uid: str = "1") -> Instance:
    """Created now, by the server's clock."""
    created = timestamp(simulation.now())
    metadata = {"name": "web-0", "namespace": "ns", "uid": uid, "creationTimestamp": created}
    return decode(
        encode({"metadata": metadata, "spec": {"runtime": {"resources": {}}, "networkInterfaces": []}}), Instance
    )


def seconds(age: timedelta) -> float:
    return age.total_seconds()


@pytest.mark.parametrize("ahead", [0, 301, 86_400, -301, -86_400])
async def test_an_instance_that_appeared_while_we_watched_ages_by_loop_time(
    simulation: Simulation, ahead: float
) -> None:
    ages, watched = InstanceAges(ShiftedClock(simulation, ahead)), instance(simulation)
    ages.note(Change(None, watched))
    assert seconds(ages.of(watched)) == 0
    await simulation.advance(100)
    assert seconds(ages.of(watched)) == pytest.approx(100)


@pytest.mark.parametrize(("ahead", "expected"), [(0, 50), (301, 351), (-40, 10), (-301, 0), (-86_400, 0)])
async def test_an_instance_that_existed_before_has_no_negative_age_and_ages_by_loop_time(
    simulation: Simulation, ahead: float, expected: float
) -> None:
    watched = instance(simulation)
    await simulation.advance(50)
    ages = InstanceAges(ShiftedClock(simulation, ahead))
    ages.note(Change(None, watched, initial=True))
    assert seconds(ages.of(watched)) == pytest.approx(expected)
    await simulation.advance(100)
    assert seconds(ages.of(watched)) == pytest.approx(expected + 100)


async def test_an_instance_that_is_gone_is_forgotten_and_another_of_its_name_is_new(simulation: Simulation) -> None:
    ages, first = InstanceAges(simulation), instance(simulation, "1")
    ages.note(Change(None, first))
    await simulation.advance(100)
    ages.note(Change(first, None))
    second = instance(simulation, "2")
    ages.note(Change(None, second))
    assert seconds(ages.of(second)) == 0
