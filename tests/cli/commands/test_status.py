import json
from datetime import timedelta

import pytest

from datum_compute.api.instance import INSTANCE
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.transport import Answer, Call
from tests.cli.conftest import NOW, Compute, FakeClock, World, condition, placement
from tests.cli.log_store import LogStore
from tests.cli.server import ApiServer, Rule

NO_QUOTA = condition("QuotaGranted", "False", "QuotaExceeded", "Requested 1 vCPU, 0 available.")


def degraded(world: World) -> None:
    world.workload()
    world.observe()
    for city in ("AMS", "DFW"):
        world.deployment(city)
    world.report("AMS", 2, 2)
    world.report("DFW", 1, 1, replicas=2)
    for ordinal in range(2):
        world.instance("AMS", ordinal)
    world.instance("DFW", 0)
    world.instance("DFW", 1, NO_QUOTA, condition("Ready", "False", "PendingQuota"))


def test_a_degraded_workload_names_cause_and_next_step(
    api: ApiServer, compute: Compute, world: World, clock: FakeClock
) -> None:
    degraded(world)
    clock.turn(720)
    result = compute("status", "shop")
    assert result.code == 0
    assert result.out == (
        "Workload     shop                            project: demo\n"
        "Image        registry.example/shop:2.1\n"
        "Updated      12m ago                         Revision #—\n"
        "\n"
        "Health       Degraded — 1 instances below desired count\n"
        "\n"
        "              CITY   READY   DESIRED   TYPE\n"
        "  default     AMS    2/2     2         datumcloud/d1-standard-2\n"
        "              DFW    1/2     2         datumcloud/d1-standard-2   [degraded]\n"
        "\n"
        "  DFW: 1 instances could not start — quota exceeded\n"
        "    Requested 1 vCPU, 0 available.\n"
        "\n"
        "  shop is held up in DFW by quota (1 of 2 instances), not ready for 12m. You can act.\n"
        "\n"
        "  Next steps:\n"
        "    Reduce replicas:   compute scale shop --min=1\n"
        "    Check quota:       compute quota\n"
        "    View instances:    compute instances --workload=shop\n"
    )


@pytest.mark.parametrize("served", [True, False])
def test_the_logs_of_what_crashes_are_named_where_they_are_served(
    api: ApiServer, compute: Compute, world: World, served: bool
) -> None:
    api.logs = LogStore() if served else None
    world.settled()
    world.report("DFW", 2, 1)
    crashing = condition("Programmed", "Unknown", "InstanceCrashing", "exit code 1")
    api.set_status(INSTANCE, "shop-default-dfw-1", {"conditions": [crashing]})
    step = "    Read logs:         compute logs shop"
    assert (step in compute("status", "shop").lines) is served


