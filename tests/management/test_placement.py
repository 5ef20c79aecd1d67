"""Which deployments a workload should have."""

import json
from collections.abc import Sequence
from copy import deepcopy

import pytest
from msgspec.structs import replace

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.template_hash import template_hash
from datum_compute.api.workload import Workload
from datum_compute.kube.meta import Json, as_dict, decode, encode
from datum_compute.management.placement import Wanted, offered_cities, wanted

RESTARTED_AT = "compute.datumapis.com/restartedAt"
CITY_RESTARTS = "compute.datumapis.com/city-restarts"
PAUSED = "compute.datumapis.com/rollout-paused"
CITY = "topology.datum.net/city-code"

TEMPLATE: Json = {
    "metadata": {"labels": {"app": "hello"}, "later": 1},
    "spec": {
        "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}},
        "networkInterfaces": [{"network": {"name": "default"}}],
        "later": {"field": [1, 2]},
    },
}
SCALE: Json = {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady", "later": True}


def restarted(at: str) -> Json:
    template = deepcopy(TEMPLATE)
    if at:
        template["metadata"]["annotations"] = {RESTARTED_AT: at}
    return template


def workload(placements: Sequence[tuple[str, Sequence[str]]], template: Json | None = None) -> Workload:
    spec = {
        "template": template or TEMPLATE,
        "placements": [
            {"name": name, "cityCodes": list(cities), "scaleSettings": SCALE} for name, cities in placements
        ],
    }
    metadata = {"name": "web", "namespace": "default", "uid": "uid-of-web"}
    return decode(encode({"metadata": metadata, "spec": spec}), Workload)


def deployment(
    name: str, placement: str, city: str, template: Json | None = None, created: str = "2026-06-01T10:00:00Z"
) -> WorkloadDeployment:
    spec = {
        "workloadRef": {"name": "web", "uid": "uid-of-web"},
        "placementName": placement,
        "cityCode": city,
        "template": template or TEMPLATE,
        "scaleSettings": SCALE,
    }
    metadata = {"name": name, "namespace": "default", "creationTimestamp": created}
    return decode(encode({"metadata": metadata, "spec": spec}), WorkloadDeployment)


def places(entries: Sequence[Wanted]) -> list[tuple[str, str, str]]:
    return [(entry.name, entry.placement, entry.city) for entry in entries]


def spec_of(entry: Wanted) -> Json:
    return as_dict(entry.spec_json)


# Names and order


def test_there_is_one_entry_per_placement_and_city_in_the_order_of_the_spec() -> None:
    assert places(wanted(workload([("zeta", ["LHR", "DFW"]), ("alpha", ["DFW"])]), [])) == [
        ("web-zeta-lhr", "zeta", "LHR"),
        ("web-zeta-dfw", "zeta", "DFW"),
        ("web-alpha-dfw", "alpha", "DFW"),
    ]


def test_a_city_named_twice_counts_once() -> None:
    assert places(wanted(workload([("main", ["DFW", "AMS", "DFW"])]), [])) == [
        ("web-main-dfw", "main", "DFW"),
        ("web-main-ams", "main", "AMS"),
    ]


def test_an_existing_deployment_keeps_its_name() -> None:
    named_otherwise = deployment("web-1234567890", "main", "DFW")
    entries = wanted(workload([("main", ["DFW", "AMS"])]), [named_otherwise])
    assert places(entries) == [("web-1234567890", "main", "DFW"), ("web-main-ams", "main", "AMS")]
    assert [entry.existing for entry in entries] == [named_otherwise, None]


def test_a_deployment_of_another_placement_or_city_is_not_taken() -> None:
    others = [deployment("web-other-dfw", "other", "DFW"), deployment("web-main-ams", "main", "AMS")]
    (entry,) = wanted(workload([("main", ["DFW"])]), others)
    assert (entry.name, entry.existing) == ("web-main-dfw", None)


@pytest.mark.parametrize(("first", "second"), [("web-main-dfw", "a-copy"), ("a-copy", "web-main-dfw")])
def test_the_older_of_two_deployments_for_one_place_is_kept(first: str, second: str) -> None:
    older = deployment(first, "main", "DFW", created="2026-06-01T09:00:00Z")
    younger = deployment(second, "main", "DFW")
    for existing in ([older, younger], [younger, older]):
        (entry,) = wanted(workload([("main", ["DFW"])]), existing)
        assert (entry.name, entry.existing) == (first, older)


# The spec


def test_the_spec_of_a_deployment() -> None:
    (entry,) = wanted(workload([("main", ["New York"])]), [])
    assert spec_of(entry) == {
        "workloadRef": {"name": "web", "uid": "uid-of-web"},
        "placementName": "main",
        "cityCode": "New York",
        "template": TEMPLATE,
        "scaleSettings": SCALE,
    }


def test_unknown_fields_are_passed_on() -> None:
    (entry,) = wanted(workload([("main", ["DFW"])]), [deployment("web-main-dfw", "main", "DFW", restarted(NEWER))])
    template = spec_of(entry)["template"]
    assert template["spec"]["later"] == {"field": [1, 2]}
    assert template["metadata"]["later"] == 1
    assert spec_of(entry)["scaleSettings"]["later"] is True


def test_the_template_is_passed_on_unchanged() -> None:
    requested = workload([("main", ["DFW"])])
    before = template_hash(requested.template_json)
    (entry,) = wanted(requested, [deployment("web-main-dfw", "main", "DFW", restarted(NEWER))])
    assert template_hash(requested.template_json) == before
    assert requested.spec.template.metadata.annotations == {}
    (fresh,) = wanted(requested, [])
    assert template_hash(encode(spec_of(fresh)["template"])) == before
    assert spec_of(entry)["template"]["metadata"]["labels"] == {"app": "hello"}


# A restart of one city

OLDER = "2026-06-01T11:00:00Z"
NEWER = "2026-06-01T12:00:00Z"
LATEST = "2026-06-01T13:00:00Z"

RESTARTS: dict[str, tuple[str, str, str]] = {  # the workload's, the deployment's, and the expected one
    "none": ("", "", ""),
    "only the workload's": (OLDER, "", OLDER),
    "only the deployment's": ("", OLDER, OLDER),
    "the deployment's is newer": (OLDER, NEWER, NEWER),
    "the deployment's is older": (NEWER, OLDER, NEWER),
    "equal": (NEWER, NEWER, NEWER),
    "the same moment in other words": (NEWER, "2026-06-01T14:00:00+02:00", NEWER),
    "newer only by its time zone": (NEWER, "2026-06-01T11:30:00-01:00", "2026-06-01T11:30:00-01:00"),
    "newer by a fraction": (NEWER, "2026-06-01T12:00:00.5Z", "2026-06-01T12:00:00.5Z"),
    "the deployment's is malformed": (OLDER, "yesterday", OLDER),
    "the deployment's is malformed, the workload has none": ("", "yesterday", ""),
    "the workload's is malformed": ("yesterday", OLDER, OLDER),
    "both are malformed": ("yesterday", "today", "yesterday"),
    "the deployment's has no time zone": (OLDER, "2026-06-01T12:00:00", OLDER),
    "the workload's has no time zone": ("2026-06-01T12:00:00", OLDER, OLDER),
    "the deployment's is empty": (OLDER, " ", OLDER),
}


@pytest.mark.parametrize(("requested", "own", "expected"), RESTARTS.values(), ids=RESTARTS.keys())
def test_a_newer_restart_of_one_city_survives(requested: str, own: str, expected: str) -> None:
    existing = deployment("web-main-dfw", "main", "DFW", restarted(own))
    dfw, ams = wanted(workload([("main", ["DFW", "AMS"])], restarted(requested)), [existing])
    assert spec_of(dfw)["template"] == restarted(expected)
    assert spec_of(ams)["template"] == restarted(requested)


OF_CITIES: dict[
    str, tuple[str, str, str, str]
] = {  # the workload's, the city's, the deployment's, and the expected one
    "only the city's": ("", NEWER, "", NEWER),
    "the city's is newest": (OLDER, NEWER, OLDER, NEWER),
    "the workload's is newest": (NEWER, OLDER, OLDER, NEWER),
    "the deployment's is newest": (OLDER, OLDER, NEWER, NEWER),
    "the city's moment in other words": ("", "2026-06-01T14:00:00+02:00", NEWER, NEWER),
    "the city's is malformed": (OLDER, "yesterday", "", OLDER),
}


def noting(workload_: Workload, restarts: dict[str, str]) -> Workload:
    return replace(workload_, metadata=replace(workload_.metadata, annotations={CITY_RESTARTS: json.dumps(restarts)}))


@pytest.mark.parametrize(("requested", "of_city", "own", "expected"), OF_CITIES.values(), ids=OF_CITIES.keys())
def test_a_city_carries_the_newest_restart_and_the_others_do_not(
    requested: str, of_city: str, own: str, expected: str
) -> None:
    existing = [deployment(f"web-{item}-dfw", item, "DFW", restarted(own)) for item in ("main", "other")]
    placed = workload([("main", ["DFW", "AMS"]), ("other", ["DFW"])], restarted(requested))
    dfw, ams, other = wanted(noting(placed, {"DFW": of_city, "dfw": LATEST, "SIN": LATEST}), existing)
    assert spec_of(dfw)["template"] == spec_of(other)["template"] == restarted(expected)
    assert spec_of(ams)["template"] == restarted(requested)


def test_a_new_city_carries_its_restart_as_well() -> None:
    (entry,) = wanted(noting(workload([("main", ["DFW"])]), {"DFW": NEWER}), [])
    assert spec_of(entry)["template"] == restarted(NEWER)


def test_only_the_restart_survives_from_an_older_template() -> None:
    earlier = restarted(NEWER)
    earlier["metadata"]["labels"] = {"app": "earlier"}
    earlier["metadata"]["annotations"]["team"] = "earlier"
    template = restarted(OLDER)
    template["metadata"]["annotations"]["team"] = "now"
    (entry,) = wanted(workload([("main", ["DFW"])], template), [deployment("web-main-dfw", "main", "DFW", earlier)])
    assert spec_of(entry)["template"]["metadata"]["annotations"] == {RESTARTED_AT: NEWER, "team": "now"}
    assert spec_of(entry)["template"]["metadata"]["labels"] == {"app": "hello"}


# While paused


def paused(workload_: Workload) -> Workload:
    body = {"metadata": {"name": "web", "uid": workload_.metadata.uid, "annotations": {PAUSED: "true"}}}
    return decode(encode(body | {"spec": as_dict(workload_.spec_json)}), Workload)


def test_an_existing_deployment_keeps_its_template_and_is_held() -> None:
    earlier = restarted(OLDER)
    requested = paused(workload([("main", ["DFW", "AMS"])], restarted(NEWER)))
    held, new = wanted(requested, [deployment("web-main-dfw", "main", "DFW", earlier)])
    assert (spec_of(held)["template"], held.held) == (earlier, True)
    assert (spec_of(new)["template"], new.held) == (restarted(NEWER), False)


def test_a_deployment_with_the_requested_template_is_not_held() -> None:
    requested = paused(workload([("main", ["DFW"])], restarted(OLDER)))
    (entry,) = wanted(requested, [deployment("web-main-dfw", "main", "DFW", restarted(OLDER))])
    assert not entry.held


def test_a_newer_restart_of_one_city_does_not_count_as_held() -> None:
    requested = paused(workload([("main", ["DFW"])], restarted(OLDER)))
    (entry,) = wanted(requested, [deployment("web-main-dfw", "main", "DFW", restarted(NEWER))])
    assert not entry.held


# Offered cities


def test_offered_cities_are_sorted_and_named_once() -> None:
    assert offered_cities([{CITY: "LHR"}, {CITY: "DFW", "x": "y"}, {CITY: "LHR"}]) == ["DFW", "LHR"]


def test_a_location_without_a_city_offers_none() -> None:
    assert offered_cities([{}, {CITY: ""}, {"x": "y"}]) == []
