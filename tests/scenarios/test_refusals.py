"""A refusal by a plane is reported in the project with the server's message, and holds up nothing else."""

from datum_compute.api.instance import INSTANCE
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.meta import Json, as_dict
from datum_compute.runtime.testing.faults import calls
from tests.events import warnings
from tests.scenarios.embedded import CITIES, EmbeddedFederation
from tests.scenarios.federation import Federation


async def test_a_site_that_refuses_instances_is_reported_on_the_workload_until_it_accepts_them(
    embedded: EmbeddedFederation,
) -> None:
    federation = Federation(embedded)
    project = federation.project()
    site = embedded.local.faults[CITIES["DFW"]]
    refusal = site.refuse(calls("POST", "/instances"), Forbidden("exceeded quota: instances, used: 5, limited: 5"))
    await project.deploy("web", ["DFW", "ORD"])
    sentence = "Instance web-main-dfw-0 was refused: exceeded quota: instances, used: 5, limited: 5"

    async def is_reported() -> bool:
        found = {condition["type"]: condition for condition in (await _status(project.client)).get("conditions", [])}
        return found.get("Available", {}).get("status") == "True" and (
            found.get("Placed", {}).get("reason"),
            found.get("Placed", {}).get("message"),
        ) == ("WriteForbidden", sentence)

    await federation.until(is_reported, "the refusal is reported while the other city serves")
    deployment = as_dict((await project.deployment("web-main-dfw")).status_json)
    assert {condition["type"]: condition["message"] for condition in deployment["conditions"]} == {
        "Available": sentence,
        "ReplicasReady": sentence,
    }
    assert [(event.reason, event.message, event.count) for event in await warnings(project.client, "web")] == [
        ("WriteForbidden", sentence, 1)
    ]

    refusal.lift()
    await project.until_ready("web", 2, within=700)
    assert [condition["type"] for condition in (await _status(project.client))["conditions"]] == ["Available"]
    assert len((await project.client.list(INSTANCE)).items) == 2


async def _status(client: Client) -> Json:
    return as_dict((await client.get(WORKLOAD, "web", "default")).status_json)
