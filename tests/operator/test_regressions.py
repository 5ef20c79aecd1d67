"""Faults of the past that concern how a process is put together."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, QUOTA_GRANTED
from datum_compute.api.karmada import PROPAGATION_POLICY
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import NETWORK
from datum_compute.api.permissions import PERMISSIONS, On, When, Who
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.policy import city_policy
from datum_compute.kube import conditions
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.config import API_VERSION, KIND, WorkloadOperator
from datum_compute.operator.controllers import cell_controllers, management_controllers
from datum_compute.operator.flags import Flags, parse
from datum_compute.operator.planes import Endpoints
from datum_compute.operator.settings import settled
from datum_compute.runtime.clock import SystemClock
from datum_compute.runtime.fleet import Fleet
from tests.operator.processes import CELL_NAME, CITY, Manager, Site, until
from tests.scenarios.federation import placement, template

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Manager]
SOMEWHERE = Endpoint("https://127.0.0.1:1")
MANAGEMENT = {"workload", "workload-deployment-federator", "instance-projector", "sites", "handover", "hub-sweeper"}
CELL = {"workloaddeployment", "instance", "quota-gate", "write-back", "former-provider", "former-network"}


@pytest.mark.parametrize("who", [(Who.MANAGEMENT, On.PROJECT), (Who.CELL, On.CELL)])
def test_the_roles_allow_creating_and_patching_events(who: tuple[Who, On]) -> None:
    verbs = {
        verb
        for rule in PERMISSIONS[who]
        if rule.group == "" and "events" in rule.resources and rule.when is When.ALWAYS
        for verb in rule.verbs
    }
    assert {"create", "patch"} <= verbs


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, set()),
        ({"enable_management_controllers": True}, MANAGEMENT),
        ({"enable_cell_controllers": True}, CELL),
        ({"enable_management_controllers": True, "enable_cell_controllers": True}, MANAGEMENT | CELL),
    ],
)
async def test_only_the_enabled_controllers_run(flags: dict[str, Any], expected: set[str]) -> None:
    assert parse([], {}, "") == Flags(), "both groups are off by default"
    chosen = settled(Flags(federation_kubeconfig="/hub", **flags), WorkloadOperator(API_VERSION, KIND))
    endpoints = Endpoints(host=SOMEWHERE, hub=SOMEWHERE)
    assembly = Assembly(chosen, endpoints, clock=SystemClock(), generator=random.Random(1))
    assert set(assembly.manager.controllers) == expected
    await assembly.close()


@pytest.mark.parametrize("on", [False, True])
async def test_no_networking_kind_is_read_unless_networking_is_on(on: bool) -> None:
    fleet, clock = Fleet(), SystemClock()
    controllers = [
        *management_controllers(fleet, "hub", networking=on),
        *cell_controllers(fleet, clock, lambda plane: plane.name, networking=on),
    ]
    kinds = {source.kind for controller in controllers for source in controller.sources()}
    of_networks = {kind.name for kind in kinds if kind.group == NETWORK.group} - {"LocationBinding", "Location"}
    assert bool(of_networks) is on, of_networks


def _cell(start: Start, site: Site, discovery: str) -> Manager:
    return start(
        "cell",
        f'discovery: {{{discovery}}}\nmetricsServer: {{secureServing: false, bindAddress: "127.0.0.1:0"}}',
        f"--kubeconfig={site.directory}/{CELL_NAME}.kubeconfig",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--enable-cell-controllers",
        "--provider=simulated",
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

    async def told() -> bool:
        return (await _quota_reason(site)).startswith("Quota")

    site.until(told, "the instance says that quota cannot be asked for")
    assert cell.get("/readyz")[0] == 200
    assert cell.terminate() == 0


def test_a_missing_quota_credential_is_fatal(site: Site, start: Start) -> None:
    cell = _cell(start, site, "quotaKubeconfigPath: /nowhere/kubeconfig")
    assert cell.ended() == 1
    assert [line["event"] for line in cell.lines()] == [
        "compute-manager: discovery.quotaKubeconfigPath: "
        "kubeconfig /nowhere/kubeconfig cannot be read: No such file or directory"
    ]


def test_without_a_quota_credential_it_runs_unenforced_and_says_so(site: Site, start: Start) -> None:
    cell = _cell(start, site, f"clusterName: {CELL_NAME}")
    cell.until_ready()
    site.do(lambda: _deliver(site))

    async def disabled() -> bool:
        return await _quota_reason(site) == "QuotaDisabled"

    site.until(disabled, "the instance runs without quota")
    figures = cell.get("/metrics", "metrics")[1]
    assert "compute_quota_enforcement_enabled 0.0" in figures
    assert [line["event"] for line in cell.lines() if line.get("level") == "error"] == [
        "quota is not enforced: no credential for it is configured"
    ]


def test_management_starts_without_a_cell_name(site: Site, start: Start) -> None:
    management = start(
        "management",
        f"discovery: {{mode: milo, discoveryKubeconfigPath: {site.directory}/root.kubeconfig, "
        f"projectKubeconfigPath: {site.directory}/root.kubeconfig}}",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--enable-management-controllers",
    )
    management.until_ready()
    until(lambda: any(line.get("plane") == "demo" for line in management.lines()), "the project is engaged")
