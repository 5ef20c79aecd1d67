"""What the config file says reaches the built-ins and providers."""

from datum_compute.api.instance import INSTANCE
from datum_compute.api.quota import INSTANCES, MEMORY, RESOURCE_GRANT, VCPUS
from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.federation.roles import CELL, PROJECT
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import as_dict
from datum_compute.operator.builtins import in_projects, provider
from datum_compute.operator.config import EgressRule, Grants, IPBlock, Peer, PodPolicy, Pods, PolicyPort, Toleration
from datum_compute.providers.pod_policy import NETWORK_POLICY
from datum_compute.providers.pod_state import POD
from datum_compute.runtime.testing.simulation import Simulation
from tests.harness import ControllerHarness
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
