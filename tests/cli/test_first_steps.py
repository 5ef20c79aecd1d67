"""The first steps of a new user, and the output they get, on the product itself in a simulation."""

import json
from pathlib import Path

import pytest

from datum_compute.runtime.testing.simulation import Simulation
from tests.cli.product import Stored, history, opened
from tests.scenarios.command import Command


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return history(tmp_path_factory.mktemp("history"))


async def test_a_bad_image_is_named_for_every_city_and_the_way_back_is_offered(
    stored: Stored, simulation: Simulation, tmp_path: Path
) -> None:
    async with opened(stored, simulation, tmp_path) as command:
        late = await command("deploy shop --image=registry.example/shop:crashing --timeout=20s")
        assert late.code == 5
        assert "\n  AMS, DFW: InstanceCrashing — The instance keeps failing to start\n" in late.err
        steps = (await command("status shop")).out.partition("  Next steps:\n")[2].splitlines()
        assert steps == [
            "    Roll back:         compute rollout undo shop",
            "    View instances:    compute instances --workload=shop",
            "    Read logs:         compute logs shop",
        ]
        undone = await command("rollout undo shop -y --wait")
        assert "\nRollout started.\nRolling workload" in undone.out
        assert (await command("status shop")).out.count("Next steps") == 0

        await command("deploy blog --image=registry.example/blog:crashing --timeout=20s")
        await command("rollout pause blog")
        assert "    Resume:            compute rollout resume blog\n" in (await command("status blog")).out


async def test_the_first_deploy_has_nothing_to_go_back_to(
    stored: Stored, simulation: Simulation, tmp_path: Path
) -> None:
    async with opened(stored, simulation, tmp_path) as command:
        await command("deploy mail --image=registry.example/mail:image-unavailable --city=SIN --timeout=20s")
        output = (await command("status mail")).out
        assert "image unavailable" in output
        assert "Roll back" not in output


async def test_all_views_name_the_same_number_that_there_is_quota_for(
    stored: Stored, simulation: Simulation, tmp_path: Path
) -> None:
    async with opened(stored, simulation, tmp_path) as command:
        await command("scale shop --min=5")
        await simulation.advance(60)
        waiting = (await command("instances --status=pending -o name")).out.split()
        assert len(waiting) == 1
        name = waiting[0].removeprefix("instance/")
        for line in ("status shop", f"instances describe {name}"):
            assert "Reduce replicas:   compute scale shop --min=4\n" in (await command(line)).out


async def test_after_a_resume_nothing_is_done_before_the_sites_know_of_it(
    stored: Stored, simulation: Simulation, tmp_path: Path
) -> None:
    async with opened(stored, simulation, tmp_path) as command:
        await command("rollout pause shop")
        await command("deploy shop --image=registry.example/shop:2.2")
        await simulation.advance(30)
        await command("rollout resume shop")
        rows = _rows((await command("rollout status shop --no-watch")).out)
        assert [row[3:] for row in rows] == [["—", "2", "—", "Pending"]] * 2
        waited = await command("rollout status shop")
        assert waited.code == 0
        assert "Rollout complete" in waited.out
        assert (await command("workloads shop")).out.splitlines()[1].split()[3] == "4/4"


async def test_a_slow_stop_is_called_stopping(stored: Stored, simulation: Simulation, tmp_path: Path) -> None:
    async with opened(stored, simulation, tmp_path) as command:
        await command("deploy blog --image=registry.example/blog:slow-stop")
        late = await command("restart blog --wait --timeout=45s")
        assert late.code == 5
        assert "in AMS: the instance is stopping, for " in late.out
        assert "\n  AMS: Stopping — " in late.err
        status = (await command("status blog")).out
        assert "Health       Unavailable — Stopping\n" in status
        assert "  AMS: 1 instances not ready — stopping\n" in status
        assert (await command("instances --workload=blog")).out.splitlines()[1].endswith("Stopping")
        assert "rovision" not in late.out + late.err + status


async def test_what_stops_slowly_is_counted_and_named_until_it_has_stopped(
    stored: Stored, simulation: Simulation, tmp_path: Path
) -> None:
    async with opened(stored, simulation, tmp_path) as command:
        await command("deploy mail --image=registry.example/mail:slow-stop --city=SIN")
        late = await command("destroy mail -y --wait --timeout=20s")
        assert late.code == 5
        assert "but SIN did not stop 1 instance within 20s; the deletion continues" in late.err
        assert "is gone" not in late.out
        assert await _instances_used(command) == 6

        again = await command("deploy mail --image=registry.example/mail:2 --city=SIN --timeout=20s")
        assert again.code == 5
        waiting = "Waiting for an earlier deployment of this name: 1 instance is still stopping"
        assert f"\n  SIN: Stopping — {waiting}\n" in again.err
        status = (await command("status mail")).out
        assert "Health       Unavailable — Stopping\n" in status
        assert f"  SIN: 1 instances not ready — Stopping\n    {waiting}\n" in status
        assert (await command("rollout status mail")).code == 0

        gone = await command("destroy mail -y --wait")
        assert (gone.code, gone.out.splitlines()[-1]) == (0, "workload/mail is gone.")
        assert await _instances_used(command) == 5


async def _instances_used(command: Command) -> float:
    resources = json.loads((await command("quota -o json")).out)["resources"]
    return float(next(resource["used"] for resource in resources if resource["resource"] == "Instances"))


async def test_only_instances_of_an_earlier_version_are_old(
    stored: Stored, simulation: Simulation, tmp_path: Path
) -> None:
    async with opened(stored, simulation, tmp_path) as command:
        new = await command("deploy mail --image=registry.example/mail:1 --city=SIN")
        assert {row[5] for row in _rows(new.out)} == {"—", "0"}
        await command("scale shop --min=5")
        await simulation.advance(60)
        short = _rows((await command("rollout status shop --no-watch")).out)
        assert [row[5:] for row in short] == [["0", "Blocked"]] * 2
        await command("scale shop --min=2 --wait")
        await command("deploy shop --image=registry.example/shop:image-unavailable --timeout=20s")
        assert [row[2:] for row in _rows((await command("rollout status shop --no-watch")).out)] == [
            ["2", "0", "1", "1", "Blocked"]
        ] * 2


def _rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.startswith("  default ")]
