"""`rollout status`; the watch itself is tested with `deploy`."""

import json

import pytest

from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, FakeClock, World, condition, nothing, placement
from tests.cli.server import ApiServer


def rolling(world: World) -> None:
    world.workload(("DFW",))
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 1, 1, replicas=2)


@pytest.mark.parametrize(
    "words", [["rollout", "shop"], ["rollout", "status", "shop"], ["rollout", "--timeout", "1m", "shop"]]
)
def test_the_bare_form_is_status(api: ApiServer, compute: Compute, world: World, words: list[str]) -> None:
    rolling(world)
    result = compute(*words, steps=[lambda: world.report("DFW", 2, 2)])
    assert result.code == 0
    assert result.out == (
        'Rolling workload "shop"\n'
        "\n"
        "  PLACEMENT   CITY   DESIRED   UPDATED   READY   OLD   PHASE\n"
        "  default     DFW    2         1         1       0     Updating\n"
        "  default     DFW    2         2         2       0     Done\n"
        "Rollout complete in 2.0s.\n"
    )


def test_a_workload_named_like_a_verb_needs_the_long_form(api: ApiServer, compute: Compute) -> None:
    World(api, "restart").settled(("DFW",))
    assert compute("rollout", "status", "restart").lines[0] == 'Rolling workload "restart"'


def test_without_watch_it_shows_the_current_progress(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "status", "shop", "--no-watch")
    assert result.code == 0
    assert result.lines[-1] == "  default     DFW    2         1         1       0     Updating"


def test_json_is_one_object_per_change(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "shop", "-o", "json", steps=[nothing, lambda: world.report("DFW", 2, 2)])
    assert result.err == ""
    rows = [json.loads(line) for line in result.lines]
    assert rows[0] == {
        "time": "2026-11-02T12:00:00Z", "placement": "default", "city": "DFW", "updated": 1, "ready": 1, "old": 0,
        "desired": 2, "phase": "Updating", "reason": "", "message": "",
    }  # fmt: skip
    assert [row.get("phase") for row in rows] == ["Updating", "Done", None]
    assert rows[-1] == {"complete": True, "elapsedSeconds": 4}


