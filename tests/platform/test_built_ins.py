"""Projects, entitlements and quota in an install without Milo."""

from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import (
    ALLOWANCE_BUCKET,
    CONSUMER_KIND,
    INSTANCES,
    RESOURCE_GRANT,
    RESOURCE_REGISTRATION,
    ConsumerRef,
    bucket_name,
)
from datum_compute.api.services import PROJECT, SERVICE_ENTITLEMENT, SERVICE_NAME, SERVICE_OBJECT
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube import conditions
from datum_compute.kube.errors import NotFound
from datum_compute.kube.kinds import DEFINITION, NAMESPACE, Kind
from datum_compute.kube.meta import KubeObject
from datum_compute.local.federation import ROOT_PLANE
from datum_compute.runtime.testing.simulation import Simulation
from tests.karmada_objects import define
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation


async def test_a_new_project_gets_a_plane_with_a_default_namespace(embedded: EmbeddedFederation) -> None:
    root = embedded.local.client(ROOT_PLANE)
    await root.create(PROJECT, PROJECT.body("fresh") | {"spec": {}})

    async def ready() -> bool:
        return await embedded.local.is_ready("fresh")

    await embedded.until(ready, 10, "the project is ready")
    namespace = await embedded.local.client("fresh").get(NAMESPACE, "default")
    assert namespace.metadata.labels["miloapis.com/project-default"] == "true"


async def test_a_deleted_project_is_emptied_first_including_hub_and_cells(
    federation: Federation, embedded: EmbeddedFederation
) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], replicas=2)
    await project.until_ready("web", 2)
    await define(project.client, Kind("example.test", "v1", "Widget", "widgets", KubeObject))
    root = embedded.local.client(ROOT_PLANE)
    await root.delete(PROJECT, "demo")

    async def gone() -> bool:
        try:
            await root.get(PROJECT, "demo")
        except NotFound:
            return True
        return False

    await embedded.until(gone, 60, "the project is gone")

    async def nothing_runs() -> bool:
        return not await federation.cell("DFW").instances("web")

    await embedded.until(nothing_runs, 60, "its instances are gone")
    assert (await project.client.list(WORKLOAD)).items == []
    assert (await project.client.list(DEFINITION)).items == []


async def test_an_entitlement_is_active_at_once_and_brings_cities_and_grants(embedded: EmbeddedFederation) -> None:
    client = embedded.project_client("demo")

    async def active() -> bool:
        entitlement = await client.get(SERVICE_ENTITLEMENT, SERVICE_OBJECT)
        return entitlement.status is not None and entitlement.status.phase == "Active"

    await embedded.until(active, 10, "the entitlement is active")
    entitlement = await client.get(SERVICE_ENTITLEMENT, SERVICE_OBJECT)
    assert entitlement.status is not None
    assert entitlement.status.service_name == SERVICE_NAME
    assert conditions.is_true(entitlement.status.conditions, "Ready")
    assert [binding.name for binding in (await client.list(LOCATION_BINDING)).items] == ["dfw", "ord"]
    assert {grant.spec.consumer_ref.name for grant in (await client.list(RESOURCE_GRANT)).items} == {"demo"}


async def test_buckets_have_milos_names_and_labels(embedded: EmbeddedFederation, simulation: Simulation) -> None:
    client = embedded.project_client("demo")
    await simulation.advance(5)
    name = bucket_name(INSTANCES, ConsumerRef("Project", "demo"))
    bucket = await client.get(ALLOWANCE_BUCKET, name, "milo-system")
    assert bucket.metadata.labels[CONSUMER_KIND] == "Project"
    assert bucket.status is not None
    assert (bucket.status.limit, bucket.status.available) == (10, 10)
    registrations = (await client.list(RESOURCE_REGISTRATION)).items
    assert all(conditions.is_true(conditions.of(registration), "Active") for registration in registrations)
