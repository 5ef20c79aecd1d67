"""The commands against a whole federation that really works: the same tests on the embedded engine and, with ENGINE=1
(`make test-engine`), on the real one, with the rights of a user of the project."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datum_compute.cli.main import main
from datum_compute.cli.shell.environment import Environment
from datum_compute.kube.meta import Json
from datum_compute.local import daemon
from tests.cli.conftest import Result, Stream
from tests.conftest import ENGINE

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FIRST, SECOND = "registry.example/hello:1", "registry.example/hello:2"


class Site:
    """A project in a federation, reached by the program as a user reaches it: over HTTPS, with a kubeconfig."""

    def __init__(self, kubeconfig: Path, cities: tuple[str, str], folder: Path) -> None:
        self.cities = cities
        self._folder = folder
        self._environ = {"KUBECONFIG": str(kubeconfig), "DATUM_COMPUTE_ACTOR": "ann@example.com"}

    def run(self, line: str, *words: str) -> Result:
        out, err = Stream(), Stream()
        environment = Environment(
            program="compute",
            environ=self._environ,
            stdin=Stream(),
            stdout=out,
            stderr=err,
            directory=str(self._folder),
        )
        code = main([*line.split(), *words], environment)
        return Result(code, out.getvalue(), err.getvalue())

    def output(self, line: str, *words: str) -> str:
        """What a command prints that has to succeed."""
        done = self.run(line, *words)
        assert done.code == 0, f"{line} ended with {done.code}:\n{done.out}{done.err}"
        return done.out

    def json(self, line: str) -> Any:
        return json.loads(self.output(f"{line} -o json"))

    def deploy(self, name: str, *flags: str) -> str:
        both = ",".join(self.cities)
        return self.output(f"deploy {name} --image={FIRST} --city={both} -y", *flags)

    def workload(self, name: str) -> Json:
        found: Json = self.json(f"workloads describe {name}")
        return found

    def image(self, name: str) -> str:
        return str(self.workload(name)["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]["image"])

    def instances(self, name: str) -> dict[str, Json]:
        return {
            instance["metadata"]["name"]: instance for instance in self.json(f"instances --workload={name}")["items"]
        }

    def clear(self) -> None:
        for name in self.output("workloads -o name").split():
            self.output(f"destroy {name.removeprefix('workload/')} -y --wait")


@contextmanager
def embedded(folder: Path) -> Iterator[Site]:
    directory = folder / "federation"
    daemon.up(directory)
    try:
        yield Site(daemon.kubeconfig_path(directory), ("AMS", "DFW"), folder)
    finally:
        daemon.down(directory)


@contextmanager
def real(folder: Path) -> Iterator[Site]:
    """With managers of its own, so no other test may have some running: `make test-engine` runs this file by itself."""
    from tests.engine.running import running_engine
    from tests.scenarios.managers import Managers
    from tests.scenarios.real import RealFederation

    engine = running_engine()
    directory = folder / "managers"
    directory.mkdir()
    managers = Managers(engine, directory)

    async def prepare() -> None:
        federation = RealFederation(engine, managers)
        await federation.start()
        await federation.stop()

    try:
        asyncio.run(prepare())
        yield Site(engine.kubeconfig("control-plane", "user"), ("DFW", "ORD"), folder)
        managers.check()
    finally:
        managers.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (real if ENGINE else embedded)(tmp_path_factory.mktemp("site")) as site:
        site.clear()
        yield site


@pytest.fixture
def site(whole: Site) -> Iterator[Site]:
    """Left as empty as it was found, by the program itself."""
    yield whole
    whole.clear()


def test_deploy_status_and_destroy(site: Site) -> None:
    one, other = sorted(site.cities)
    assert "Rollout complete in" in site.deploy("web", "--min=2", "--port=8080")
    status = site.json("status web")
    assert (status["healthState"], status["observed"], status["revision"]) == ("Available", True, 1)
    assert [(city["city"], city["ready"], city["desired"]) for city in status["cities"]] == [(one, 2, 2), (other, 2, 2)]
    assert "Available — all placements at desired replicas" in site.output("status web")
    assert sorted(site.instances("web")) == [f"web-default-{city.lower()}-{n}" for city in (one, other) for n in (0, 1)]
    assert "4 instances — 4 Available, 0 Pending, 0 Failed" in site.output("instances")
    assert "1 workload — 1 Available" in site.output("workloads")
    assert f"web-default-{one.lower()}-0" in site.output(f"instances describe web-default-{one.lower()}-0")

    assert "workload/web is gone." in site.output("destroy web -y --wait")
    assert site.run("status web").code == 3
    assert site.output("instances -o name") == ""


def test_an_update_changes_only_what_is_named(site: Site) -> None:
    site.deploy("web", "--env=MODE=fast", "--port=8080")
    before = site.workload("web")["spec"]
    assert site.run(f"deploy web --image={SECOND} --dry-run --exit-code").code == 8
    assert site.workload("web")["spec"] == before
    assert f"image: {FIRST} → {SECOND}" in site.output(f"deploy web --image={SECOND} -y")
    after = site.workload("web")["spec"]
    before["template"]["spec"]["runtime"]["sandbox"]["containers"][0]["image"] = SECOND
    assert after == before
    assert "No changes detected." in site.output(f"deploy web --image={SECOND} -y")


def test_scale_adds_instances_and_restarts_none(site: Site) -> None:
    site.deploy("web")
    before = {name: instance["metadata"]["uid"] for name, instance in site.instances("web").items()}
    assert "min replicas set to 2" in site.output("scale web --min=2 --wait")
    after = {name: instance["metadata"]["uid"] for name, instance in site.instances("web").items()}
    assert len(after) == 4
    assert before.items() <= after.items()


def test_a_restart_replaces_all_instances_or_those_of_one_city(site: Site) -> None:
    one, other = (city.lower() for city in site.cities)
    site.deploy("web")
    uids = [{name: found["metadata"]["uid"] for name, found in site.instances("web").items()}]
    for flags in ("", f"--city={site.cities[0]}"):
        site.output(f"restart web {flags} --wait")
        uids.append({name: found["metadata"]["uid"] for name, found in site.instances("web").items()})
    first, all_new, one_new = uids
    here, there = f"web-default-{one}-0", f"web-default-{other}-0"
    assert first[here] != all_new[here] != one_new[here]
    assert first[there] != all_new[there] == one_new[there]


def test_history_and_undo(site: Site) -> None:
    site.deploy("web")
    site.output(f"deploy web --image={SECOND} -y", "-m", "the second one")
    site.output("scale web --min=2 --wait")
    history = site.json("rollout history web")
    assert [entry["revision"] for entry in history] == [3, 2, 1]
    assert history[1]["changes"] == "the second one"
    assert {entry["actor"] for entry in history} == {"ann@example.com"}

    assert "Creating revision #4 (copy of #1)..." in site.output("rollout undo web --to-revision=1 -y --wait")
    assert site.image("web") == FIRST
    assert [entry["revision"] for entry in site.json("rollout history web")] == [4, 3, 2, 1]
    assert len(site.instances("web")) == 2


def test_pause_holds_a_rollout_and_resume_lets_it_go_on(site: Site) -> None:
    site.deploy("web")
    paused = site.run("rollout pause web")
    assert (paused.code, paused.err) == (0, ""), "the server confirms it in time"
    site.output(f"deploy web --image={SECOND} -y --no-wait")
    assert 'Rollout of workload "web" is paused.' in site.output("rollout status web")
    assert {images(instance) for instance in site.instances("web").values()} == {FIRST}
    assert site.run("restart web").code == 1

    site.output("rollout resume web")
    assert "Rollout complete" in site.output("rollout status web")
    assert {images(instance) for instance in site.instances("web").values()} == {SECOND}


def images(instance: Json) -> str:
    return str(instance["spec"]["runtime"]["sandbox"]["containers"][0]["image"])


def test_two_deploys_at_once_are_both_in_the_history(site: Site) -> None:
    site.deploy("web", "--no-wait")
    with ThreadPoolExecutor() as threads:
        both = [
            threads.submit(site.output, f"deploy web --env={name}=1 -y --no-wait", "-m", f"set {name}")
            for name in ("ONE", "TWO")
        ]
    for deploy in both:
        assert "workload/web updated" in deploy.result()
    history = site.json("rollout history web")
    assert [entry["revision"] for entry in history] == [3, 2, 1]
    assert {entry["changes"] for entry in history[:2]} == {"set ONE", "set TWO"}
    container = site.workload("web")["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]
    assert {variable["name"] for variable in container["env"]} == {"ONE", "TWO"}


def test_cities_quota_access_and_completion_show_the_project(site: Site) -> None:
    site.deploy("web", "--no-wait")
    assert {f"city/{city}" for city in site.cities} <= set(site.output("cities -o name").split())
    assert "Instances" in site.output("quota --breakdown")
    assert site.json("access")["state"] == "Active"
    assert "web\t" in site.output("__complete status", "")
