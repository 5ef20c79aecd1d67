"""Projects that are kubeconfig files in a directory. Entry points: `DirectoryDiscovery`, `KubeconfigDirectory`."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import structlog

from datum_compute.kube.kubeconfig import Endpoint, KubeconfigError, load
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane

LOOK_SECONDS = 5.0

_PROJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

_log = structlog.get_logger(__name__)


class KubeconfigDirectory:
    """One kubeconfig a project, named after it; files that come, change and go are noticed by looking again.

    A file that cannot be read as a kubeconfig leaves what was read before in force, because it may be half written.
    """

    def __init__(self, directory: Path, changed: Callable[[str], None]) -> None:
        self._directory = directory
        self._changed = changed
        self._contents: dict[str, bytes] = {}
        self._endpoints: dict[str, Endpoint] = {}

    def endpoint(self, project: str) -> Endpoint:
        found = self._endpoints.get(project)
        if found is None:
            raise KubeconfigError(f'{self._directory} has no kubeconfig for project "{project}"')
        return found

    def projects(self) -> list[str]:
        return sorted(self._endpoints)

    def look(self) -> None:
        try:
            files = self._files()
        except OSError as error:
            # Nothing that runs is left because a directory could not be read.
            _log.warning("kubeconfigs cannot be listed", directory=str(self._directory), error=error.strerror)
            return
        for project in sorted(self._endpoints.keys() - files.keys()):
            del self._endpoints[project]
            self._changed(project)
        self._contents = {project: self._contents[project] for project in self._contents if project in files}
        for project, path in files.items():
            self._read(project, path)

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _files(self) -> dict[str, Path]:
        """By project. What is hidden belongs to whoever mounted the directory."""
        found: dict[str, Path] = {}
        for path in sorted(self._directory.iterdir()):
            project = path.name.partition(".")[0]
            if _PROJECT_NAME.fullmatch(project) and path.is_file():
                found.setdefault(project, path)
        return found

    def _read(self, project: str, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            _log.warning("kubeconfig cannot be read", project=project, file=str(path), error=error.strerror)
            return
        if content == self._contents.get(project):
            return
        self._contents[project] = content
        try:
            endpoint = load([path])
        except KubeconfigError as error:
            _log.error("kubeconfig cannot be used", project=project, error=str(error))
            return
        if endpoint != self._endpoints.get(project):
            self._endpoints[project] = endpoint
            self._changed(project)


class DirectoryDiscovery:
    """Without Milo: a project is engaged while there is a kubeconfig for it, and anew when that changes."""

    def __init__(self, fleet: Fleet, directory: Path, plane_of: Callable[[str, Endpoint], Plane]) -> None:
        self._fleet = fleet
        self._directory = KubeconfigDirectory(directory, self._changed)
        self._plane_of = plane_of

    async def run(self) -> None:
        await self._directory.run()

    def waiting(self) -> list[str]:
        return [project for project in self._directory.projects() if not self._fleet.has(project)]

    def _changed(self, project: str) -> None:
        if self._fleet.knows(project):
            self._fleet.remove(project)
        if project not in self._directory.projects():
            return
        try:
            plane = self._plane_of(project, self._directory.endpoint(project))
        except (KubeconfigError, ValueError) as error:
            _log.error("project cannot be engaged", project=project, error=str(error))
            return
        self._fleet.add(plane)
