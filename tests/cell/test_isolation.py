"""A slow plane delays only work that needs it: a slow hub delays nothing in the cell, and one project's slow quota
system no claims of another project."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.names import claim_name
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.kube import conditions
from datum_compute.kube.errors import Conflict, NotFound
from datum_compute.kube.meta import as_dict
from datum_compute.kube.transport import Call
from datum_compute.operator.controllers import cell_controllers
from datum_compute.runtime.caches.informer import Change
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.faults import watches
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import FINALIZERS, GROUP, LABELS, SPEC, Site

INSTANCES = 200
SLOW = 9.0  # just below the time after which a call is given up
DEMO, OTHER = "ns-1", "ns-2"


def _calls(call: Call) -> bool:
    return not watches(call)


class Busy(Site):
    """A site whose provider reports at once, and that records when each Instance was granted and ready."""

    def __init__(self, simulation: Simulation, *, quota: bool, projects: Sequence[str] = ("demo", "other")) -> None:
        def build(fleet: Fleet) -> Sequence[Reconciler]:
            return cell_controllers(fleet, simulation, cell_name, quota=quota)

        super().__init__(simulation, build, projects)
        self.reported: dict[tuple[str, str], float] = {}
        self.ready: dict[tuple[str, str], float] = {}
        self._reports: set[asyncio.Task[None]] = set()

    def follow(self) -> None:
        self.fleet.plane("cell").informer(INSTANCE).subscribe(self._note)

    def _note(self, change: Change[Instance]) -> None:
        instance = change.after
        if instance is None:
            return
        key = (instance.namespace, instance.name)
        if conditions.is_true(conditions.of(instance), "Ready"):
            self.ready.setdefault(key, self.simulation.time())
        is_open = instance.spec.controller is not None and not instance.spec.controller.scheduling_gates
        if is_open and not instance.metadata.deleting and key not in self.reported:
            self.reported[key] = self.simulation.time()
            report = asyncio.create_task(self._report(*key))
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)

    async def _report(self, namespace: str, name: str) -> None:
        instance = await self.cell.get(INSTANCE, name, namespace)
        now = self.simulation.now()
        wanted = [
            conditions.condition(type_, True, type_, "runs", generation=1, now=now)
            for type_ in ("Programmed", "Available")
        ]
        after = conditions.to_json(conditions.updated(conditions.of(instance), wanted))
        try:
            await self.cell.replace_status(INSTANCE, instance, as_dict(instance.status_json) | {"conditions": after})
        except Conflict:
            await self._report(namespace, name)

    async def make(self, namespace: str, number: int, prefix: str = "web") -> list[str]:
        names = [f"{prefix}-{ordinal}" for ordinal in range(number)]
        for ordinal, name in enumerate(names):
            labels = LABELS | {f"{GROUP}/instance-index": str(ordinal)}
            body = INSTANCE.body(name, namespace, labels=labels, finalizers=list(FINALIZERS))
            controller = {"controller": {"templateHash": "0", "schedulingGates": [{"name": "Quota"}]}}
            await self.cell.create(INSTANCE, body | {"spec": SPEC | controller})
        return names

    async def granted_at(self, project: str, names: Sequence[str]) -> dict[str, float]:
        """Grants each claim as soon as it exists, and records when."""
        granted: dict[str, float] = {}

        async def all_granted() -> bool:
            for name in set(names) - granted.keys():
                try:
                    claim = await self.projects[project].get(RESOURCE_CLAIM, claim_name(name), "default")
                except NotFound:
                    continue
                verdict = conditions.condition(
                    "Granted", True, "QuotaAvailable", "", generation=1, now=self.simulation.now()
                )
                status = {"conditions": conditions.to_json([verdict])}
                await self.projects[project].replace_status(RESOURCE_CLAIM, claim, status)
                granted[name] = self.simulation.time()
            return len(granted) == len(names)

        await self.simulation.until(all_granted, within=3600)
        return granted


@pytest.fixture
def free(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Busy]:
    """Without quota."""
    site = Busy(simulation, quota=False)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


@pytest.fixture
def metered(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Busy]:
    site = Busy(simulation, quota=True)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


async def test_a_slow_hub_does_not_delay_what_happens_in_the_cell(free: Busy) -> None:
    await free.hub_deployment()
    free.follow()
    free.faults["hub"].slow_down(SLOW, _calls)
    names = await free.make(DEMO, INSTANCES)
    began = free.simulation.time()
    await free.advance(1)
    assert len(free.ready) == len(names)
    assert max(free.ready.values()) - began < 1

    copies = await free.copies()
    assert len(copies) < len(names)  # the hub really is behind
    for name in names:
        await free.cell.delete(INSTANCE, name, DEMO)
    await free.advance(1)
    assert await free.instances() == []


async def test_a_slow_quota_system_of_one_project_does_not_delay_the_claims_of_another(metered: Busy) -> None:
    metered.follow()
    metered.faults["demo"].slow_down(SLOW, _calls)
    await metered.make(DEMO, INSTANCES)
    await metered.advance(5)  # all concurrent passes wait for it
    began = metered.simulation.time()
    names = await metered.make(OTHER, 20)
    granted = await metered.granted_at("other", names)
    assert max(granted.values()) - began < 1
    await metered.advance(1)
    ready = [metered.ready.get((OTHER, name), float("inf")) for name in names]
    assert max(ready) - max(granted.values()) < 1


async def test_a_slow_quota_system_does_not_delay_what_it_has_granted(metered: Busy) -> None:
    names = await metered.make(DEMO, 20)
    await metered.granted_at("demo", names)
    await metered.advance(1)
    metered.faults["demo"].slow_down(SLOW, _calls)
    await metered.make(DEMO, INSTANCES, "more")
    await metered.advance(5)
    metered.follow()  # now the provider reports that they run
    began = metered.simulation.time()
    await metered.advance(1)
    ready = [metered.ready.get((DEMO, name), float("inf")) for name in names]
    assert max(ready) - began < 1


async def test_however_many_quota_systems_are_slow_another_project_is_not_delayed(simulation: Simulation) -> None:
    slow = [f"slow-{number}" for number in range(24)]
    site = Busy(simulation, quota=True, projects=["other", *slow])
    await site.start()
    for number, project in enumerate(slow, 2):
        site.faults[project].slow_down(SLOW, _calls)
        await site.make(f"ns-{number}", 6)
    await site.advance(5)
    began = site.simulation.time()
    names = await site.make("ns-1", 20)
    granted = await site.granted_at("other", names)
    assert max(granted.values()) - began < 1
    await site.stop()
