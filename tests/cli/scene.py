"""A project with content, the same each time, and controllers that work when they are called.

Entry points: `set_up`, `controllers`. The workload shop is short of quota in DFW and has two revisions; blog is well.
"""

from datetime import datetime

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.quota import ALLOWANCE_BUCKET
from datum_compute.api.services import SERVICE_ENTITLEMENT
from datum_compute.api.workload import WORKLOAD, Placement
from datum_compute.kube.kinds import EVENT
from datum_compute.kube.meta import Json, timestamp
from tests.cli.conftest import IMAGE, NOW, Compute, World, condition
from tests.cli.log_store import SECOND, LogStore
from tests.cli.server import ApiServer

ENV_VALUE = "info"
QUOTA = "Requested 1 instance, 0 available."
_CONSUMER = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
_LIMITS = {"workloads": (10, 2), "instances": (4, 4), "vcpus": (8000, 4000), "memory": (16384, 8192)}


def set_up(api: ApiServer, compute: Compute) -> None:
    """As a user and the controllers would have left it: shop deployed two hours ago and changed one hour ago."""
    clock = compute.clock
    compute.environ["DATUM_COMPUTE_ACTOR"] = "ann@example.com"
    for resource, (limit, used) in _LIMITS.items():
        _bucket(api, resource, limit, used)
    for city, name, region in (
        ("ams", "Amsterdam", "eu-west"),
        ("dfw", "Dallas", "us-central"),
        ("sin", "Singapore", "ap"),
    ):
        topology = {"topology.datum.net/region": region}
        api.patch(LOCATION_BINDING, city, {"spec": {"displayName": name, "topology": topology}})
    enabled = condition("Ready", "True", "EntitlementActive", "Enabled for this project.")
    api.set_status(SERVICE_ENTITLEMENT, "compute", {"conditions": [enabled]})
    clock.turn(-7200)
    _typed(compute, "blog", "--image=registry.example/blog:1.4", "--city=AMS")
    _typed(compute, "shop", "--image=registry.example/shop:2.0", "--city=AMS,DFW", "--min=2", "--port=8080")
    clock.turn(3600)
    _typed(compute, "shop", f"--image={IMAGE}", f"--env=LOG_LEVEL={ENV_VALUE}")
    clock.turn(1800)
    controllers(api)
    _short_of_quota(api)
    api.logs = _logs(clock.now())
    clock.turn(1800)
    assert clock.now() == NOW
    api.requests.clear()


def controllers(api: ApiServer) -> None:
    """What the whole federation makes of the workloads as they are now."""
    for workload in api.all(WORKLOAD):
        world, now = World(api, workload.name), api.engine.clock.now()
        paused = workload.metadata.annotations.get(ROLLOUT_PAUSED) == "true"
        available = condition("Available", "True", "AvailablePlacementFound", since=now)
        world.observe(condition("Progressing", "Unknown", "RolloutPaused", since=now) if paused else available)
        for placement in workload.spec.placements:
            for city in placement.city_codes:
                _run_in(world, city, placement)


def pause(api: ApiServer) -> None:
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})


def _run_in(world: World, city: str, placement: Placement) -> None:
    api, replicas = world.api, placement.scale_settings.min_replicas
    deployment = f"{world.name}-{placement.name}-{city.lower()}"
    if deployment not in {other.name for other in api.all(WORKLOAD_DEPLOYMENT)}:
        world.deployment(city, placement.name, replicas)
    known = {instance.name for instance in api.all(INSTANCE)}
    for ordinal in range(replicas):
        if (name := f"{deployment}-{ordinal}") not in known:
            world.instance(city, ordinal, placement_name=placement.name)
            api.set_status(INSTANCE, name, _running(len(known) + ordinal + 1, api.engine.clock.now()))
    world.report(city, replicas, replicas, desired=replicas, placement_name=placement.name)


def _running(number: int, now: datetime) -> Json:
    true = [("QuotaGranted", "QuotaAvailable"), ("Programmed", "Programmed"), ("Available", "Available")]
    conditions = [condition(type_, "True", reason, since=now) for type_, reason in (*true, ("Ready", "Available"))]
    addresses = {"externalIP": f"198.51.100.{number}", "networkIP": f"10.128.0.{number}"}
    return {"conditions": conditions, "networkInterfaces": [{"assignments": addresses}]}


def _logs(now: datetime) -> LogStore:
    """What the instances of shop wrote."""
    store = LogStore()
    time = int(now.timestamp()) * SECOND
    for index, name in enumerate(("shop-default-ams-0", "shop-default-ams-1", "shop-default-dfw-0")):
        store.add(time + index * SECOND, name, f"starting {IMAGE}", generation=f"{index}0c2a9e0")
        store.add(time + (index + 3) * SECOND, name, "listening on :8080", generation=f"{index}0c2a9e0")
    store.add(
        time + 7 * SECOND,
        "shop-default-dfw-0",
        "\x1b[31mdeprecated\x1b[0m",
        log_iostream="stderr",
        generation="20c2a9e0",
    )
    return store


def _short_of_quota(api: ApiServer) -> None:
    world, name, now = World(api, "shop"), "shop-default-dfw-1", api.engine.clock.now()
    denied = condition("QuotaGranted", "False", "QuotaExceeded", QUOTA, now)
    ready = condition("Ready", "False", "PendingQuota", QUOTA, now)
    status = {"conditions": [denied, ready], "networkInterfaces": []}
    instance = api.set_status(INSTANCE, name, status)
    world.report("DFW", 2, 1, replicas=2)
    regarding = {"kind": "Instance", "name": name, "namespace": "default", "uid": instance.metadata.uid}
    seen = timestamp(now)
    event = {
        "involvedObject": regarding,
        "type": "Warning",
        "reason": "QuotaExceeded",
        "message": QUOTA,
        "count": 3,
        "firstTimestamp": seen,
        "lastTimestamp": seen,
    }
    api.create(EVENT, EVENT.body(f"{name}.1", "default") | event)


def _bucket(api: ApiServer, resource: str, limit: int, used: int) -> None:
    name = f"bucket-{resource}"
    body = ALLOWANCE_BUCKET.body(name, "milo-system", labels={"quota.miloapis.com/consumer-kind": "Project"})
    spec = {"consumerRef": _CONSUMER, "resourceType": f"compute.datumapis.com/{resource}"}
    api.create(ALLOWANCE_BUCKET, body | {"spec": spec})
    status = {"limit": limit, "allocated": used, "available": limit - used}
    api.set_status(ALLOWANCE_BUCKET, name, status, namespace="milo-system")


def _typed(compute: Compute, name: str, *flags: str) -> None:
    result = compute("deploy", name, *flags, "--no-wait", "--no-save")
    assert result.code == 0, result.err
