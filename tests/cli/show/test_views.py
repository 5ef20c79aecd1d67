"""`-w` on status and the lists: in a terminal, in a log, and for programs."""

import json
from collections.abc import Callable

import pytest
import yaml

from datum_compute.api.instance import INSTANCE
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, World, condition, nothing
from tests.cli.server import ApiServer

Steps = list[Callable[[], object]]


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_log_gets_the_list_again_when_it_changed(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",), 2)
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 1, 1)
    steps: Steps = [nothing, nothing, lambda: world.report("DFW", 2, 2), nothing, interrupt]
    result = compute("workloads", "-w", steps=steps)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "NAME   HEALTH     READY   UP-TO-DATE   PLACEMENTS   IMAGE      AGE\n"
        "shop   Degraded   1/2     1/2          default      shop:2.1   0s\n"
        "\n"
        "1 workload — 0 Available, 1 Degraded, 0 Unavailable, 0 Unknown\n"
        "\n"
        "NAME   HEALTH      READY   UP-TO-DATE   PLACEMENTS   IMAGE      AGE\n"
        "shop   Available   2/2     2/2          default      shop:2.1   6s\n"
        "\n"
        "1 workload — 1 Available, 0 Degraded, 0 Unavailable, 0 Unknown\n"
    )


def test_a_new_age_alone_is_not_a_change(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",), 1)
    result = compute("instances", "--watch", steps=[*[nothing] * 40, interrupt])
    assert result.out.count("NAME") == 1


def test_json_is_each_object_that_changed_on_a_line(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",), 2)
    failed = condition("Ready", "False", "InstanceCrashing")
    steps: Steps = [
        nothing,
        lambda: api.set_status(INSTANCE, "shop-default-dfw-1", {"conditions": [failed]}),
        lambda: api.delete(INSTANCE, "shop-default-dfw-0"),
        interrupt,
    ]
    result = compute("instances", "-w", "-o", "json", steps=steps)
    assert (result.code, result.err) == (0, "")
    rows = [json.loads(line) for line in result.lines]
    assert [row["metadata"]["name"] for row in rows] == [
        "shop-default-dfw-0", "shop-default-dfw-1", "shop-default-dfw-1", "shop-default-dfw-0",
    ]  # fmt: skip
    assert rows[2]["status"]["conditions"][0]["reason"] == "InstanceCrashing"
    assert rows[3] == rows[0] | {"deleted": True}


def test_names_and_yaml(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",), 1)
    new = lambda: World(api, "web").workload(("DFW",))  # noqa: E731
    assert compute("workloads", "-w", "-o", "name", steps=[new, interrupt]).out == "workload/shop\nworkload/web\n"
    documents = list(yaml.safe_load_all(compute("workloads", "-w", "-o", "yaml", steps=[interrupt]).out))
    assert [document["metadata"]["name"] for document in documents] == ["shop", "web"]


def test_the_status_follows_a_workload_that_recovers(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",), 2)
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 1, 1)
    result = compute(
        "status", "shop", "-w", "-o", "json", steps=[nothing, lambda: world.report("DFW", 2, 2), interrupt]
    )
    assert result.code == 0
    assert [json.loads(line)["healthState"] for line in result.lines] == ["Degraded", "Available"]


def test_filters_apply_to_every_update(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW", "AMS"), 1)
    result = compute("instances", "-w", "--city=dfw", "-o", "name", steps=[interrupt])
    assert result.out == "instance/shop-default-dfw-0\n"


def test_in_a_terminal_a_watch_is_redrawn_in_place(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",), 1)
    result = compute("instances", "-w", tty=True, columns=120, steps=[nothing, interrupt], environ={"NO_COLOR": "1"})
    assert result.code == 0
    first, second, end = result.out.split("\x1b[J")[1:]
    assert first.splitlines()[1].endswith("0s    Available")
    assert first.endswith("\r\x1b[4A")  # four lines up, to where it began
    assert second.splitlines()[1].endswith("2s    Available")
    assert second.endswith("\r")
    assert end == ""


@pytest.mark.parametrize("flags", [["-q"], []])
def test_without_a_capable_terminal_updates_are_printed(
    api: ApiServer, compute: Compute, world: World, flags: list[str]
) -> None:
    world.settled(("DFW",), 1)
    environ = {} if flags else {"TERM": "dumb"}
    result = compute("instances", "-w", *flags, tty=True, columns=120, steps=[nothing, interrupt], environ=environ)
    assert "\x1b[J" not in result.out
    assert ("1 instance" in result.out) is not bool(flags)


def test_a_deletion_ends_the_watch(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",))
    result = compute("status", "shop", "-w", steps=[lambda: api.delete(WORKLOAD, "shop")])
    assert result.code == 3
    assert 'workload "shop" not found' in result.err


def test_read_errors_are_reported_once_and_do_not_end_the_watch(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",))

    def fail() -> None:
        api.answer("GET", "/workloads", 400, "what?", reason="BadRequest")

    result = compute("workloads", "-w", steps=[*[fail] * 8, nothing, interrupt])
    assert (result.code, result.err) == (0, "listing workloads: what?; still trying\n")


def test_the_first_read_must_succeed(api: ApiServer, compute: Compute) -> None:
    api.answer("GET", "/workloads", 403, reason="Forbidden")
    assert compute("workloads", "-w").code == 7


def test_without_a_watch_objects_are_read_every_two_seconds(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",))
    compute("workloads", "-w", steps=[*[nothing] * 5, interrupt], trusted=False)
    assert len([seen for seen in api.requests if seen.path.endswith("/workloads")]) == 6
