"""Two cells in one city: the older one serves it, the younger one stands by and takes over when the other leaves."""

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, execution_space
from datum_compute.api.labels import SOURCE_CLUSTER, TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import LEASE
from datum_compute.kube.meta import as_dict
from datum_compute.platform.locations import location
from tests.conftest import count
from tests.events import warnings
from tests.scenarios import life
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation, Project

FIRST, SECOND = "cell-dfw", "cell-another"  # whose name comes first, though it is younger


class City:
    """DFW with a second cell, which its project does not know of."""

    def __init__(self, embedded: EmbeddedFederation) -> None:
        self.embedded = embedded
        self.federation = Federation(embedded)
        self.project: Project = self.federation.project()
        self.hub = embedded.hub
        self.first: Client = embedded.cells["DFW"]
        self._plane = embedded.local.cell_plane(SECOND)
        self.second: Client = embedded.local.client(SECOND)

    async def join(self) -> None:
        """The younger cell comes."""
        await self.embedded.simulation.advance(2)  # Clusters are dated to the second
        self.embedded.local.manager.fleet.add(self._plane)
        await self.second.create(LOCATION, location("DFW"))
        await self.hub.create(CLUSTER, CLUSTER.body(SECOND, labels={TOPOLOGY_CITY: "DFW"}))
        await self.embedded.simulation.advance(1)

    async def leave(self) -> None:
        """The older cell goes for good, with all that runs there."""
        await self.hub.delete(CLUSTER, FIRST)
        self.embedded.local.manager.fleet.remove(FIRST)

    async def claim_name(self, name: str) -> None:
        """As a cell with a configured name does; here both run in one process and need none."""
        spec = {"holderIdentity": "uid-of-its-cluster", "leaseDurationSeconds": 3600}
        await self.hub.create(LEASE, LEASE.body(name, execution_space(name)) | {"spec": spec})

    async def sources(self) -> list[str]:
        return [copy.metadata.labels[SOURCE_CLUSTER] for copy in (await self.hub.list(INSTANCE)).items]

    async def rest(self) -> None:
        await self.embedded.simulation.advance(life.REST_SECONDS)
        self.embedded.check()


@pytest.fixture
def city(embedded: EmbeddedFederation) -> City:
    return City(embedded)


@pytest.mark.parametrize("seed", range(count(3, 50)))
async def test_the_older_cell_serves_and_the_younger_one_does_nothing(city: City, seed: int) -> None:
    await city.join()
    await city.project.deploy("web", ["DFW"], replicas=2)
    await city.project.until_ready("web", 2)
    await city.rest()
    assert len((await city.first.list(INSTANCE)).items) == 2
    assert (await city.second.list(INSTANCE)).items == []
    [copy] = (await city.second.list(WORKLOAD_DEPLOYMENT)).items
    assert as_dict(copy.status_json) == {}
    assert copy.metadata.finalizers == ()
    assert await city.sources() == [FIRST, FIRST]
    claims = (await city.project.client.list(RESOURCE_CLAIM)).items
    assert [claim.metadata.labels[SOURCE_CLUSTER] for claim in claims] == [FIRST, FIRST]
    [hub] = (await city.hub.list(WORKLOAD_DEPLOYMENT)).items
    assert hub.status is not None
    assert (hub.status.replicas, hub.status.desired_replicas) == (2, 2)


async def test_a_second_cell_that_joins_later_hides_nothing_of_what_runs(city: City) -> None:
    await city.project.deploy("web", ["DFW"], replicas=2)
    await city.project.until_ready("web", 2)
    following = await city.federation.cell("DFW").follow()
    await city.join()
    await city.rest()
    await city.project.set_image("web", "registry.example/hello:2")
    await city.project.until_ready("web", 2)
    await following.stop()
    assert await city.sources() == [FIRST, FIRST]
    assert (await city.second.list(INSTANCE)).items == []
    assert len((await city.project.client.list(INSTANCE)).items) == 2


async def test_management_reports_the_standby_cluster(city: City) -> None:
    await city.join()
    await city.rest()
    [warning] = await warnings(city.hub, SECOND)
    assert (warning.reason, warning.count) == ("CityServedElsewhere", 1)
    assert warning.message == (
        f'Cluster {FIRST} serves city "DFW" already, so {SECOND} runs nothing there; '
        "give one of the two another city, or remove one"
    )
    assert await warnings(city.hub, FIRST) == []


async def test_the_younger_cell_takes_over_when_the_older_one_leaves(city: City) -> None:
    await city.join()
    await city.project.deploy("web", ["DFW"], replicas=2)
    await city.project.until_ready("web", 2)
    await city.claim_name(SECOND)
    await city.leave()

    async def taken_over() -> bool:
        return await city.sources() == [SECOND, SECOND]

    await city.federation.until(taken_over, "the other cell shows its instances")
    await city.project.until_ready("web", 2)

    async def handed_over() -> bool:
        claims = (await city.project.client.list(RESOURCE_CLAIM)).items
        return [claim.metadata.labels[SOURCE_CLUSTER] for claim in claims] == [SECOND, SECOND]

    await city.federation.until(handed_over, "its claims are the other cell's")
    await city.project.delete("web")

    async def released() -> bool:
        return not (await city.project.client.list(RESOURCE_CLAIM)).items

    await city.federation.until(released, "and are released by it")


async def test_a_cell_that_returns_as_the_younger_one_is_not_counted(city: City) -> None:
    """As after it was removed from the hub and joined again: what it ran goes on, and nothing of it is shown."""
    await city.join()
    await city.project.deploy("web", ["DFW"], replicas=1)
    await city.project.until_ready("web", 1)
    await city.hub.delete(CLUSTER, FIRST)
    await city.hub.create(CLUSTER, CLUSTER.body(FIRST, labels={TOPOLOGY_CITY: "DFW"}))
    await city.rest()
    assert await city.sources() == [SECOND]
    assert len((await city.first.list(INSTANCE)).items) == 1
    [former] = (await city.first.list(WORKLOAD_DEPLOYMENT)).items
    assert as_dict(former.status_json) == {}
    [hub] = (await city.hub.list(WORKLOAD_DEPLOYMENT)).items
    assert hub.status is not None
    assert (hub.status.replicas, hub.status.desired_replicas) == (1, 1)


async def test_at_rest_two_cells_write_nothing(city: City) -> None:
    await city.join()
    await city.project.deploy("web", ["DFW"], replicas=1)
    await city.project.until_ready("web", 1)
    await city.rest()
    writes = city.embedded.local.writes.total()
    await city.embedded.simulation.advance(3600)
    assert city.embedded.local.writes.total() == writes, city.embedded.report()
