"""Admission of workloads through the API."""

import pytest

from datum_compute.admission.workloads import admit
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Invalid
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.local.engine import compute_engine
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.federation import placement, template


@pytest.fixture
def client(simulation: Simulation) -> Client:
    engine = compute_engine(clock=simulation, generator=simulation.random, admit=admit)
    engine.serve("demo", PROJECT)
    return engine.client("demo")


async def _offer(client: Client, city: str) -> None:
    body = LOCATION_BINDING.body(city.lower()) | {"spec": {"topology": {TOPOLOGY_CITY: city}}}
    await client.create(LOCATION_BINDING, body)


async def _prepare(client: Client) -> None:
    await client.create(NAMESPACE, NAMESPACE.body("default"))
    await _offer(client, "DFW")
    await _offer(client, "AMS")


def _workload(*cities: str, replicas: int = 1) -> Json:
    spec = {"template": template(), "placements": [placement("main", cities, replicas)]}
    return WORKLOAD.body("web", "default") | {"spec": spec}


async def test_a_city_that_is_not_offered_is_refused_with_those_that_are(client: Client) -> None:
    await _prepare(client)
    with pytest.raises(Invalid) as refused:
        await client.create(WORKLOAD, _workload("XXX", replicas=0))
    causes = {cause.field: cause for cause in refused.value.causes}
    assert set(causes) == {"spec.placements[0].cityCodes[0]", "spec.placements[0].scaleSettings.minReplicas"}
    city = causes["spec.placements[0].cityCodes[0]"]
    assert city.reason == "FieldValueNotSupported"
    assert '"AMS", "DFW"' in city.message
    assert (await client.list(WORKLOAD)).items == []


async def test_an_offered_city_is_admitted(client: Client) -> None:
    await _prepare(client)
    await client.create(WORKLOAD, _workload("DFW", "AMS"))


async def test_an_update_is_validated_and_changes_nothing_when_refused(client: Client) -> None:
    await _prepare(client)
    before = await client.create(WORKLOAD, _workload("DFW"))
    with pytest.raises(Invalid, match="cityCodes"):
        await client.merge_patch(
            WORKLOAD, "web", "default", {"spec": {"placements": [placement("main", ["DFW", "XXX"], 1)]}}
        )
    after = await client.get(WORKLOAD, "web", "default")
    assert after.metadata.resource_version == before.metadata.resource_version


async def test_a_city_that_is_no_longer_offered_does_not_hold_up_other_changes(client: Client) -> None:
    await _prepare(client)
    await client.create(WORKLOAD, _workload("DFW"))
    await client.delete(LOCATION_BINDING, "dfw")
    await client.merge_patch(WORKLOAD, "web", "default", {"spec": {"placements": [placement("main", ["DFW"], 3)]}})
    await client.merge_patch(WORKLOAD, "web", "default", {"metadata": {"finalizers": []}})


async def test_a_city_whose_bindings_are_all_unavailable_is_refused_with_the_reason(client: Client) -> None:
    await _prepare(client)
    binding = await client.get(LOCATION_BINDING, "dfw")
    closed = {
        "type": "Available",
        "status": "False",
        "reason": "LocationNotReady",
        "message": "under maintenance",
        "lastTransitionTime": "2026-06-01T00:00:00Z",
    }
    await client.replace_status(LOCATION_BINDING, binding, {"conditions": [closed]})
    with pytest.raises(Invalid, match="under maintenance"):
        await client.create(WORKLOAD, _workload("DFW"))
