import json

import pytest

from datum_compute.api.quota import ALLOWANCE_BUCKET, RESOURCE_REGISTRATION
from datum_compute.cli.commands.quota import bar
from tests.cli.conftest import Compute, World, condition
from tests.cli.server import ApiServer

CONSUMER = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
GRANTED = condition("QuotaGranted", "True", "QuotaAvailable")
DENIED = condition("QuotaGranted", "False", "QuotaExceeded", "Requested 1 instance, 0 available.")


def bucket(api: ApiServer, resource: str, limit: int, allocated: int, kind: str = "Project") -> None:
    name = f"bucket-{resource.replace('/', '-')}-{kind.lower()}"
    labels = {"quota.miloapis.com/consumer-kind": kind}
    body = ALLOWANCE_BUCKET.body(name, "milo-system", labels=labels)
    api.create(ALLOWANCE_BUCKET, body | {"spec": {"consumerRef": CONSUMER, "resourceType": resource}})
    status = {"limit": limit, "allocated": allocated, "available": limit - allocated}
    api.set_status(ALLOWANCE_BUCKET, name, status, namespace="milo-system")


def usual(api: ApiServer, instances: int = 4) -> None:
    bucket(api, "compute.datumapis.com/vcpus", 8000, 4500)
    bucket(api, "compute.datumapis.com/memory", 16384, 8192)
    bucket(api, "compute.datumapis.com/instances", 4, instances)
    bucket(api, "compute.datumapis.com/workloads", 10, 1)


def waiting(api: ApiServer) -> None:
    world = World(api)
    world.workload()
    world.instance("AMS", 0, GRANTED)
    world.instance("AMS", 1, GRANTED)
    world.instance("DFW", 0, GRANTED)
    world.instance("DFW", 1, DENIED)


def test_limits_and_use_are_in_units_for_people(api: ApiServer, compute: Compute) -> None:
    usual(api)
    bucket(api, "compute.datumapis.com/instances", 99, 0, kind="Organization")
    bucket(api, "dns.datumapis.com/zones", 99, 0)
    result = compute("quota")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "Quota for project demo\n"
        "\n"
        "RESOURCE    UNIT        LIMIT   USED   AVAILABLE   USAGE\n"
        "Workloads   workloads   10      1      9           [##------------------]  10%\n"
        "Instances   instances   4       4      0           [####################] 100%\n"
        "vCPUs       vCPUs       8       4.5    3.5         [###########---------]  56%\n"
        "Memory      MiB         16384   8192   8192        [##########----------]  50%\n"
    )


def test_large_amounts_are_written_out(api: ApiServer, compute: Compute) -> None:
    bucket(api, "compute.datumapis.com/memory", 2048000, 1024000)
    bucket(api, "compute.datumapis.com/vcpus", 1234567500, 1000)
    assert [line.split()[2:5] for line in compute("quota").lines[3:]] == [
        ["1234567.5", "1", "1234566.5"],
        ["2048000", "1024000", "1024000"],
    ]


def test_cities_are_shown_when_something_waits(api: ApiServer, compute: Compute) -> None:
    usual(api)
    waiting(api)
    lines = compute("quota").lines
    assert lines[lines.index("", 2) + 1 :] == [
        "CITY             TYPE                       IN USE   WAITING",
        "AMS              datumcloud/d1-standard-2   2        0",
        "DFW [at limit]   datumcloud/d1-standard-2   1        1",
        "  DFW: Requested 1 instance, 0 available.",
    ]


@pytest.mark.parametrize(
    ("flags", "cities"), [([], []), (["--breakdown"], ["AMS"]), (["--city=ams"], ["AMS"]), (["--city=DFW"], [])]
)
def test_cities_are_shown_when_asked_for(api: ApiServer, compute: Compute, flags: list[str], cities: list[str]) -> None:
    usual(api)
    world = World(api)
    world.workload()
    world.instance("AMS", 0, GRANTED)
    found = json.loads(compute("quota", *flags, "-o", "json").out)
    assert [use["city"] for use in found["cities"]] == cities


def test_constrained_keeps_what_is_used_up(api: ApiServer, compute: Compute) -> None:
    usual(api)
    waiting(api)
    found = json.loads(compute("quota", "--constrained", "-o", "json").out)
    assert [resource["resource"] for resource in found["resources"]] == ["Instances"]
    assert [use["city"] for use in found["cities"]] == ["DFW"]


def test_constrained_with_nothing_used_up(api: ApiServer, compute: Compute) -> None:
    usual(api, instances=1)
    assert compute("quota", "--constrained").out == "No resource types are at their limit.\n"


def test_a_project_without_quota_says_so(api: ApiServer, compute: Compute) -> None:
    text = (
        "No quota configured for this project.\n"
        "Ask Datum to set up compute quota; nothing in your workload can change this.\n"
    )
    assert compute("quota").out == text
    api.answer("GET", "allowancebuckets", 404, reason="NotFound")
    assert compute("quota").out == text


def test_the_unit_of_an_unknown_type_is_read_from_the_server(api: ApiServer, compute: Compute) -> None:
    bucket(api, "compute.datumapis.com/gpus", 2, 1)
    assert compute("quota").lines[-1].split()[:3] == ["gpus", "gpus", "2"]
    spec = {
        "consumerType": {"kind": "Project"}, "type": "Entity", "resourceType": "compute.datumapis.com/gpus",
        "baseUnit": "card", "displayUnit": "cards", "unitConversionFactor": 1,
    }  # fmt: skip
    api.create(RESOURCE_REGISTRATION, RESOURCE_REGISTRATION.body("gpus") | {"spec": spec}, plane="root")
    assert compute("quota").lines[-1].split()[:3] == ["gpus", "cards", "2"]


@pytest.mark.parametrize(
    ("used", "limit", "expected"),
    [
        (0, 10, "[--------------------]   0%"),
        (10, 10, "[####################] 100%"),
        (15, 10, "[####################] 150%"),
        (0, 0, "N/A"),
    ],
)
def test_the_bar(used: float, limit: float, expected: str) -> None:
    assert bar(used, limit) == expected


def test_help_explains_that_quota_is_not_per_city(compute: Compute) -> None:
    assert "Quota belongs to the project, not to a city" in compute("quota", "--help").out


def test_keys_are_in_camel_case(api: ApiServer, compute: Compute) -> None:
    usual(api)
    waiting(api)
    _, dfw = json.loads(compute("quota", "-o", "json").out)["cities"]
    assert (dfw["city"], dfw["inUse"], dfw["waiting"], dfw["atLimit"]) == ("DFW", 1, 1, True)
