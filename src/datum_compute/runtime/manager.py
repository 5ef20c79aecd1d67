"""Runs controllers over a fleet until it is cancelled. Entry point: `Manager`."""

import asyncio
from collections.abc import Sequence

from datum_compute.runtime.controller import Controller, Reconciler
from datum_compute.runtime.fleet import Fleet


class Manager:
    """Everything one process runs. Controllers join the fleet before it starts, so that no plane is met unprepared."""

    def __init__(self, fleet: Fleet, reconcilers: Sequence[Reconciler]) -> None:
        self.fleet = fleet
        self.controllers = {reconciler.name: Controller(reconciler, fleet) for reconciler in reconcilers}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.fleet.run(), name="fleet")
            for controller in self.controllers.values():
                tasks.create_task(controller.run(), name=controller.name)
