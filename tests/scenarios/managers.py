"""Our side of the real engine as installed: one compute-manager for management and one per cell. Entry: `Managers`.

Each works under the service accounts that are bound to the generated roles, finds its projects in a directory of
kubeconfigs, and outlives a scenario: what a scenario leaves behind, the next one finds.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from datum_compute.api.accounts import NAMESPACE
from datum_compute.api.permissions import Who
from engine.harness import Engine
from engine.settings import HOST_PLANE, HUB_PLANE
from tests.operator.processes import Manager, until

CELLS = {"DFW": "pop-dfw", "ORD": "pop-ord"}
PROJECTS = {"demo": HOST_PLANE, "other": "project-b"}
MANAGEMENT = "management"

_NETWORKING = "--feature-gates=NetworkingIntegration=true"
_GRACE = "--leftover-grace-seconds=10"  # instead of a minute, which a scenario would wait for
_TAIL = 25
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Labels = Mapping[str, str]


class Running(Manager):
    """One compute-manager whose figures can be read."""

    def samples(self, name: str) -> Iterator[tuple[Labels, float]]:
        for line in self.get("/metrics", "metrics")[1].splitlines():
            found = _SAMPLE.match(line)
            if found and found[1] == name:
                yield dict(_LABEL.findall(found[2] or "")), float(found[3])

    def total(self, name: str, **labels: str) -> float:
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def leads(self) -> bool:
        try:
            return self.process.poll() is None and self.total("leader_election_master_status") > 0
        except OSError:
            return False  # it is about to end

    def idle(self) -> bool:
        """Every plane is engaged and followed, and no controller has anything to do now."""
        return (
            self.get("/readyz")[0] == 200
            and all(value == 1 for _, value in self.samples("compute_cache_watching"))
            and not self.total("workqueue_depth")
            and not self.total("controller_runtime_active_workers")
        )

    def last_lines(self) -> str:
        return "\n  ".join([f"{self.name} logged last:", *self.log.read_text("utf-8").splitlines()[-_TAIL:]])


class Managers:
    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine = engine
        self._directory = directory
        self._crashes: Counter[str] = Counter()
        self.running: dict[str, Running] = {}
        for name in (MANAGEMENT, *CELLS.values()):
            self._projects(name).mkdir()
            for project in PROJECTS:
                self._admit(name, project)

    def start(self, names: Iterable[str] = (MANAGEMENT, *CELLS.values())) -> None:
        """Returns when all are ready: every project that they have a kubeconfig of is engaged."""
        started = [self._start(name) for name in names if not self._runs(name)]
        for manager in started:
            manager.until_ready()

    def kill(self) -> None:
        """All of them die where they stand."""
        for name in list(self.running):
            self.end(name)

    def end(self, name: str) -> None:
        self.check()
        self.running.pop(name).close()

    def suspend(self, project: str) -> None:
        """Management no longer works on it; cells go on, since what they run is theirs."""
        (self._projects(MANAGEMENT) / f"{project}.yaml").unlink()
        self._until_engaged(len(self._listed()))

    def resume(self, project: str) -> None:
        self._admit(MANAGEMENT, project)
        self._until_engaged(len(self._listed()))

    def replicas(self, *names: str) -> dict[str, Running]:
        """Managers of the management plane of which one leads; they are the caller's to end."""
        election = ("--leader-elect", f"--leader-elect-namespace={NAMESPACE}")
        return {name: self._management(name, *election) for name in names}

    def alive(self) -> None:
        """None may have ended by itself."""
        for name, manager in self.running.items():
            assert self._runs(name), f"{name} ended by itself\n{manager.last_lines()}"

    def check(self) -> None:
        """And a pass that crashed is a defect, also when a later one succeeded."""
        self.alive()
        for name, manager in self.running.items():
            crashes = int(manager.total("controller_runtime_reconcile_panics_total"))
            before, self._crashes[name] = self._crashes[name], crashes
            assert crashes <= before, f"a pass of {name} crashed\n{manager.last_lines()}"

    def report(self) -> str:
        return "\n".join(manager.last_lines() for manager in self.running.values())

    def close(self) -> None:
        for manager in self.running.values():
            manager.close()

    def _runs(self, name: str) -> bool:
        return name in self.running and self.running[name].process.poll() is None

    def _start(self, name: str) -> Running:
        self._crashes[name] = 0
        self.running[name] = self._management(name) if name == MANAGEMENT else self._cell(name)
        return self.running[name]

    def _management(self, name: str, *more: str) -> Running:
        return self._run(
            name,
            f"discovery:\n  mode: kubeconfigs\n  kubeconfigDir: {self._projects(MANAGEMENT)}\n",
            f"--kubeconfig={self._kubeconfig(Who.MANAGEMENT, HOST_PLANE)}",
            f"--federation-kubeconfig={self._kubeconfig(Who.MANAGEMENT, HUB_PLANE)}",
            "--enable-management-controllers",
            _GRACE,
            "--builtins=quota,entitlement,locations",
            _NETWORKING,
            *more,
        )

    def _cell(self, name: str) -> Running:
        return self._run(
            name,
            f"discovery:\n  mode: kubeconfigs\n  kubeconfigDir: {self._projects(name)}\n  clusterName: {name}\n",
            f"--kubeconfig={self._kubeconfig(Who.CELL, name)}",
            f"--federation-kubeconfig={self._kubeconfig(Who.CELL, HUB_PLANE, name)}",
            "--enable-cell-controllers",
            _GRACE,
            "--provider=simulated",
            "--builtins=network,locations",
            _NETWORKING,
        )

    def _run(self, name: str, discovery: str, *flags: str) -> Running:
        metrics = "metricsServer:\n  secureServing: false\n  bindAddress: 127.0.0.1:0\n"
        return Running(self._directory, name, f"{metrics}{discovery}", *flags)

    def _until_engaged(self, projects: int) -> None:
        management = self.running[MANAGEMENT]
        until(
            lambda: management.total("compute_planes_engaged", kind="project") == projects,
            f"management works on {projects} projects",
        )

    def _listed(self) -> list[Path]:
        return list(self._projects(MANAGEMENT).iterdir())

    def _admit(self, name: str, project: str) -> None:
        plane = PROJECTS[project]
        found = (
            self._kubeconfig(Who.MANAGEMENT, plane) if name == MANAGEMENT else self._kubeconfig(Who.CELL, plane, name)
        )
        shutil.copy(found, self._projects(name) / f"{project}.yaml")

    def _projects(self, name: str) -> Path:
        return self._directory / f"{name}-projects"

    def _kubeconfig(self, who: Who, plane: str, cell: str = "") -> Path:
        """Away from home a cell works under an account of its own name."""
        return self._engine.kubeconfig(plane, "-".join(filter(None, (who.value, cell))))
