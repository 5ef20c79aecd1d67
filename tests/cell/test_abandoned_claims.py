"""A project that keeps refusing to delete a claim does not hold its Instance for ever; the claim is not forgotten."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.cell.claims import ABANDON_SECONDS
from datum_compute.cell.ledger import AbandonedClaim, Ledger
from datum_compute.cell.metrics import Metrics
from datum_compute.cell.quota_gate import NAME
from datum_compute.kube.errors import ApiError, Cause, Forbidden, Unavailable, from_status
from datum_compute.kube.kinds import CONFIG_MAP, NAMESPACE
from datum_compute.kube.transport import Call
from datum_compute.operator.controllers import cell_controllers
from datum_compute.operator.discovery import ClaimDiscovery
from datum_compute.operator.flags import Flags
from datum_compute.runtime.controller import Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.requests import Unfinished
from datum_compute.runtime.testing.faults import calls
from datum_compute.runtime.testing.simulation import Simulation
from tests.cell.conftest import cell_name
from tests.cell.site import GROUP, NAMESPACE_NAME, Site

CLAIM_FINALIZER = f"quota.{GROUP}/claim-cleanup"
OWN_NAMESPACE = "compute-system"
LEDGER = "compute-abandoned-claims"
SWEEPS = 1300.0  # two sweeps: one to engage the project, one to look
AFTER = 600.0  # instead of an hour


class Abandoning(Site):
    """A cell that discovers its projects by its own objects, as a cell in a process of its own does."""

    def __init__(self, simulation: Simulation, metrics: Metrics, *, most: int = 1000, after: float = AFTER) -> None:
        def build(fleet: Fleet) -> Sequence[Reconciler]:
            ledger = Ledger(OWN_NAMESPACE, NAME, most=most)
            return [
                ClaimDiscovery(fleet, self.plane, ledger.projects),
                *cell_controllers(fleet, simulation, cell_name, metrics=metrics, ledger=ledger, abandon_after=after),
            ]

        super().__init__(simulation, build)

    async def begin(self) -> None:
        await self.cell.create(NAMESPACE, NAMESPACE.body(OWN_NAMESPACE))
        await self.start()

    async def stored(self) -> list[str]:
        """The claims in the ledger, as they are stored."""
        maps = [config_map for config_map in (await self.cell.list(CONFIG_MAP)).items if config_map.name == LEDGER]
        return sorted(value for config_map in maps for value in config_map.data.values())

    async def is_held(self) -> bool:
        return any(CLAIM_FINALIZER in instance.metadata.finalizers for instance in await self.instances())

    async def doomed(self) -> None:
        """A granted Instance that is about to be deleted."""
        await self.create()
        await self.grant()
        await self.runs()


Build = Callable[..., Abandoning]


@pytest.fixture
def build(runner: asyncio.Runner, simulation: Simulation, metrics: Metrics) -> Iterator[Build]:
    built: list[Abandoning] = []

    def one(most: int = 1000, after: float = AFTER) -> Abandoning:
        built.append(Abandoning(simulation, metrics, most=most, after=after))
        return built[-1]

    yield one
    for site in built:
        runner.run(site.stop())


def everything(call: Call) -> bool:
    return True


def refusal(code: int) -> ApiError:
    return from_status(code, b"404 page not found" if code == 404 else b'{"message": "not you"}', "demo")


def test_the_time_is_an_hour_unless_configured_otherwise() -> None:
    assert ABANDON_SECONDS == 3600
    assert Flags().abandon_claims_after_seconds == "3600"


KEPT = '{"project":"demo","namespace":"default","instanceNamespace":"ns-1","instance":"web-0"}'


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_after_lasting_refusals_an_instance_is_deleted_and_its_claim_once_that_is_allowed(
    build: Build, registry: CollectorRegistry, code: int
) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    refused = site.faults["demo"].refuse(everything, refusal(code))
    await site.delete()
    await site.advance(AFTER - 60)
    assert await site.is_held()
    assert await site.stored() == []
    await site.advance(180)
    assert await site.instances() == []
    assert await site.stored() == [KEPT]
    sentence = (
        "Project demo has refused to delete quota claim default/instance-web-0 for 10 minutes; "
        "the instance is deleted without it, and the claim as soon as the project allows it"
    )
    assert [event for event in await site.events() if event[0] == "QuotaClaimAbandoned"] == [
        ("QuotaClaimAbandoned", sentence)
    ]
    assert registry.get_sample_value("compute_quota_claim_abandoned_total") == 1
    await site.advance(2 * AFTER)
    assert registry.get_sample_value("compute_quota_claims_abandoned") == 1
    assert await site.claims() == ["instance-web-0"]
    refused.lift()
    await site.advance(SWEEPS)
    assert (await site.claims(), await site.stored()) == ([], [])
    assert registry.get_sample_value("compute_quota_claims_abandoned") == 0


async def test_a_refusal_of_the_deletion_alone_is_enough(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    site.faults["demo"].refuse(calls("DELETE", "resourceclaims"), Forbidden("look, but do not touch"))
    await site.delete()
    await site.advance(590)
    assert await site.is_held()
    await site.advance(120)
    assert (await site.instances(), await site.stored()) == ([], [KEPT])


async def test_abandoned_claims_survive_a_restart_and_the_deletion_of_the_namespace(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    site.faults["demo"].refuse(everything, refusal(403))
    await site.delete()
    await site.advance(AFTER + 120)
    await site.cell.delete(NAMESPACE, NAMESPACE_NAME)
    await site.advance(SWEEPS)
    assert await site.claims() == ["instance-web-0"]
    await site.restart()  # the project lets us, from now on
    await site.advance(SWEEPS)
    assert (await site.claims(), await site.stored()) == ([], [])
    await site.advance(SWEEPS)
    assert not site.fleet.knows("demo")  # nothing is left to do there


@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_a_server_error_is_no_refusal(build: Build, code: int) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    trouble = site.faults["demo"].refuse(everything, from_status(code, b"", "demo"))
    await site.delete()
    await site.advance(4 * AFTER)
    assert await site.is_held()
    trouble.lift()
    await site.advance(60)
    assert (await site.instances(), await site.claims(), await site.stored()) == ([], [], [])


async def test_silence_is_no_refusal(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    site.faults["demo"].take_away()
    await site.delete()
    await site.advance(4 * AFTER)
    assert await site.is_held()
    site.faults["demo"].bring_back()
    await site.advance(60)
    assert (await site.instances(), await site.claims(), await site.stored()) == ([], [], [])


async def test_the_time_starts_again_when_the_refusals_are_interrupted(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    refused = site.faults["demo"].refuse(everything, refusal(403))
    await site.delete()
    await site.advance(AFTER - 200)
    refused.lift()
    trouble = site.faults["demo"].refuse(everything, Unavailable("not now"))
    await site.advance(100)
    trouble.lift()
    site.faults["demo"].refuse(everything, refusal(403))
    await site.advance(AFTER - 100)
    assert await site.is_held()
    await site.advance(200)
    assert await site.stored() == [KEPT]


async def test_a_suspended_project_is_waited_for(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    causes = [Cause("ProjectSuspended", "project demo is suspended: unpaid")]
    site.faults["demo"].refuse(calls("DELETE", "resourceclaims"), Forbidden("not now", causes=causes))
    await site.delete()
    await site.advance(4 * AFTER)
    assert await site.is_held()


async def test_a_plane_that_does_not_serve_claims_has_none_to_delete(build: Build) -> None:
    site = build()
    await site.begin()
    site.faults["demo"].refuse(calls("", "resourceclaims"), refusal(404))
    await site.create()
    await site.delete()
    assert (await site.instances(), await site.stored()) == ([], [])


async def test_a_claim_used_by_a_later_instance_of_the_name_stays(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    refused = site.faults["demo"].refuse(calls("DELETE", "resourceclaims"), Forbidden("not you"))
    await site.delete()
    await site.advance(AFTER + 120)
    assert await site.stored() == [KEPT]
    await site.create()
    await site.advance(2)
    assert await site.gates() == []
    refused.lift()
    await site.advance(SWEEPS)
    assert (await site.claims(), await site.stored()) == (["instance-web-0"], [])


async def test_a_claim_that_cannot_be_recorded_is_not_abandoned(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    site.faults["demo"].refuse(everything, refusal(403))
    unwritable = site.faults["cell"].refuse(calls("POST", "configmaps"), Forbidden("not you either"))
    await site.delete()
    await site.advance(2 * AFTER)
    assert await site.is_held()
    unwritable.lift()
    await site.advance(120)
    assert (await site.instances(), await site.stored()) == ([], [KEPT])


async def test_no_more_claims_are_abandoned_than_the_ledger_can_record(build: Build) -> None:
    site = build(most=2)
    await site.begin()
    for number in range(4):
        await site.create(f"web-{number}")
        await site.grant(f"web-{number}")
    refused = site.faults["demo"].refuse(everything, refusal(403))
    for number in range(4):
        await site.delete(f"web-{number}")
    await site.advance(2 * AFTER)
    assert (len(await site.instances()), len(await site.stored())) == (2, 2)
    refused.lift()
    await site.advance(SWEEPS)
    assert (await site.instances(), await site.claims(), await site.stored()) == ([], [], [])


async def test_at_rest_nothing_is_written(build: Build) -> None:
    site = build()
    await site.begin()
    await site.doomed()
    site.faults["demo"].refuse(everything, refusal(403))
    await site.delete()
    await site.advance(AFTER + 700)
    before = site.writes.total()
    passes = site.manager.controllers["abandoned-claims"].passes
    await site.advance(3700)
    assert site.writes.total() == before
    assert site.manager.controllers["abandoned-claims"].passes >= passes + 5


async def test_an_unreadable_entry_is_skipped(build: Build) -> None:
    site = build()
    await site.begin()
    body = CONFIG_MAP.body(LEDGER, OWN_NAMESPACE) | {"data": {"odd": "not json", "good": KEPT}}
    await site.cell.create(CONFIG_MAP, body)
    await site.advance(SWEEPS)
    (stored,) = (await site.cell.list(CONFIG_MAP)).items
    assert "odd" in stored.data


async def test_entries_of_others_are_kept(build: Build) -> None:
    site = build()
    await site.begin()
    plane, ledger = site.fleet.plane("cell"), Ledger(OWN_NAMESPACE, NAME, most=3)
    claims = [AbandonedClaim("demo", "default", "ns-1", f"web-{number}") for number in range(4)]
    for claim in claims[:3]:
        await ledger.add(plane, claim)
    await ledger.add(plane, claims[0])  # again
    assert await ledger.read(plane) == claims[:3]
    with pytest.raises(Unfinished):
        await ledger.add(plane, claims[3])
    await ledger.remove(plane, [claims[1], claims[3]])
    assert await ledger.read(plane) == [claims[0], claims[2]]
    assert ledger.projects() == {"demo"}
    await ledger.remove(plane, claims)
    assert (await ledger.read(plane), ledger.projects()) == ([], set())