def test_a_healthy_workload_reads_no_instances_and_needs_no_advice(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.settled()
    result = compute("status", "shop")
    assert "Health       Available — all placements at desired replicas" in result.lines
    assert "Next steps" not in result.out
    assert not any(seen.path.endswith("/instances") for seen in api.requests)


def test_json(api: ApiServer, compute: Compute, world: World) -> None:
    degraded(world)
    result = compute("status", "shop", "-o", "json")
    assert result.err == ""
    assert json.loads(result.out) == {
        "name": "shop",
        "project": "demo",
        "image": "registry.example/shop:2.1",
        "instanceType": "datumcloud/d1-standard-2",
        "revision": None,
        "updated": "2026-11-02T12:00:00Z",
        "health": "Degraded — 1 instances below desired count",
        "healthState": "Degraded",
        "paused": False,
        "deleting": False,
        "observed": True,
        "why": "shop is held up in DFW by quota (1 of 2 instances), not ready for 0s. You can act.",
        "cities": [
            {
                "placement": "default", "city": "AMS", "ready": 2, "updated": 2, "replicas": 2, "desired": 2,
                "degraded": False, "reason": "", "message": "",
            },
            {
                "placement": "default", "city": "DFW", "ready": 1, "updated": 1, "replicas": 2, "desired": 2,
                "degraded": True, "reason": "QuotaExceeded", "message": "Requested 1 vCPU, 0 available.",
            },
        ],
    }  # fmt: skip


def test_yaml_has_the_same_content(api: ApiServer, compute: Compute, world: World) -> None:
    degraded(world)
    lines = compute("status", "shop", "-o", "yaml").lines
    assert lines[:2] == ["name: shop", "project: demo"]
    assert "cities:" in lines


def test_an_unanswered_spec_is_not_observed(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    api.patch(WORKLOAD, "shop", {"spec": {"placements": [placement("default", ["AMS", "DFW"], 9)]}})
    assert json.loads(compute("status", "shop", "-o", "json").out)["observed"] is False


def test_before_the_first_city_reports(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload()
    result = compute("status", "shop")
    assert "Health       Unknown" in result.lines
    assert "  Waiting for the first city to report." in result.lines


def test_a_city_without_instances_shows_the_cause_of_its_deployment(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.workload(("DFW",))
    world.observe(condition("Available", "False", "NoMatchingLocation", "no site"))
    world.deployment("DFW")
    world.report("DFW", 0, 0, available=condition("Available", "False", "NoMatchingLocation", "No site serves DFW."))
    result = compute("status", "shop")
    assert "Health       Unavailable — NoMatchingLocation" in result.lines
    assert "  DFW: 2 instances not ready — NoMatchingLocation" in result.lines
    assert "    No site serves DFW." in result.lines
    assert "quota" not in result.out


def test_a_city_that_has_no_deployment_yet_is_shown_with_the_others(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.workload()
    world.observe()
    world.deployment("AMS")
    world.report("AMS", 2, 2)
    assert (
        "              DFW    —       2         datumcloud/d1-standard-2   [degraded]"
        in compute("status", "shop").lines
    )


def test_nothing_is_counted_in_a_city_that_has_reported_nothing(api: ApiServer, compute: Compute, world: World) -> None:
    """Instances of an earlier workload of the same name may still run there."""
    world.workload()
    world.observe()
    world.deployment("AMS")
    world.report("AMS", 2, 2)
    world.deployment("DFW")
    result = compute("status", "shop")
    assert "              DFW    —       2         datumcloud/d1-standard-2   [degraded]" in result.lines
    assert "  DFW: 2 instances not ready — not reported yet" in result.lines


def test_a_city_that_is_no_longer_asked_for_is_shown_until_it_is_gone(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.settled()
    api.patch(WORKLOAD, "shop", {"spec": {"placements": [placement("default", ["AMS"], 2)]}})
    assert (
        "              DFW    2/2     0         datumcloud/d1-standard-2   [removing]"
        in compute("status", "shop").lines
    )


def test_placements_are_blocks_in_the_order_of_the_spec(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(spec={"placements": [placement("us", ["DFW"], 1), placement("eu", ["AMS"], 1)]})
    world.observe()
    for name, city in (("us", "DFW"), ("eu", "AMS")):
        world.deployment(city, name, 1)
        world.report(city, 1, 1, desired=1, placement_name=name)
    rows = [line.split()[0] for line in compute("status", "shop").lines if "d1-standard" in line]
    assert rows == ["us", "eu"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_at_80_columns_in_colour_and_in_other_character_sets(
    api: ApiServer, compute: Compute, world: World, encoding: str
) -> None:
    degraded(world)
    result = compute("status", "shop", tty=True, columns=80, encoding=encoding)
    dash = "—" if encoding == "utf-8" else "-"
    assert f"Health       \x1b[33mDegraded {dash} 1 instances below desired count\x1b[0m" in result.lines
    assert "\x1b[33m[degraded]\x1b[0m" in result.out
    plain = compute("status", "shop", tty=True, columns=80, encoding=encoding, environ={"NO_COLOR": "1"})
    assert "\x1b" not in plain.out
    assert max(map(len, plain.lines)) <= 80


def test_the_last_change_of_somebody_counts_not_that_of_a_controller(
    api: ApiServer, compute: Compute, world: World, clock: FakeClock
) -> None:
    world.settled()
    clock.turn(7200)
    later, latest = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    managed = [
        {"manager": "me", "time": later.isoformat(), "fieldsV1": {"f:spec": {"f:placements": {}}}},
        {"manager": "controller", "time": latest.isoformat(), "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": "controller", "time": latest.isoformat(), "fieldsV1": {"f:metadata": {"f:finalizers": {}}}},
    ]
    body = api.do(api.engine._planes["demo"].answer(Call("GET", WORKLOAD.path("default", "shop")))).body
    value = json.loads(body)
    value["metadata"]["managedFields"] = managed
    api.rules.append(Rule("GET", "/workloads/shop", lambda: Answer(200, json.dumps(value).encode())))
    assert "Updated      1h ago                          Revision #—" in compute("status", "shop").lines


def test_the_time_of_an_external_change_is_not_invented(
    api: ApiServer, compute: Compute, world: World, clock: FakeClock
) -> None:
    """Where the server does not remember it."""
    compute("deploy", "shop", "--image=registry.example/shop:1", "--city=AMS", "--no-wait", "-y", "--no-save")
    clock.turn(2220)
    assert "Updated      37m ago                         Revision #1" in compute("status", "shop").lines
    cities = api.get(WORKLOAD, "shop").spec.placements[0].city_codes
    for replicas in (3, 1):
        edited = placement("default", cities, replicas) | {"scaleSettings": {"minReplicas": replicas}}
        api.patch(WORKLOAD, "shop", {"spec": {"placements": [edited]}})
        updated = next(line for line in compute("status", "shop").lines if line.startswith("Updated"))
        assert updated.startswith("Updated      —   "), "also when it is as it was before"
        assert json.loads(compute("status", "shop", "-o", "json").out)["updated"] is None
        described = compute("workloads", "describe", "shop").lines
        assert next(line for line in described if line.startswith("Updated")).split() == ["Updated", "—"]
