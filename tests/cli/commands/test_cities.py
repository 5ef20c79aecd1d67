import json

from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from tests.cli.conftest import Compute, World, condition
from tests.cli.server import ApiServer


def test_offered_and_used_cities(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW", "OLD"))
    World(api, "other").workload(("DFW",))
    closed = condition("Available", "False", "LocationNotReady")
    api.set_status(LOCATION_BINDING, "sin", {"conditions": [closed]})
    result = compute("cities")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "CITY   NAME   REGION   AVAILABLE   WORKLOADS\n"
        "AMS    Ams    earth    yes         0\n"
        "DFW    Dfw    earth    yes         2\n"
        "OLD    —      —        no          1\n"
        "SIN    Sin    earth    no          0\n"
    )


def test_a_city_with_two_locations_is_one_and_available_when_one_is(api: ApiServer, compute: Compute) -> None:
    spec = {"displayName": "Dallas 2", "topology": {TOPOLOGY_CITY: "DFW"}}
    api.create(LOCATION_BINDING, LOCATION_BINDING.body("dfw-2") | {"spec": spec})
    api.set_status(LOCATION_BINDING, "dfw", {"conditions": [condition("Available", "False", "LocationNotReady")]})
    assert "DFW    Dfw, Dallas 2   earth    yes         0" in compute("cities", "list").lines


def test_other_formats(api: ApiServer, compute: Compute) -> None:
    assert json.loads(compute("cities", "-o", "json").out)[0] == {
        "city": "AMS", "name": "Ams", "region": "earth", "available": True, "workloads": 0,
    }  # fmt: skip
    assert compute("cities", "-o", "name").lines == ["city/AMS", "city/DFW", "city/SIN"]


def test_none(bare_api: ApiServer, compute: Compute) -> None:
    result = compute("cities", environ={"DATUM_COMPUTE_SKIP_ACCESS_CHECK": "1"})
    assert (result.code, result.out) == (0, "No cities are offered to project demo.\n")


def test_a_plane_without_bindings(api: ApiServer, compute: Compute, world: World) -> None:
    api.answer("GET", "locationbindings", 404, reason="NotFound")
    world.workload(("DFW",))
    assert compute("cities").lines[1:] == ["DFW    —      —        no          1"]


def test_one_city_with_its_locations_and_workloads(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    World(api, "fresh").workload(("DFW", "AMS"))
    World(api, "elsewhere").workload(("AMS",))
    spec = {"displayName": "Dallas 2", "topology": {TOPOLOGY_CITY: "DFW"}}
    api.create(LOCATION_BINDING, LOCATION_BINDING.body("dfw-2") | {"spec": spec})
    api.set_status(LOCATION_BINDING, "dfw-2", {"conditions": [condition("Available", "False", "Full", "no room")]})
    result = compute("cities", "describe", "dfw")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "City         DFW\n"
        "Name         Dfw, Dallas 2\n"
        "Region       earth\n"
        "Available    yes\n"
        "\n"
        "  LOCATION   NAME       AVAILABLE   MESSAGE\n"
        "  dfw        Dfw        yes         —\n"
        "  dfw-2      Dallas 2   no          Full — no room\n"
        "\n"
        "  WORKLOAD   READY\n"
        "  fresh      —\n"
        "  shop       2/2\n"
    )
    found = json.loads(compute("cities", "get", "DFW", "-o", "json").out)
    assert (found["city"], found["available"], found["workloads"]) == ("DFW", True, ["fresh", "shop"])
    assert compute("cities", "describe", "dfw", "-o", "name").out == "city/DFW\n"


def test_one_city_that_nobody_uses(api: ApiServer, compute: Compute) -> None:
    assert compute("cities", "describe", "SIN").lines[-1] == "  No workload uses it."


def test_one_city_that_is_no_longer_offered(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("OLD",))
    assert "Available    no  (no longer offered)" in compute("cities", "describe", "old").lines


def test_one_city_that_is_unknown(api: ApiServer, compute: Compute) -> None:
    result = compute("cities", "describe", "XYZ")
    assert (result.code, result.err) == (
        3, 'Error: city "XYZ" is not offered to project demo, and no workload uses it\n\ncompute cities\n',
    )  # fmt: skip
