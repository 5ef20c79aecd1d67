import json

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.labels import CITY_RESTARTS, RESTARTED_AT
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, FakeClock, World, nothing, placement
from tests.cli.server import ApiServer


def restarted(api: ApiServer) -> str | None:
    return api.get(WORKLOAD, "shop").spec.template.metadata.annotations.get(RESTARTED_AT)


def restarted_in(api: ApiServer, deployment: str) -> str | None:
    found = api.get(WORKLOAD_DEPLOYMENT, deployment)
    return found.spec.template.metadata.annotations.get(RESTARTED_AT)


@pytest.mark.parametrize("words", [["restart"], ["rollout", "restart"]])
def test_the_whole_workload(api: ApiServer, compute: Compute, world: World, words: list[str]) -> None:
    world.settled()
    result = compute(*words, "shop")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        'Restarting workload "shop" — rolling restart initiated.\n'
        "Run 'compute rollout status shop' to watch progress.\n"
    )
    assert restarted(api) == "2026-11-02T12:00:00Z"


def test_twice_in_one_second_are_two_restarts(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    compute("restart", "shop")
    compute("restart", "shop")
    assert restarted(api) == "2026-11-02T12:00:01Z"


DEPLOYMENTS = ("a-dfw", "b-dfw", "a-ams")


@pytest.fixture
def placed(world: World) -> World:
    """Two placements in DFW and one in AMS."""
    world.workload(spec={"placements": [placement("a", ["DFW", "AMS"], 1), placement("b", ["DFW"], 1)]})
    for name, city in (("a", "DFW"), ("a", "AMS"), ("b", "DFW")):
        world.deployment(city, name)
    return world


def noted(api: ApiServer) -> dict[str, str]:
    found: dict[str, str] = json.loads(api.get(WORKLOAD, "shop").metadata.annotations.get(CITY_RESTARTS, "{}"))
    return found


def hand_on(api: ApiServer, *deployments: str) -> None:
    """What the workload controller does with a noted restart."""
    for name in deployments:
        mark = {"metadata": {"annotations": {RESTARTED_AT: noted(api)["DFW"]}}}
        api.patch(WORKLOAD_DEPLOYMENT, f"shop-{name}", {"spec": {"template": mark}})


def test_one_city_is_noted_on_the_workload_and_handed_on_by_the_server(
    api: ApiServer, compute: Compute, placed: World, clock: FakeClock
) -> None:
    generation = placed.read().metadata.generation
    api.before("GET", "/workloaddeployments", nothing, times=2)
    api.before("GET", "/workloaddeployments", lambda: hand_on(api, "a-dfw"))
    api.before("GET", "/workloaddeployments", lambda: hand_on(api, "b-dfw"))
    result = compute("restart", "shop", "--city=dfw")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0] == 'Restarting workload "shop" in DFW — rolling restart initiated.'
    assert noted(api) == {"DFW": "2026-11-02T12:00:00Z"}
    assert placed.read().metadata.generation == generation  # nothing of it rolls anywhere else
    assert not [seen for seen in api.writes() if "/workloaddeployments" in seen.path]
    assert sum(clock.slept) < 1


def test_deployments_that_the_server_does_not_restart_are_restarted_from_here(
    api: ApiServer, compute: Compute, placed: World, clock: FakeClock
) -> None:
    result = compute("restart", "shop", "--city=dfw")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0] == 'Restarting workload "shop" in DFW — rolling restart initiated.'
    assert restarted(api) is None
    mark = noted(api)["DFW"]
    assert [restarted_in(api, f"shop-{name}") for name in DEPLOYMENTS] == [mark, mark, None]
    assert 10 <= sum(clock.slept) < 12


def test_only_deployments_that_the_server_did_not_restart_are_written(
    api: ApiServer, compute: Compute, placed: World
) -> None:
    api.before("GET", "/workloaddeployments", nothing)
    api.before("GET", "/workloaddeployments", lambda: hand_on(api, "b-dfw"))
    assert compute("restart", "shop", "--city=DFW").code == 0
    written = [seen.path.rpartition("/")[2] for seen in api.writes() if "/workloaddeployments/" in seen.path]
    assert written == ["shop-a-dfw"]


def test_without_permission_to_restart_deployments_the_error_says_what_is_left(
    api: ApiServer, compute: Compute, placed: World
) -> None:
    api.answer("PUT", "/workloaddeployments/", 403, reason="Forbidden")
    result = compute("restart", "shop", "--city=DFW")
    assert result.code == 7
    assert result.err == (
        'Error: the server did not restart workload "shop" in DFW within 10 s, and you may not write its deployments\n'
        "  The restart is noted on the workload and happens when the server processes the note.\n"
        "  A server that does not know these notes needs the role compute-user-on-project-city-restart:"
        " ask an administrator.\n"
    )
    assert noted(api) == {"DFW": "2026-11-02T12:00:00Z"}


@pytest.mark.parametrize("ahead", ["workload", "note", "deployment"])
def test_a_city_restart_is_later_than_all_before_it(
    api: ApiServer, compute: Compute, placed: World, ahead: str
) -> None:
    """Whose clock was ahead when it was written."""
    future = "2026-11-02T12:05:00Z"
    mark = {"metadata": {"annotations": {RESTARTED_AT: future}}}
    note = json.dumps({"DFW": future, "AMS": "2026-11-01T00:00:00Z", "GONE": "2026-11-01T00:00:00Z"})
    match ahead:
        case "workload":
            api.patch(WORKLOAD, "shop", {"spec": {"template": mark}})
        case "note":
            api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {CITY_RESTARTS: note}}})
        case "deployment":
            api.patch(WORKLOAD_DEPLOYMENT, "shop-b-dfw", {"spec": {"template": mark}})
    assert compute("restart", "shop", "--city=DFW").code == 0
    assert noted(api)["DFW"] == "2026-11-02T12:05:01Z"
    assert noted(api).keys() - {"DFW"} == ({"AMS"} if ahead == "note" else set())
    assert restarted_in(api, "shop-a-dfw") == restarted_in(api, "shop-b-dfw") == "2026-11-02T12:05:01Z"


def test_a_restart_at_the_end_of_time_does_not_crash(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    mark = {"metadata": {"annotations": {RESTARTED_AT: "9999-12-31T23:59:59Z"}}}
    api.patch(WORKLOAD, "shop", {"spec": {"template": mark}})
    assert compute("restart", "shop").code == 0


def test_restarting_a_city_without_a_deployment_fails(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    result = compute("restart", "shop", "--city=SIN")
    assert result.code == 3
    assert result.err == ('Error: no deployment found for workload "shop" in city "SIN"\n  It runs in AMS, DFW.\n')
    assert api.writes() == []


def test_wait_does_not_end_before_the_city_has_seen_it(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    result = compute(
        "restart", "shop", "--city=DFW", "--wait",
        steps=[lambda: world.report("DFW", 1, 1, replicas=2), lambda: world.report("DFW", 2, 2)],
    )  # fmt: skip
    assert [line.split()[-1] for line in result.lines if line.startswith("  default")] == [
        "Pending", "Updating", "Done",
    ]  # fmt: skip