def test_json_has_no_numbers_from_before_the_change(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    api.patch(WORKLOAD, "shop", {"spec": {"placements": [placement("default", ["DFW"], 3)]}})
    result = compute("rollout", "status", "shop", "--no-watch", "-o", "json")
    row = json.loads(result.lines[0])
    assert [row[key] for key in ("desired", "updated", "ready", "old", "phase")] == [3, None, 2, None, "Pending"]


def test_json_of_one_that_takes_too_long(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "shop", "-o", "json", "--timeout=2s", steps=[nothing])
    assert result.code == 5
    assert json.loads(result.lines[-1]) == {"complete": False, "elapsedSeconds": 2}


def test_two_placements_in_one_city_are_two_rows(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(spec={"placements": [placement("a", ["DFW"], 2), placement("longer-name", ["DFW"], 2)]})
    world.observe()
    for name in ("a", "longer-name"):
        world.deployment("DFW", name)
        world.report("DFW", 2, 2, placement_name=name)
    assert compute("rollout", "shop").lines[2:5] == [
        "  PLACEMENT     CITY   DESIRED   UPDATED   READY   OLD   PHASE",
        "  a             DFW    2         2         2       0     Done",
        "  longer-name   DFW    2         2         2       0     Done",
    ]


def test_an_instance_explains_what_its_deployment_does_not(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    world.instance("DFW", 0)
    world.instance("DFW", 1, condition("Ready", "False", "PendingQuota", "0 available"))
    result = compute("rollout", "shop", "--timeout=40s", steps=[nothing] * 20)
    assert "    0 available" in result.lines
    assert any("quota was denied, so the instance may not run" in line for line in result.lines)
    reads = [seen for seen in api.requests if seen.path.endswith("/instances")]
    assert reads


def test_colours_of_phases(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "shop", "--color=always", steps=[lambda: world.report("DFW", 2, 2)])
    assert "\x1b[33mUpdating\x1b[0m" in result.out
    assert "\x1b[32mDone\x1b[0m" in result.out


def test_with_real_watches(api: ApiServer, compute: Compute, world: World) -> None:
    """The same through threads and sockets; another thread makes the changes instead of a script."""
    import threading

    from datum_compute.cli.talk.watching import Watches

    rolling(world)
    reported = threading.Event()

    def report() -> None:
        if not reported.is_set():
            reported.set()
            threading.Thread(target=lambda: world.report("DFW", 2, 2)).start()

    api.before("GET", "/workloaddeployments", report, times=3)
    compute.watching = Watches
    result = compute("rollout", "shop")
    assert (result.code, result.lines[-2].split()[-1]) == (0, "Done")


@pytest.mark.parametrize("reason", ["ImageUnavailable", "InstanceCrashing"])
def test_a_failing_start_is_reported_at_once_for_every_city_with_who_can_act(
    compute: Compute, world: World, reason: str
) -> None:
    world.workload()
    world.observe()
    for city in ("AMS", "DFW"):
        world.deployment(city)
        world.report(city, 1, 0, available=condition("Available", "False", "InstancesProvisioning", "not yet"))
        world.instance(city, 0, condition("Programmed", "False", reason, "it does not start"))
    result = compute("rollout", "status", "shop", "--timeout=20s", steps=[nothing] * 10)
    blocked = result.lines.index("    it does not start")
    assert blocked == 5, "below the first row and the sentence"
    assert result.lines[4].startswith("    shop is held up in AMS by ")
    assert result.lines[4].endswith("You can act.")
    assert "deploy an image" in result.lines[blocked + 1] or "image's name" in result.lines[blocked + 1]
    assert "on its own" not in result.out
    assert result.code == 5
    assert f"  AMS, DFW: {reason} — it does not start\n" in result.err


def test_a_server_that_falls_silent_is_named_when_the_watch_ends(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.workload(("DFW",))
    world.observe()

    def away() -> None:
        api.answer("GET", "/workloads/", 500, "out of order", times=1000)

    result = compute("rollout", "status", "shop", "--timeout=20s", steps=[away, *[nothing] * 10])
    assert result.code == 5
    assert "Error: the server has not answered for" in result.err
    assert "Still rolling out" not in result.err


def test_a_timeout_names_an_earlier_deployment_that_is_waited_for(compute: Compute, world: World) -> None:
    world.workload(("DFW",))
    world.observe()
    world.deployment("DFW")
    sentence = "Waiting for an earlier deployment of this name: 1 instance is still stopping"
    stopping = condition("Available", "False", "Stopping", sentence)
    world.report("DFW", 0, 0, replicas=1, desired=0, available=stopping, generation=-1)
    result = compute("rollout", "status", "shop", "--timeout=10s", steps=[nothing] * 5)
    assert (result.code, f"  DFW: Stopping — {sentence}" in result.err.splitlines()) == (5, True)


def test_an_instance_that_takes_long_to_stop_is_named(compute: Compute, world: World) -> None:
    """Others are ready meanwhile, so the deployment reports no cause."""
    rolling(world)
    world.instance("DFW", 0)
    world.instance("DFW", 1, condition("Ready", "False", "Stopping", "The instance is stopping"))
    result = compute("rollout", "shop", "--timeout=40s", steps=[nothing] * 20)
    assert "    shop-default-dfw-1 is stopping" in result.lines
    assert any("in DFW: the instance is stopping, for 32s; normal under 10m." in line for line in result.lines)
    assert "rovision" not in result.out + result.err
    assert (result.code, "  DFW: Stopping — shop-default-dfw-1 is stopping" in result.err.splitlines()) == (5, True)


def test_times_are_those_since_the_change_with_tenths(compute: Compute, world: World, clock: FakeClock) -> None:
    rolling(world)
    clock.turn(1.5)
    result = compute("rollout", "shop", "-o", "json", steps=[lambda: world.report("DFW", 2, 2)])
    assert json.loads(result.lines[-1]) == {"complete": True, "elapsedSeconds": 3.5}


def test_the_duration_of_a_rollout_that_was_complete_before_is_not_known(compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    assert compute("rollout", "shop").lines[-1] == "Rollout complete."
    result = compute("rollout", "shop", "-o", "json")
    assert json.loads(result.lines[-1]) == {"complete": True, "elapsedSeconds": None}


def test_the_duration_of_an_external_change_is_not_known(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    api.patch(WORKLOAD, "shop", {"spec": {"placements": [placement("default", ["DFW"], 1)]}})
    world.observe()
    result = compute("rollout", "shop", steps=[lambda: world.report("DFW", 1, 1, desired=1)])
    assert (result.code, result.lines[-1]) == (0, "Rollout complete.")


@pytest.mark.parametrize("paused", [False, True])
def test_a_workload_being_deleted_shows_what_it_waits_for(
    api: ApiServer, compute: Compute, world: World, paused: bool
) -> None:
    world.settled()
    marks = {"finalizers": ["example.com/controller"], "annotations": {ROLLOUT_PAUSED: "true"} if paused else {}}
    api.patch(WORKLOAD, "shop", {"metadata": marks})
    api.delete(WORKLOAD, "shop")
    result = compute("rollout", "status", "shop")
    assert result.code == 1
    assert result.err.splitlines()[0] == 'Error: workload "shop" is being deleted: waiting for AMS, DFW'
    assert "paused" not in result.out
    assert "Next steps" not in compute("status", "shop").out


def test_a_deletion_in_the_middle_ends_the_wait(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    api.patch(WORKLOAD, "shop", {"metadata": {"finalizers": ["example.com/controller"]}})
    result = compute("rollout", "shop", steps=[lambda: api.delete(WORKLOAD, "shop")])
    assert (result.code, 'workload "shop" is being deleted: waiting for DFW' in result.err) == (1, True)
