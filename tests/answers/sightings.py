"""Workload shop, with two instances in each city, as somebody with all rights would see it. Entry point: `Sight`."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from datum_compute.answers.seen import Hub, Seen, Site
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, RESOURCE_BINDING, Cluster, ResourceBinding
from datum_compute.api.labels import (
    DEPLOYMENT_NAME,
    FEDERATOR_FINALIZER,
    SIMULATED_FINALIZER,
    TOPOLOGY_CITY,
    UPSTREAM_GENERATION,
    WORKLOAD_FINALIZER,
)
from datum_compute.api.networking import LOCATION_BINDING, NETWORK, LocationBinding
from datum_compute.api.quota import RESOURCE_CLAIM, ResourceClaim
from datum_compute.api.services import SERVICE_ENTITLEMENT, ServiceEntitlement
from datum_compute.api.template_hash import template_hash
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.federation.policy import city_policy
from datum_compute.kube.kinds import EVENT, NAMESPACE, Event, Kind, Namespace
from datum_compute.kube.meta import Json, encode, timestamp
from tests.cli.conftest import IMAGE, NOW, condition, placement, template

CITIES = ("DFW", "AMS")
HUB_NAMESPACE = "ns-1"
TEMPLATE = template()
HASH = template_hash(encode(TEMPLATE))
SPEC_CHANGED = NOW - timedelta(minutes=10)


def read(kind: Kind[Any], body: Json) -> Any:
    return kind.decode(encode({"apiVersion": kind.api_version, "kind": kind.name} | body))


def name_of(city: str) -> str:
    return f"shop-default-{city.lower()}"


def workload(
    *,
    generation: int = 1,
    observed: int = 1,
    updated: int = 4,
    conditions: Sequence[Json] = (),
    cities: Sequence[str] = CITIES,
    **meta: Any,
) -> Workload:
    sums = {"deployments": len(cities), "replicas": 4, "currentReplicas": 4, "updatedReplicas": updated}
    sums |= {"desiredReplicas": 4, "readyReplicas": 4}
    found: Workload = read(
        WORKLOAD,
        {
            "metadata": {
                "name": "shop",
                "namespace": "default",
                "uid": "w1",
                "generation": generation,
                "creationTimestamp": timestamp(SPEC_CHANGED),
                "finalizers": [WORKLOAD_FINALIZER],
            }
            | meta,
            "spec": {"template": TEMPLATE, "placements": [placement("default", cities, 2)]},
            "status": sums | {"observedGeneration": observed, "conditions": list(conditions)},
        },
    )
    return found


def deployment(
    city: str,
    ready: int = 2,
    *,
    observed: int = 1,
    generation: int = 1,
    conditions: Sequence[Json] = (),
    status: bool = True,
    updated: int | None = None,
    image: str = IMAGE,
    **meta: Any,
) -> WorkloadDeployment:
    counters = {"replicas": 2, "currentReplicas": ready, "updatedReplicas": ready if updated is None else updated}
    counters |= {"desiredReplicas": 2, "readyReplicas": ready, "observedGeneration": observed}
    available = condition(
        "Available", str(ready > 0), "StableInstanceFound" if ready else "InstancesProvisioning", since=SPEC_CHANGED
    )
    body = {
        "metadata": {
            "name": name_of(city),
            "namespace": "default",
            "uid": f"d-{city}",
            "generation": generation,
            "creationTimestamp": timestamp(SPEC_CHANGED),
            "finalizers": [FEDERATOR_FINALIZER],
            "annotations": {UPSTREAM_GENERATION: str(generation)},
        }
        | meta,
        "spec": {
            "workloadRef": {"name": "shop", "uid": "w1"},
            "placementName": "default",
            "cityCode": city,
            "template": template(image),
            "scaleSettings": {"minReplicas": 2},
        },
    }
    if status:
        body["status"] = counters | {"conditions": [available, *conditions]}
    found: WorkloadDeployment = read(WORKLOAD_DEPLOYMENT, body)
    return found


def instance(
    city: str, ordinal: int, *conditions: Json, gates: Sequence[str] = (), hash_: str = HASH, **meta: Any
) -> Instance:
    found: Instance = read(
        INSTANCE,
        {
            "metadata": {
                "name": f"{name_of(city)}-{ordinal}",
                "namespace": "default",
                "uid": f"i-{city}-{ordinal}",
                "creationTimestamp": timestamp(SPEC_CHANGED),
                "labels": {DEPLOYMENT_NAME: name_of(city)},
                "finalizers": [SIMULATED_FINALIZER],
            }
            | meta,
            "spec": TEMPLATE["spec"]
            | {"controller": {"templateHash": hash_, "schedulingGates": [{"name": gate} for gate in gates]}},
            "status": {
                "conditions": list(conditions or (condition("Ready", "True", "Available", since=SPEC_CHANGED),))
            },
        },
    )
    return found


def cluster(
    city: str, *, name: str = "", ready: str = "True", since: datetime = NOW - timedelta(seconds=40)
) -> Cluster:
    reason = "ClusterReady" if ready == "True" else "ClusterNotReachable"
    found: Cluster = read(
        CLUSTER,
        {
            "metadata": {"name": name or f"cell-{city.lower()}", "labels": {TOPOLOGY_CITY: city}},
            "status": {"conditions": [condition("Ready", ready, reason, since=since)]},
        },
    )
    return found


def policy(city: str, **affinity: Any) -> Any:
    body = city_policy(HUB_NAMESPACE, city)
    body["spec"]["placement"]["clusterAffinity"] |= affinity
    return read(PROPAGATION_POLICY, body)


def binding(city: str, *, owner: str | None = None, clusters: int = 1, **status: Any) -> ResourceBinding:
    owners = [{"apiVersion": "v1", "kind": "X", "name": name_of(city), "uid": owner or f"d-{city}"}]
    found: ResourceBinding = read(
        RESOURCE_BINDING,
        {
            "metadata": {"name": f"{name_of(city)}-workloaddeployment", "ownerReferences": owners},
            "spec": {"clusters": [{"name": f"cell-{city.lower()}"}] * clusters},
            "status": {"aggregatedStatus": [{"applied": True}]} | status,
        },
    )
    return found


def namespace(**meta: Any) -> Namespace:
    found: Namespace = read(NAMESPACE, {"metadata": {"name": HUB_NAMESPACE} | meta})
    return found


def entitlement(phase: str = "Active") -> ServiceEntitlement:
    body = {"metadata": {"name": "compute", "creationTimestamp": timestamp(SPEC_CHANGED)}}
    spec = {"spec": {"serviceRef": {"name": "compute"}}, "status": {"phase": phase}}
    found: ServiceEntitlement = read(SERVICE_ENTITLEMENT, body | spec)
    return found


def offer(city: str) -> LocationBinding:
    topology = {"topology": {TOPOLOGY_CITY: city}}
    found: LocationBinding = read(LOCATION_BINDING, {"metadata": {"name": city.lower()}, "spec": topology})
    return found


def claim(name: str, reason: str = "PendingEvaluation") -> ResourceClaim:
    found: ResourceClaim = read(
        RESOURCE_CLAIM,
        {
            "metadata": {"name": f"instance-{name}"},
            "spec": {"consumerRef": {"kind": "Project", "name": "demo"}, "requests": []},
            "status": {"conditions": [condition("Granted", "False", reason)]},
        },
    )
    return found


def event(about: str, reason: str, message: str = "", *, first: datetime, last: datetime | None = None) -> Event:
    found: Event = read(
        EVENT,
        {
            "metadata": {"name": f"{about}.{reason}"},
            "involvedObject": {"name": about},
            "reason": reason,
            "message": message,
            "firstTimestamp": timestamp(first),
            "lastTimestamp": timestamp(last or first),
        },
    )
    return found


def everything(cities: Sequence[str] = CITIES) -> Seen:
    """Nothing is wrong, and everything could be read."""
    deployments = tuple(map(deployment, cities))
    copies = tuple(instance(city, ordinal) for city in cities for ordinal in range(2))
    return Seen(
        "demo",
        workload(cities=cities),
        deployments,
        copies,
        entitlements=(entitlement(),),
        networks=(read(NETWORK, {"metadata": {"name": "default", "namespace": "default"}, "spec": {}}),),
        offers=tuple(map(offer, cities)),
        claims=(),
        events=(),
        hub=Hub(
            namespace(),
            deployments,
            tuple(map(policy, cities)),
            tuple(map(cluster, cities)),
            tuple(map(binding, cities)),
            copies,
        ),
        sites={
            city: Site(
                tuple(found for found in deployments if found.spec.city_code == city),
                tuple(copy for copy in copies if copy.name.startswith(name_of(city))),
            )
            for city in cities
        },
        changed=SPEC_CHANGED,
        operator=True,
    )


def of_project(seen: Seen) -> Seen:
    """What a user of the project sees of it."""
    return replace(seen, hub=Hub(), sites={}, operator=False)
