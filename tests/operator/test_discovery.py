"""Which projects are engaged, and when they are left."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.services import CONTROL_PLANE_READY, PROJECT_CONTROL_PLANE, READY
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.embedded.storage.records import CountedUids
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import CELL, CLAIMS, PROJECT, ROOT
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, Plugin, write_kubeconfig
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.local.engine import compute_engine
from datum_compute.operator.directory import LOOK_SECONDS, DirectoryDiscovery
from datum_compute.operator.discovery import ClaimDiscovery, ProjectDiscovery
from datum_compute.runtime.controller import Controller, Reconciler
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.scenarios.federation import placement, template


class Found:
    """A fleet, an engine behind its planes, and a discovery that runs over them."""

    def __init__(self, simulation: Simulation) -> None:
        self.engine = compute_engine(clock=simulation, uids=CountedUids(), generator=simulation.random)
        self.fleet = Fleet()
        self.unreachable: set[str] = set()
        self.silent: set[str] = set()
        self.requested: list[str] = []
        self._simulation = simulation
        self._tasks: list[asyncio.Task[None]] = []

    def plane(self, name: str, role: str, serve_as: str = "") -> Plane:
        server = self.engine.serve(name, serve_as or role)
        transport = Faults(InProcess(server), self._simulation.random)
        if name in self.silent:
            transport.take_away()
        plane = Plane(name, role, transport, writes=Writes(), generator=self._simulation.random)
        plane.declare(NAMESPACE)  # so that it is engaged only when it answers
        return plane

    def project(self, name: str) -> Plane:
        self.requested.append(name)
        if name in self.unreachable:
            raise KubeconfigError("there is no way to it")
        return self.plane(name, PROJECT)

    def claims(self, name: str) -> Plane:
        if name in self.unreachable:
            raise KubeconfigError("there is no way to it")
        return self.plane(name, CLAIMS, serve_as=PROJECT)

    async def run(self, reconciler: Reconciler) -> None:
        controller = Controller(reconciler, self.fleet, self._simulation)
        self._tasks = [asyncio.create_task(run) for run in (self.engine.run(), self.fleet.run(), controller.run())]
        await self._simulation.settle()

    async def settle(self) -> None:
        await self._simulation.settle()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.close()


@pytest.fixture
def found(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Found]:
    async def build() -> Found:
        return Found(simulation)

    found = runner.run(build())
    yield found
    runner.run(found.stop())


async def _set_ready(found: Found, project: str, status: str) -> None:
    client = found.engine.client("root")
    seen = await client.get(PROJECT_KIND, project)
    condition = {"type": READY, "status": status, "reason": "Test", "message": "", "observedGeneration": 1}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    await client.replace_status(PROJECT_KIND, seen, {"conditions": [condition]})


async def _create_project(found: Found, project: str, status: str = "True") -> None:
    await found.engine.client("root").create(PROJECT_KIND, PROJECT_KIND.body(project) | {"spec": {}})
    await _set_ready(found, project, status)


async def test_a_project_is_engaged_while_it_is_ready(found: Found) -> None:
    found.fleet.add(found.plane("root", ROOT))
    discovery = ProjectDiscovery(found.fleet, found.project)
    assert not discovery.synced()
    await found.run(discovery)
    await _create_project(found, "demo", "Unknown")
    await found.settle()
    assert not found.fleet.knows("demo"), "not Ready, not engaged: nothing"
    await _set_ready(found, "demo", "True")
    await found.settle()
    assert found.fleet.has("demo"), "Ready, not engaged: engaged under its bare name"
    await _set_ready(found, "demo", "True")
    await found.settle()
    assert found.requested == ["demo"], "Ready, engaged: nothing"
    await _set_ready(found, "demo", "False")
    await found.settle()
    assert not found.fleet.knows("demo"), "not Ready, engaged: left"
    await _set_ready(found, "demo", "True")
    await found.settle()
    await found.engine.client("root").delete(PROJECT_KIND, "demo")
    await found.settle()
    assert not found.fleet.knows("demo"), "gone: forgotten"
    assert discovery.synced()


async def test_a_project_that_cannot_be_engaged_is_tried_again_and_holds_up_no_other(found: Found) -> None:
    found.fleet.add(found.plane("root", ROOT))
    discovery = ProjectDiscovery(found.fleet, found.project)
    await found.run(discovery)
    found.unreachable.add("broken")
    await _create_project(found, "broken")
    await _create_project(found, "demo")
    await found.settle()
    assert found.fleet.has("demo")
    assert not found.fleet.knows("broken")
    assert discovery.untried() == [], "it was tried, which is all that readiness waits for"
    found.unreachable.clear()
    await asyncio.sleep(30)
    await found.settle()
    assert found.fleet.has("broken")


async def test_a_project_is_untried_from_the_moment_it_is_ready_until_it_is_engaged_or_first_fails(
    found: Found, simulation: Simulation
) -> None:
    found.fleet.add(found.plane("root", ROOT))
    discovery = ProjectDiscovery(found.fleet, found.project)
    await found.run(discovery)
    found.silent.add("away")
    seen: set[tuple[str, ...]] = set()
    for name in ("away", "demo"):
        await _create_project(found, name)
    while not found.fleet.has("demo"):
        seen.add(tuple(discovery.untried()))
        await asyncio.sleep(0)
    await found.settle()
    assert any("demo" in untried for untried in seen)
    assert discovery.untried() == []
    assert found.fleet.knows("away")
    assert not found.fleet.has("away")


async def test_fifty_projects_come_and_go_and_leave_nothing_behind(found: Found) -> None:
    found.fleet.add(found.plane("root", ROOT))
    discovery = ProjectDiscovery(found.fleet, found.project)
    await found.run(discovery)
    names = [f"project-{number}" for number in range(50)]
    for name in names:
        await _create_project(found, name)
    await found.settle()
    assert all(map(found.fleet.has, names))
    assert discovery.untried() == []
    for name in names[:25]:
        await _set_ready(found, name, "False")
    for name in names[25:]:
        await found.engine.client("root").delete(PROJECT_KIND, name)
    await found.settle()
    assert not any(map(found.fleet.knows, names))
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("plane/", "caches/"))]
    assert sorted(left) == ["caches/root", "plane/root"]


async def test_internal_discovery_watches_control_planes(found: Found) -> None:
    found.fleet.add(found.plane("root", ROOT))
    await found.run(ProjectDiscovery(found.fleet, found.project, internal=True))
    client = found.engine.client("root")
    plane = await client.create(PROJECT_CONTROL_PLANE, PROJECT_CONTROL_PLANE.body("demo") | {"spec": {}})
    await _create_project(found, "other")
    await found.settle()
    assert found.requested == []
    ready = {"type": CONTROL_PLANE_READY, "status": "True", "reason": "Ready", "message": ""}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    await client.replace_status(PROJECT_CONTROL_PLANE, plane, {"conditions": [ready]})
    await found.settle()
    assert found.requested == ["demo"]


async def _deliver(found: Found, project: str) -> None:
    client = found.engine.client("cell")
    namespace = f"ns-{project}"
    await client.create(NAMESPACE, NAMESPACE.body(namespace, labels=hub_labels(project, "default")))
    spec = {
        "cityCode": "DFW",
        "placementName": "main",
        "workloadRef": {"name": "web", "uid": "1"},
        "scaleSettings": placement("main", ["DFW"], 1)["scaleSettings"],
        "template": template(),
    }
    await client.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body("web", namespace) | {"spec": spec})


async def test_a_cell_claims_quota_only_in_projects_whose_objects_it_holds(found: Found) -> None:
    found.fleet.add(found.plane("cell", CELL))
    await found.run(ClaimDiscovery(found.fleet, found.claims))
    client = found.engine.client("cell")
    await client.create(NAMESPACE, NAMESPACE.body("ns-empty", labels=hub_labels("empty", "default")))
    await client.create(NAMESPACE, NAMESPACE.body("kube-system"))
    await _deliver(found, "demo")
    await _deliver(found, "other")
    await found.settle()
    assert sorted(plane.name for plane in found.fleet.of_role(CLAIMS)) == ["demo", "other"]
    await client.delete(WORKLOAD_DEPLOYMENT, "web", "ns-demo")
    await found.settle()
    assert [plane.name for plane in found.fleet.of_role(CLAIMS)] == ["other"]


async def test_a_project_that_a_cell_cannot_reach_holds_up_no_other(found: Found) -> None:
    found.unreachable.add("aaa")
    found.fleet.add(found.plane("cell", CELL))
    await found.run(ClaimDiscovery(found.fleet, found.claims))
    await _deliver(found, "aaa")
    await _deliver(found, "bbb")
    await found.settle()
    assert [plane.name for plane in found.fleet.of_role(CLAIMS)] == ["bbb"]
    await _deliver(found, "ccc")
    await found.settle()
    assert [plane.name for plane in found.fleet.of_role(CLAIMS)] == ["bbb", "ccc"]
    found.unreachable.clear()
    await asyncio.sleep(60)
    assert sorted(plane.name for plane in found.fleet.of_role(CLAIMS)) == ["aaa", "bbb", "ccc"]


async def test_a_project_that_never_answered_is_left_when_a_cell_holds_nothing_of_it(found: Found) -> None:
    found.silent.add("demo")
    found.fleet.add(found.plane("cell", CELL))
    await found.run(ClaimDiscovery(found.fleet, found.claims))
    await _deliver(found, "demo")
    await found.settle()
    assert found.fleet.knows("demo")
    assert not found.fleet.has("demo")
    await found.engine.client("cell").delete(WORKLOAD_DEPLOYMENT, "web", "ns-demo")
    await found.settle()
    assert not found.fleet.knows("demo")


# A directory of kubeconfigs


class Files:
    def __init__(self, found: Found, directory: Path) -> None:
        self.directory = directory
        self.engaged: list[tuple[str, str]] = []
        self._found = found
        self.discovery = DirectoryDiscovery(found.fleet, directory, self.plane)

    def plane(self, name: str, endpoint: Endpoint) -> Plane:
        if endpoint.server == "https://[nowhere":
            raise ValueError("Invalid URL")
        if endpoint.server == "https://defect":
            raise ZeroDivisionError("a defect nobody foresaw")
        self.engaged.append((name, endpoint.server))
        return self._found.plane(name, PROJECT)

    def write(self, file: str, server: str) -> None:
        write_kubeconfig(self.directory / file, {"any": Endpoint(server)}, "any")

    async def look(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        await self._found.settle()


@pytest.fixture
def files(runner: asyncio.Runner, found: Found, tmp_path: Path) -> Iterator[Files]:
    async def build() -> tuple[Files, list[asyncio.Task[None]]]:
        files = Files(found, tmp_path)
        return files, [asyncio.create_task(found.fleet.run()), asyncio.create_task(files.discovery.run())]

    files, tasks = runner.run(build())

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    yield files
    runner.run(stop())


async def test_a_project_follows_its_file_when_added_changed_and_removed(files: Files, found: Found) -> None:
    files.write("demo.yaml", "https://one")
    files.write("other", "https://two")
    (files.directory / "..data").mkdir()
    (files.directory / "Not_A_Project").write_text("{}")
    await files.look()
    assert files.engaged == [("demo", "https://one"), ("other", "https://two")]
    await files.look()
    assert len(files.engaged) == 2, "nothing changed, nothing done"
    files.write("demo.yaml", "https://three")
    await files.look()
    assert files.engaged[2:] == [("demo", "https://three")]
    assert found.fleet.has("demo")
    (files.directory / "demo.yaml").unlink()
    await files.look()
    assert not found.fleet.knows("demo")
    assert found.fleet.has("other")
    assert files.discovery.untried() == []


async def test_a_file_that_is_half_written_changes_nothing_that_runs(files: Files, found: Found) -> None:
    files.write("demo", "https://one")
    await files.look()
    (files.directory / "demo").write_text("clusters: [")
    (files.directory / "broken").write_text("clusters: [")
    await files.look()
    assert found.fleet.has("demo")
    assert not found.fleet.knows("broken")
    files.write("broken", "https://two")
    await files.look()
    assert found.fleet.has("broken")


async def test_a_kubeconfig_whose_certificate_is_mounted_later_is_taken_up(files: Files, found: Found) -> None:
    certificate = files.directory / ".client.pem"
    endpoint = Endpoint("https://one", client_cert_file=str(certificate), client_key_file=str(certificate))
    write_kubeconfig(files.directory / "demo", {"any": endpoint}, "any")
    with capture_logs() as logs:
        await files.look()
        await files.look()
    assert not found.fleet.knows("demo")
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["kubeconfig cannot be used"]
    certificate.write_text("any")
    await files.look()
    assert found.fleet.has("demo")


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        (Endpoint("https://one", plugin=Plugin("/bin/steal", "client.authentication.k8s.io/v1")), "(exec)"),
        (Endpoint("https://one", token_file="/etc/passwd"), "(tokenFile)"),
        (Endpoint("http://one"), "(http://)"),
    ],
)
async def test_a_projects_kubeconfig_may_not_reach_into_this_process(
    files: Files, found: Found, endpoint: Endpoint, reason: str
) -> None:
    write_kubeconfig(files.directory / "demo", {"any": endpoint}, "any")
    with capture_logs() as logs:
        await files.look()
    assert not found.fleet.knows("demo")
    refused = [line["error"] for line in logs if line["event"] == "kubeconfig cannot be used"]
    assert len(refused) == 1
    assert reason in refused[0]
    assert refused[0].endswith("or allow it with --trust-project-kubeconfigs")

    trusting = DirectoryDiscovery(found.fleet, files.directory, files.plane, trusted=True)
    running = asyncio.create_task(trusting.run())
    await files.look()
    running.cancel()
    assert found.fleet.has("demo")


async def test_a_file_that_leads_nowhere_holds_up_no_other(files: Files, found: Found) -> None:
    files.write("demo", "https://[nowhere")
    files.write("other", "https://two")
    await files.look()
    assert found.fleet.has("other")
    assert not found.fleet.knows("demo")
    assert files.discovery.untried() == []
    files.write("demo", "https://one")
    await files.look()
    assert found.fleet.has("demo")
    assert files.discovery.untried() == []


@pytest.mark.parametrize(
    "text",
    [
        "contexts: [{name: a, context: {cluster: [c]}}]\ncurrent-context: a",
        "current-context: !!bool maybe",
        "contexts: [{name: a, context: {cluster: c}}]\ncurrent-context: a\n"
        'clusters: [{name: c, cluster: {server: "https://c", certificate-authority: "a\\0b"}}]',
    ],
    ids=["a name that is none", "a tag that does not fit", "a path that is none"],
)
async def test_an_unusable_file_affects_only_its_project(files: Files, found: Found, text: str) -> None:
    (files.directory / "demo").write_text(text)
    files.write("other", "https://two")
    with capture_logs() as logs:
        await files.look()
        await files.look()
    assert found.fleet.has("other")
    assert [line["project"] for line in logs if line["event"] == "kubeconfig cannot be used"] == ["demo"]
    files.write("demo", "https://one")
    await files.look()
    assert found.fleet.has("demo")


async def test_a_defect_with_one_project_affects_no_other(files: Files, found: Found) -> None:
    files.write("demo", "https://defect")
    files.write("other", "https://two")
    with capture_logs() as logs:
        await files.look()
        await files.look()
    assert found.fleet.has("other")
    assert [line["project"] for line in logs if line["log_level"] == "error"] == ["demo"]
    files.write("demo", "https://one")
    await files.look()
    assert found.fleet.has("demo")


async def test_the_projects_are_known_after_the_first_scan(
    found: Found, tmp_path: Path, simulation: Simulation
) -> None:
    discovery = DirectoryDiscovery(found.fleet, tmp_path / "missing", lambda project, endpoint: found.project(project))
    running = asyncio.create_task(discovery.run())
    await simulation.settle()
    assert not discovery.synced()
    (tmp_path / "missing").mkdir()
    await asyncio.sleep(LOOK_SECONDS)
    await simulation.settle()
    assert discovery.synced()
    running.cancel()


async def test_a_directory_that_cannot_be_listed_leaves_everything_engaged(files: Files, found: Found) -> None:
    files.write("demo", "https://one")
    await files.look()
    moved = files.directory.rename(files.directory.with_name(f"moved-{random.Random(1).random()}"))
    await files.look()
    assert found.fleet.has("demo")
    moved.rename(files.directory)
