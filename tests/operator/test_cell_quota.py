"""A cell as a real process, with and without a credential for quota."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.policy import city_policy
from datum_compute.kube import conditions
from datum_compute.kube.access.kubeconfig import write_kubeconfig
from datum_compute.kube.kinds import CONFIG_MAP, NAMESPACE
from tests.operator.processes import CELL_NAME, CITY, HOST_NAMESPACE, PROJECT_NAME, Manager, Site, until
from tests.scenarios.federation import placement, template

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Manager]


def _cell(start: Start, site: Site, discovery: str, *flags: str, name: str = "cell") -> Manager:
    return start(
        name,
        f'discovery: {{{discovery}}}\nmetricsServer: {{secureServing: false, bindAddress: "127.0.0.1:0"}}',
        f"--kubeconfig={site.directory}/{CELL_NAME}.kubeconfig",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--enable-cell-controllers",
        "--provider=simulated",
        *flags,
    )


async def _deliver(site: Site) -> None:
    hub = site.client("hub")
    await hub.create(NAMESPACE, NAMESPACE.body("ns-1", labels=hub_labels("demo", "default")))
    await hub.create(PROPAGATION_POLICY, city_policy("ns-1", CITY))
    spec = {
        "cityCode": CITY,
        "placementName": "main",
        "workloadRef": {"name": "web", "uid": "1"},
        "scaleSettings": placement("main", [CITY], 1)["scaleSettings"],
        "template": template(),
    }
    deployment = WORKLOAD_DEPLOYMENT.body("web", "ns-1", labels={TOPOLOGY_CITY: CITY})
    await hub.create(WORKLOAD_DEPLOYMENT, deployment | {"spec": spec})


async def _quota_reason(site: Site) -> str:
    for instance in (await site.client(CELL_NAME).list(INSTANCE)).items:
        granted = conditions.find(instance.status.conditions if instance.status else (), QUOTA_GRANTED)
        if granted is not None and granted.reason:
            return granted.reason
    return ""


def test_a_cell_runs_where_claims_are_not_served(site: Site, start: Start) -> None:
    path = f"quotaKubeconfigPath: {site.directory}/{CELL_NAME}.kubeconfig"
    cell = _cell(start, site, f'{path}, projectURLTemplate: ""')
    cell.until_ready()
    site.do(lambda: _deliver(site))

    async def reported() -> bool:
        return (await _quota_reason(site)).startswith("Quota")

    site.until(reported, "the instance reports that quota cannot be claimed")
    assert cell.get("/readyz")[0] == 200
    assert cell.terminate() == 0


def test_a_missing_quota_credential_is_fatal(site: Site, start: Start) -> None:
    cell = _cell(start, site, "quotaKubeconfigPath: /nowhere/kubeconfig")
    assert cell.ended() == 1
    assert [line["event"] for line in cell.lines()] == [
        "compute-manager: discovery.quotaKubeconfigPath: "
        "kubeconfig /nowhere/kubeconfig cannot be read: No such file or directory"
    ]


def test_without_a_quota_credential_a_cell_runs_unenforced_and_logs_it(site: Site, start: Start) -> None:
    cell = _cell(start, site, f"clusterName: {CELL_NAME}")
    cell.until_ready()
    site.do(lambda: _deliver(site))

    async def disabled() -> bool:
        return await _quota_reason(site) == "QuotaDisabled"

    site.until(disabled, "the instance runs without quota")
    metrics = cell.get("/metrics", "metrics")[1]
    assert "compute_quota_enforcement_enabled 0.0" in metrics
    assert [line["event"] for line in cell.lines() if line.get("level") == "error"] == [
        "quota is not enforced: no credential for it is configured"
    ]


def test_a_claim_that_a_project_refuses_to_delete_is_abandoned_and_its_project_found_again(
    site: Site, start: Start
) -> None:
    refused = site.directory / "refused.kubeconfig"
    write_kubeconfig(refused, {"root": replace(site.background.server.endpoint("root"), token="expired")}, "root")
    own = f"--leader-elect-namespace={HOST_NAMESPACE}"
    after = "--abandon-claims-after-seconds=0.5"
    cell = _cell(start, site, f"clusterName: {CELL_NAME}, quotaKubeconfigPath: {refused}", own, after)
    cell.until_ready()
    site.do(lambda: _deliver(site))

    async def reported() -> bool:
        return (await _quota_reason(site)).startswith("Quota")

    async def stopped() -> bool:
        client = site.client(CELL_NAME)
        return not (await client.list(INSTANCE)).items and not (await client.list(WORKLOAD_DEPLOYMENT)).items

    async def recorded() -> int:
        return sum(len(ledger.data) for ledger in (await site.client(CELL_NAME).list(CONFIG_MAP)).items)

    site.until(reported, "the instance reports that quota cannot be claimed")
    site.do(lambda: site.client("hub").delete(WORKLOAD_DEPLOYMENT, "web", "ns-1"))
    site.until(stopped, "the instance is deleted without its claim")
    assert site.do(recorded) == 1
    assert cell.terminate() == 0

    allowed = f"quotaKubeconfigPath: {site.directory}/root.kubeconfig"
    again = _cell(start, site, f"clusterName: {CELL_NAME}, {allowed}", own, after, name="again")
    again.until_ready()
    abandoned = "compute_quota_claims_abandoned 1.0"
    until(lambda: abandoned in again.get("/metrics", "metrics")[1], "the cell has read what it abandoned")
    site.do(lambda: site.client(CELL_NAME).create(NAMESPACE, NAMESPACE.body("any")))  # has projects looked for
    until(
        lambda: any(line["event"] == "engaged" and line.get("plane") == PROJECT_NAME for line in again.lines()),
        "the project is engaged although the cell has nothing else of it",
    )
