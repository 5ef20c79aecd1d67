"""Cities, limits, projects, backups and the log of the local federation, as the command itself shows them."""

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from datum_compute.api.services import PROJECT
from datum_compute.cli.main import main
from datum_compute.cli.shell.environment import Environment
from datum_compute.kube.access.kubeconfig import load
from datum_compute.kube.client import Client
from datum_compute.kube.http import HttpTransport
from tests.conftest import SIMULATED

pytestmark = pytest.mark.timeout(180)


class Result(NamedTuple):
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture
def compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command line in this process, with its own state directory; the federation is a process as always."""
    for name in [name for name in os.environ if name.startswith(("DATUM", "KUBECONFIG"))]:
        monkeypatch.delenv(name)
    for name, value in SIMULATED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DATUM_COMPUTE_LOCAL_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(line: str, code: int = 0) -> Result:
        stdout, stderr = StringIO(), StringIO()
        environment = Environment(program="compute", environ=os.environ, stdin=StringIO(), stdout=stdout, stderr=stderr)
        ended = main(line.split(), environment)
        result = Result(stdout.getvalue(), stderr.getvalue())
        assert ended == code, f"compute {line}\n{result.stdout}{result.stderr}"
        return result

    yield run
    run("local down")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _cities(compute: Run) -> dict[str, str]:
    return {city["city"]: city["name"] for city in json.loads(compute("cities -o json").stdout)}


def _limits(compute: Run) -> dict[str, float]:
    return {limit["resource"]: limit["limit"] for limit in json.loads(compute("quota -o json").stdout)["resources"]}


def test_cities_and_limits_are_chosen_at_the_start_and_kept(compute: Run) -> None:
    compute("local up --city=DFW,fra=Frankfurt --limit=instances=3 --limit=memory=16Gi")
    cities, limits = {"DFW": "Dallas", "FRA": "Frankfurt"}, {"Instances": 3, "vCPUs": 40, "Memory": 16384}
    assert _cities(compute) == cities
    assert _limits(compute) == limits
    compute("deploy web --image=registry.example/web:1 --city=FRA --min=1")

    compute("local up --city=FRA,DFW --limit=instances=3")  # which is what runs
    refused = compute("local up --city=DFW", code=1).stderr
    assert "with cities DFW, FRA; stop it with 'compute local down' to change that" in refused
    refused = compute("local up --limit=instances=4", code=1).stderr
    assert "with limits of 3 instances, 40 vCPUs, 16 GiB of memory; stop it with" in refused

    compute("local down")
    compute("local up")
    assert _cities(compute) == cities
    assert _limits(compute) == limits
    assert json.loads(compute("status web -o json").stdout)["healthState"] == "Available"


def test_a_city_can_be_added_and_one_that_nothing_uses_removed(compute: Run) -> None:
    compute("local up")
    compute("deploy web --image=registry.example/web:1 --city=DFW --min=1")
    compute("local down")

    refused = compute("local up --city=FRA=Frankfurt", code=1).stderr
    assert refused == (
        "Error: city DFW cannot be removed: workload web of project demo runs there; deploy it elsewhere or destroy it "
        "first, or keep it: --city=FRA=Frankfurt,DFW\n"
    )
    compute(f"local up {refused.split()[-1]} --limit=instances=20")
    assert _cities(compute) == {"DFW": "Dallas", "FRA": "Frankfurt"}
    assert _limits(compute)["Instances"] == 20
    compute("deploy web --city=DFW,FRA --image=registry.example/web:2")
    contexts = Path(compute("local kubeconfig").stdout.strip()).read_text()
    assert "cell-fra" in contexts
    assert "cell-ams" not in contexts

    compute("destroy web -y --wait")
    compute("local down")
    compute("local up --city=AMS")
    assert _cities(compute) == {"AMS": "Amsterdam"}
    compute("deploy web --image=registry.example/web:1 --city=AMS --min=1")


def test_thirty_cities_run_on_one_machine(compute: Run) -> None:
    cities = [f"C{number:02}" for number in range(30)]
    compute(f"local up --city={','.join(cities)} --limit=instances=100")
    assert [*_cities(compute)] == cities
    compute("deploy web --image=registry.example/web:1 --city=C00,C15,C29 --min=1")
    assert "C00, C01, C02, C03, C04, C05, C06, C07, C08, C09 and 20 more" in compute("local status").stdout


def test_the_projects_that_exist_now_are_listed_and_have_a_context(compute: Run) -> None:
    compute("local up")
    assert "  Projects:   demo\n" in compute("local status").stdout
    kubeconfig = Path(compute("local kubeconfig").stdout.strip())

    async def create() -> None:
        transport = HttpTransport(load([kubeconfig], "root"))
        try:
            await Client("root", transport).create(PROJECT, PROJECT.body("second") | {"spec": {}})
        finally:
            await transport.close()

    asyncio.run(create())
    with_context = "--kubeconfig=state/kubeconfig.yaml --context=project-second"
    _until(lambda: "project-second" in kubeconfig.read_text())
    compute(f"access request --wait {with_context}")
    compute(f"deploy web --image=registry.example/web:1 --city=DFW --min=1 -y {with_context}")
    assert json.loads(compute("local status -o json").stdout)["projects"] == ["demo", "second"]
    compute("local down")
    compute("local up")
    assert "  Projects:   demo, second\n" in compute("local status").stdout
    assert compute(f"workloads -o name {with_context}").stdout == "workload/web\n"


def test_a_backup_is_restored_and_what_it_replaces_is_kept(compute: Run, tmp_path: Path) -> None:
    assert compute("local restore").stdout.startswith("There are no backups yet.\n")
    compute("local up")
    compute("deploy web --image=registry.example/web:1 --city=DFW --min=1")
    compute("local backup")
    (name,) = compute("local restore -o name").stdout.split()
    compute("destroy web -y --wait")

    refused = compute("local restore latest", code=1).stderr
    assert refused == (
        "Error: the local federation is running; stop it with 'compute local down' before a backup is restored\n"
    )
    compute("local down")
    refused = compute("local restore tuesday", code=1).stderr
    assert f"choose one of {name}\n" in refused

    restored = compute(f"local restore {name[:4]}").stdout.splitlines()
    assert restored[0] == f"The local federation was restored from {tmp_path}/state/backups/{name}.db."
    replaced, same = sorted(compute("local restore -o name").stdout.split(), reverse=True)
    assert (same, replaced[:9]) == (name, "replaced-")
    compute("local up")
    assert compute("workloads -o name").stdout == "workload/web\n"
    compute("local down")

    compute(f"local restore {replaced}")
    compute("local up")
    assert compute("workloads -o name").stdout == ""


def test_a_restore_that_cannot_be_made_changes_nothing(compute: Run, tmp_path: Path) -> None:
    compute("local up --city=DFW")
    compute("local down")
    before = (tmp_path / "state" / "federation.db").read_bytes()
    (tmp_path / "monday.db").write_text("this is not a database, " * 100)
    refused = compute("local restore monday.db", code=1).stderr
    assert refused.startswith("Error: nothing was restored: ")
    assert (tmp_path / "state" / "federation.db").read_bytes() == before
    assert compute("local restore -o name").stdout == ""


def test_a_damaged_state_is_put_aside_for_a_backup(compute: Run, tmp_path: Path) -> None:
    compute("local up --city=DFW")
    compute("local backup")
    compute("local down")
    (tmp_path / "state" / "federation.db").write_text("this is not a database, " * 100)
    assert "go back to a backup with 'compute local restore'" in compute("local up", code=1).stderr
    restored = compute("local restore latest").stdout
    assert "is kept as " in restored
    assert ".db.damaged." in restored
    compute("local up")
    assert _cities(compute) == {"DFW": "Dallas"}


def test_the_log_is_for_people_and_does_not_repeat_what_waits(compute: Run) -> None:
    compute("local up")
    compute("deploy web --image=registry.example/web:1 --city=DFW,AMS --min=6 --no-wait")
    _until(lambda: "quota exceeded" in compute("instances").stdout)
    compute("local down")
    lines = compute("local logs").stdout.splitlines()
    assert [line for line in lines if line.startswith("{")] == []
    assert [line for line in lines if "requeue" in line] == []
    ready = re.compile(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  info     —           —                     ready  url=https://.*"
    )
    assert any(map(ready.fullmatch, lines))
    raw = [json.loads(line) for line in compute("local logs -o json").stdout.splitlines()]
    assert {"ready", "stopped"} <= {entry["event"] for entry in raw}


def test_the_manual_shows_the_quota_and_addresses_that_a_user_sees(compute: Run) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    compute("local up")
    compute("deploy web --image=registry.example/web:1 --city=DFW --min=1")
    for line in ("quota", "instances"):
        (example,) = re.findall(rf"\$ compute {line}(?: --workload=shop)?\n(.*?)```", manual, re.DOTALL)
        titles, *rows = (re.split(r"   +", row) for row in compute(line).stdout.splitlines() if "   " in row)
        _, *promised = (re.split(r"   +", row) for row in example.splitlines() if "   " in row)
        if line == "quota":
            assert [row[0] for row in promised][: len(rows)] == [row[0] for row in rows]
        else:
            column = titles.index("EXTERNAL IP")
            assert {row[column] for row in promised} == {row[column] for row in rows} == {"—"}
