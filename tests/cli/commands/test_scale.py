import json

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, World, placement, template
from tests.cli.server import ApiServer


def replicas(api: ApiServer) -> list[int]:
    return [placement.scale_settings.min_replicas for placement in api.get(WORKLOAD, "shop").spec.placements]


def carry_down(api: ApiServer) -> None:
    """The workload controller hands the new number on."""
    api.patch(WORKLOAD_DEPLOYMENT, "shop-default-dfw", {"spec": {"scaleSettings": {"minReplicas": 3}}})


def two_placements(world: World) -> None:
    world.workload(spec={"placements": [placement("us", ["DFW"], 1), placement("eu", ["AMS"], 2)]})


def test_all_placements(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)
    result = compute("scale", "shop", "--min=4")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        'Scaled workload "shop" — min replicas set to 4 across 2 placement(s).\n'
        "Run 'compute rollout status shop' to watch progress.\n"
    )
    assert replicas(api) == [4, 4]


def test_one_placement(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)
    assert "across 1 placement(s)." in compute("scale", "shop", "--min=4", "--placement=eu").out
    assert replicas(api) == [1, 4]


def test_an_unknown_placement_is_an_error(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)
    result = compute("scale", "shop", "--min=4", "--placement=asia")
    assert (result.code, result.err) == (2, 'Error: workload "shop" has no placement "asia"; it has eu, us\n')
    assert api.writes() == []


def test_scaling_to_the_current_value_writes_nothing(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(replicas=4)
    result = compute("scale", "shop", "--min=4")
    assert (result.code, result.out) == (0, 'Workload "shop" already has min replicas 4.\n')
    assert api.writes() == []


def test_scaling_does_not_touch_the_template(api: ApiServer, compute: Compute, world: World) -> None:
    before = world.workload().template_json
    compute("scale", "shop", "--min=4")
    assert bytes(api.get(WORKLOAD, "shop").template_json) == bytes(before)


def test_wait_watches_the_rollout(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    steps = [
        lambda: carry_down(api),
        world.observe,
        lambda: world.report("DFW", 2, 2, desired=3),
        lambda: world.report("DFW", 3, 3, desired=3),
    ]
    result = compute("scale", "shop", "--min=3", "--wait", steps=steps)
    assert result.code == 0
    assert result.lines[1] == 'Rolling workload "shop"  rev #1 → #2'
    assert result.lines[-1] == "Rollout complete in 8.0s."


def test_wait_can_time_out(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    result = compute(
        "scale", "shop", "--min=3", "--wait", "--timeout=4s", steps=[lambda: carry_down(api), world.observe]
    )
    assert result.code == 5
    assert replicas(api) == [3]


def test_json_is_the_workload(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload()
    result = compute("scale", "shop", "--min=4", "-o", "json")
    assert json.loads(result.out)["spec"]["placements"][0]["scaleSettings"]["minReplicas"] == 4
    assert compute("scale", "shop", "--min=5", "-o", "name").out == "workload/shop\n"


def test_waiting_for_a_complete_rollout_reports_no_duration(compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    result = compute("scale", "shop", "--min=2", "--wait")
    assert (result.code, result.lines[-1]) == (0, "Rollout complete.")


def test_a_scale_while_paused_is_neither_done_nor_complete(api: ApiServer, compute: Compute, world: World) -> None:
    """All instances are on the template that the deployments keep, and that is not the newest."""
    world.settled(("DFW",))
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})
    api.patch(WORKLOAD, "shop", {"spec": {"template": template("registry.example/shop:2.2")}})

    def scaled() -> None:
        carry_down(api)
        world.instance("DFW", 2)
        world.report("DFW", 3, 3, desired=3)
        world.observe()
        api.patch(WORKLOAD, "shop", {"status": {"updatedReplicas": 0}}, "status")

    result = compute("scale", "shop", "--min=3", "--wait", steps=[scaled])
    assert result.code == 1
    assert result.lines[-1].split() == ["default", "DFW", "3", "0", "3", "3", "Paused"]
    assert 'the rollout of workload "shop" is paused: 0 of 3 instances on the newest version' in result.err


def test_a_pause_in_the_middle_of_a_rollout_ends_the_wait(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    newer = {"spec": {"template": template("registry.example/shop:2.2")}}
    api.patch(WORKLOAD, "shop", newer)
    api.patch(WORKLOAD_DEPLOYMENT, "shop-default-dfw", newer)
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})
    world.observe()
    world.report("DFW", 1, 2, replicas=2)
    result = compute("scale", "shop", "--min=2", "--wait")
    assert result.code == 1
    assert result.lines[-1].split() == ["default", "DFW", "2", "1", "2", "2", "Paused"]
    assert "is paused: 1 of 2 instances on the newest version" in result.err
