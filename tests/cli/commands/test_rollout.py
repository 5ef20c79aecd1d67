"""`rollout status`; the watch itself is tested with `deploy`."""

import json

import pytest

from tests.cli.conftest import Compute, World, condition, nothing
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
        "  PLACEMENT   CITY   UPDATED   READY   OLD   PHASE\n"
        "  default     DFW    1         1       1     Updating\n"
        "  default     DFW    2         2       0     Done\n"
        "Rollout complete in 2s.\n"
    )


def test_a_workload_named_like_a_verb_needs_the_long_form(api: ApiServer, compute: Compute) -> None:
    World(api, "restart").settled(("DFW",))
    assert compute("rollout", "status", "restart").lines[0] == 'Rolling workload "restart"'


def test_without_watching_it_shows_how_far_it_is(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "status", "shop", "--no-watch")
    assert result.code == 0
    assert result.lines[-1] == "  default     DFW    1         1       1     Updating"


def test_json_is_one_object_a_change(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "shop", "-o", "json", steps=[nothing, lambda: world.report("DFW", 2, 2)])
    assert result.err == ""
    rows = [json.loads(line) for line in result.lines]
    assert rows[0] == {
        "time": "2026-11-02T12:00:00Z", "placement": "default", "city": "DFW", "updated": 1, "ready": 1, "old": 1,
        "desired": 2, "phase": "Updating", "reason": "", "message": "",
    }  # fmt: skip
    assert [row.get("phase") for row in rows] == ["Updating", "Done", None]
    assert rows[-1] == {"complete": True, "elapsedSeconds": 4}


def test_json_of_one_that_takes_too_long(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "shop", "-o", "json", "--timeout=2s", steps=[nothing])
    assert result.code == 5
    assert json.loads(result.lines[-1]) == {"complete": False, "elapsedSeconds": 2}


def test_two_placements_in_one_city_are_two_rows(api: ApiServer, compute: Compute, world: World) -> None:
    from tests.cli.conftest import placement

    world.workload(spec={"placements": [placement("a", ["DFW"], 2), placement("longer-name", ["DFW"], 2)]})
    world.observe()
    for name in ("a", "longer-name"):
        world.deployment("DFW", name)
        world.report("DFW", 2, 2, placement_name=name)
    assert compute("rollout", "shop").lines[2:5] == [
        "  PLACEMENT     CITY   UPDATED   READY   OLD   PHASE",
        "  a             DFW    2         2       0     Done",
        "  longer-name   DFW    2         2       0     Done",
    ]


def test_an_instance_explains_what_its_deployment_does_not(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    world.instance("DFW", 0)
    world.instance("DFW", 1, condition("Ready", "False", "PendingQuota", "0 available"))
    result = compute("rollout", "shop", "--timeout=40s", steps=[nothing] * 20)
    assert "    Blocked reason: PendingQuota — 0 available" in result.lines
    reads = [seen for seen in api.requests if seen.path.endswith("/instances")]
    assert reads


def test_colours_of_phases(api: ApiServer, compute: Compute, world: World) -> None:
    rolling(world)
    result = compute("rollout", "shop", "--color=always", steps=[lambda: world.report("DFW", 2, 2)])
    assert "\x1b[33mUpdating\x1b[0m" in result.out
    assert "\x1b[32mDone\x1b[0m" in result.out


def test_with_real_watches(api: ApiServer, compute: Compute, world: World) -> None:
    """The same through threads and sockets; what moves is another thread, not a script."""
    import threading

    from datum_compute.cli.watching import Watches

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
