from typing import Any

import pytest

from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, FakeClock, World, placement
from tests.cli.server import ApiServer

FACTS = (
    "Workload:      shop\n"
    "Placements:    eu, us\n"
    "Cities:        AMS, DFW, SIN\n"
    "Min replicas:  5\n"
)  # fmt: skip
STOPPING = (
    "Its sites may still be stopping its instances; quota counts them until then.\n"
    "Run 'compute quota' to see what is counted.\n"
)


def two_placements(world: World, **metadata: Any) -> None:
    placements = [placement("eu", ["AMS"], 2), placement("us", ["SIN", "DFW"], 3)]
    world.workload(spec={"placements": placements}, **metadata)


@pytest.mark.parametrize("word", ["destroy", "delete"])
def test_with_yes(api: ApiServer, compute: Compute, world: World, word: str) -> None:
    two_placements(world)
    result = compute(word, "shop", "-y")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{FACTS}workload/shop deleted.\n{STOPPING}"
    assert api.all(WORKLOAD) == []


def test_quiet_shows_only_that_it_is_deleted(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)
    assert compute("destroy", "shop", "-y", "--quiet").out == "workload/shop deleted.\n"


def test_without_a_terminal_destroy_needs_yes(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)
    result = compute("destroy", "shop")
    assert result.code == 2
    assert result.err == (
        'Error: deleting workload "shop" has to be confirmed: pass -y to confirm\n\ncompute destroy shop -y\n'
    )
    assert api.writes() == []


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_in_a_terminal_it_asks(api: ApiServer, compute: Compute, world: World, answer: str, gone: bool) -> None:
    two_placements(world)
    result = compute("destroy", "shop", tty=True, stdin=answer)
    assert result.code == 0
    assert result.err.startswith("This will delete workload and all its instances. Continue? (y/N): ")
    assert ("workload/shop deleted." if gone else "Aborted.") in result.lines
    assert (api.all(WORKLOAD) == []) is gone


def test_a_workload_already_being_deleted(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world, finalizers=["compute.datumapis.com/workload-controller"])
    compute("destroy", "shop", "-y")
    api.requests.clear()
    result = compute("destroy", "shop")
    assert (result.code, result.out) == (0, "workload/shop is already being deleted.\n")
    assert api.writes() == []


def test_wait_returns_when_it_is_gone(api: ApiServer, compute: Compute, world: World, clock: FakeClock) -> None:
    two_placements(world, finalizers=["compute.datumapis.com/workload-controller"])

    def release() -> None:
        api.patch(WORKLOAD, "shop", {"metadata": {"finalizers": None}})

    api.before("GET", "/workloads/shop", lambda: None, times=4)
    api.before("GET", "/workloads/shop", release)
    result = compute("destroy", "shop", "-y", "--wait")
    assert (result.code, result.lines[-2:]) == (0, ["workload/shop deleted.", "workload/shop is gone."])
    assert sum(clock.slept) == 3


def test_wait_gives_up_in_time(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world, finalizers=["compute.datumapis.com/workload-controller"])
    result = compute("destroy", "shop", "-y", "--wait", "--timeout=1m30s")
    assert result.code == 5
    assert result.err == (
        "Error: workload/shop is still being deleted after 1m30s; the deletion continues\n\n"
        "compute instances --workload=shop\n"
    )


def test_wait_is_not_fooled_by_a_new_one_of_the_same_name(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)
    api.before("GET", "/workloads/shop", lambda: None)
    api.before("GET", "/workloads/shop", lambda: two_placements(world))
    assert compute("destroy", "shop", "-y", "--wait").lines[-1] == "workload/shop is gone."


def test_only_the_workload_that_was_shown_is_deleted(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)

    def replaced() -> None:
        api.delete(WORKLOAD, "shop")
        two_placements(world)

    api.before("DELETE", "/workloads/shop", replaced)
    assert compute("destroy", "shop", "-y").code == 4
    assert api.all(WORKLOAD) != []


def test_name_output(api: ApiServer, compute: Compute, world: World) -> None:
    two_placements(world)
    assert compute("destroy", "shop", "-y", "-o", "name").out == "workload/shop\n"
