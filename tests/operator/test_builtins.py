"""What the config file says reaches the built-ins and providers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from datum_compute.api.instance import INSTANCE
from datum_compute.api.quota import INSTANCES, MEMORY, RESOURCE_GRANT, VCPUS
from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, PROJECT
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import as_dict
from datum_compute.operator.builtins import in_projects, provider
from datum_compute.operator.config import EgressRule, Grants, IPBlock, Peer, PodPolicy, Pods, PolicyPort, Toleration
from datum_compute.providers.pods.policy import NETWORK_POLICY
from datum_compute.providers.pods.state import POD
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
from tests.operator.processes import PROJECT_NAME, Manager, Site
from tests.providers.site import with_pods
from tests.scenarios.federation import template


async def test_the_configured_grants_come_with_an_entitlement(simulation: Simulation) -> None:
    grants = Grants(instances=3, millicores=6000, mebibytes=12288)
    harness = ControllerHarness(
        simulation, {"demo": PROJECT}, lambda fleet: in_projects({"entitlement"}, fleet, grants)[0]
    )
    await harness.run()
    client = harness.engine.client("demo")
    entitlement = SERVICE_ENTITLEMENT.body("compute") | {"spec": {"serviceRef": {"name": SERVICE_OBJECT}}}
    await client.create(SERVICE_ENTITLEMENT, entitlement)
    await harness.settle()
    allowances = [as_dict(grant.spec_json)["allowances"][0] for grant in (await client.list(RESOURCE_GRANT)).items]
    granted = {item["resourceType"]: item["buckets"][0]["amount"] for item in allowances}
    assert granted == {INSTANCES: 3, VCPUS: 6000, MEMORY: 12288}
    await harness.stop()


async def test_pods_are_created_as_configured(simulation: Simulation) -> None:
    egress = EgressRule(to=(Peer(IPBlock("0.0.0.0/0", ("10.0.0.0/8",))),), ports=(PolicyPort(port=443),))
    pods = Pods(
        runtime_class_name="gvisor",
        node_selector={"pool": "tenants"},
        tolerations=(Toleration(key="edge", operator="Exists"),),
        network_policy=PodPolicy(ingress=(), egress=(egress,)),
    )
    with with_pods():
        harness = ControllerHarness(
            simulation,
            {"cell": CELL},
            lambda fleet: provider("pods", addressed=False, pods=pods)[0],
        )
    await harness.run()
    client = harness.engine.client("cell")
    await client.create(NAMESPACE, NAMESPACE.body("ns"))
    await client.create(INSTANCE, INSTANCE.body("web-0", "ns") | {"spec": template()["spec"]})
    await harness.settle()
    pod = as_dict((await client.get(POD, "web-0", "ns")).spec_json)
    assert pod["runtimeClassName"] == "gvisor"
    assert pod["nodeSelector"] == {"pool": "tenants"}
    assert pod["tolerations"] == [{"key": "edge", "operator": "Exists"}]
    policy = as_dict((await client.get(NETWORK_POLICY, "web-0", "ns")).spec_json)
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert policy["egress"] == [
        {
            "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}],
            "ports": [{"protocol": "TCP", "port": 443}],
        }
    ]
    await harness.stop()


@pytest.mark.timeout(300)
def test_grants_and_pods_in_the_config_file_reach_the_controllers_of_the_process(
    tmp_path: Path, start: Callable[..., Manager]
) -> None:
    with with_pods():
        site = Site(tmp_path, cell=PROJECT_NAME)
    client = site.client(PROJECT_NAME)

    async def create() -> None:
        await client.create(NAMESPACE, NAMESPACE.body("ns-1", labels=hub_labels("single", "default")))
        await client.create(INSTANCE, INSTANCE.body("web-0", "ns-1") | {"spec": template()["spec"]})

    async def runtime_classes() -> list[str]:
        return [as_dict(pod.spec_json).get("runtimeClassName", "") for pod in (await client.list(POD)).items]

    async def granted_instances() -> list[int]:
        specs = [as_dict(grant.spec_json) for grant in (await client.list(RESOURCE_GRANT)).items]
        allowances = [spec["allowances"][0] for spec in specs]
        return [item["buckets"][0]["amount"] for item in allowances if item["resourceType"] == INSTANCES]

    async def provided() -> bool:
        return bool(await runtime_classes()) and bool(await granted_instances())

    try:
        start(
            "both",
            "discovery: {mode: single}\ndefaultGrants: {instances: 3}\npods: {runtimeClassName: gvisor}",
            f"--kubeconfig={site.directory}/{PROJECT_NAME}.kubeconfig",
            f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
            "--enable-management-controllers",
            "--enable-cell-controllers",
            "--provider=pods",
            "--builtins=entitlement",
        )
        site.entitle()
        site.do(create)
        site.until(provided, "a Pod and grants are there")
        assert site.do(runtime_classes) == ["gvisor"]
        assert site.do(granted_instances) == [3]
    finally:
        site.close()
