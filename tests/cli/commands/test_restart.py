import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.labels import RESTARTED_AT
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, World, placement
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


def test_one_city_in_every_placement(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(spec={"placements": [placement("a", ["DFW", "AMS"], 1), placement("b", ["DFW"], 1)]})
    for name, city in (("a", "DFW"), ("a", "AMS"), ("b", "DFW")):
        world.deployment(city, name)
    result = compute("restart", "shop", "--city=dfw")
    assert result.lines[0] == 'Restarting workload "shop" in DFW — rolling restart initiated.'
    assert restarted(api) is None
    assert [restarted_in(api, f"shop-{name}") is not None for name in ("a-dfw", "b-dfw", "a-ams")] == [
        True,
        True,
        False,
    ]


def test_a_city_that_it_does_not_run_in(api: ApiServer, compute: Compute, world: World) -> None:
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
