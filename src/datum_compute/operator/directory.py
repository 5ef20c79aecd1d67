"""Projects as kubeconfig files in a directory. Entry points: `DirectoryDiscovery`, `KubeconfigDirectory`."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec.structs import replace

from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, load
from datum_compute.runtime import Fleet, Plane

LOOK_SECONDS = 5.0

_PROJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

_log = structlog.get_logger(__name__)


class KubeconfigDirectory:
    """One kubeconfig per project, named after it; the directory is polled for files that appear, change and disappear.

    A file that cannot be used leaves the previous content in force and is tried again: it may be half written, or name
    a certificate that is mounted a moment later. A bad file affects only its project. Unless they are `trusted`, these
    files give access to a project and not to this process: no programs, no local files as tokens, no plain HTTP.
    """

    def __init__(
        self, directory: Path, changed: Callable[[str], None], *, trusted: bool = False, noun: str = "project"
    ) -> None:
        self._directory = directory
        self._noun = noun  # in the log
        self._changed = changed
        self._trusted = trusted
        self._contents: dict[str, bytes] = {}  # of the files in force
        self._endpoints: dict[str, Endpoint] = {}
        self._unusable: dict[str, str] = {}  # the reason, as logged
        self.listed = False  # whether all files were read once

    def endpoint(self, project: str) -> Endpoint:
        endpoint = self._endpoints.get(project)
        if endpoint is None:
            raise KubeconfigError(f'{self._directory} has no kubeconfig for {self._noun} "{project}"')
        return endpoint

    def projects(self) -> list[str]:
        return sorted(self._endpoints)

    def look(self) -> None:
        try:
            files = kubeconfig_files(self._directory)
        except OSError as error:
            # A directory that cannot be read is no reason to leave a project.
            _log.warning("kubeconfigs cannot be listed", directory=str(self._directory), error=error.strerror)
            return
        for project in sorted(self._endpoints.keys() - files.keys()):
            del self._endpoints[project]
            self._changed(project)
        for records in (self._contents, self._unusable):
            for project in records.keys() - files.keys():
                del records[project]
        for project, path in files.items():
            self._read(project, path)
        self.listed = True

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _read(self, project: str, path: Path) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            _log.warning("kubeconfig cannot be read", **{self._noun: project}, file=str(path), error=error.strerror)
            return
        if content == self._contents.get(project):
            return
        try:
            endpoint = project_endpoint(path, trusted=self._trusted)
        except Exception as error:
            self._report_unusable(project, error)
            return
        if endpoint != self._endpoints.get(project):
            self._endpoints[project] = endpoint
            try:
                self._changed(project)
            except Exception as error:
                del self._endpoints[project]  # so that the next round tries again
                self._report_unusable(project, error)
                return
        self._contents[project] = content
        self._unusable.pop(project, None)

    def _report_unusable(self, project: str, error: Exception) -> None:
        """Logs each reason once, however often the file is read."""
        expected = isinstance(error, KubeconfigError)
        sentence = str(error) if expected else f"a defect ({type(error).__name__})"
        if self._unusable.get(project) != sentence:
            self._unusable[project] = sentence
            trace = None if expected else error
            _log.error("kubeconfig cannot be used", **{self._noun: project}, error=sentence, exc_info=trace)


def kubeconfig_files(directory: Path) -> dict[str, Path]:
    """By project. Hidden files belong to whoever mounted the directory."""
    files: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        project = path.name.partition(".")[0]
        if _PROJECT_NAME.fullmatch(project) and path.is_file():
            files.setdefault(project, path)
    return files


def project_endpoint(path: Path, *, trusted: bool) -> Endpoint:
    """Raises `KubeconfigError` for a file that cannot be used or, unless it is `trusted`, must not be."""
    # Without its source: the content read here is in force, not what the file contains a moment later.
    endpoint = replace(load([path]), source=None)
    if not trusted:
        _refuse_unsafe(endpoint, path)
    return endpoint


def _refuse_unsafe(endpoint: Endpoint, path: Path) -> None:
    """Raises for anything in a project's kubeconfig that would reach into this process."""
    unsafe = {
        "runs a program (exec); put a token or a certificate into it": endpoint.plugin is not None,
        "sends a local file as its token (tokenFile); put the token into it": bool(endpoint.token_file),
        "has a server without TLS (http://); use https://": not endpoint.server.startswith("https://"),
    }
    if refused := next((sentence for sentence, is_present in unsafe.items() if is_present), ""):
        raise KubeconfigError(f"kubeconfig {path} {refused}, or allow it with --trust-project-kubeconfigs")


class DirectoryDiscovery:
    """Without Milo: a project is engaged while there is a kubeconfig for it, and engaged again when that changes."""

    def __init__(
        self,
        fleet: Fleet,
        directory: Path,
        plane_of: Callable[[str, Endpoint], Plane],
        *,
        trusted: bool = False,
    ) -> None:
        self._fleet = fleet
        self._directory = KubeconfigDirectory(directory, self._changed, trusted=trusted)
        self._plane_of = plane_of

    async def run(self) -> None:
        await self._directory.run()

    def synced(self) -> bool:
        """Whether the list of projects is known."""
        return self._directory.listed

    def untried(self) -> list[str]:
        """The projects whose first attempt to be engaged has neither succeeded nor failed yet."""
        return [project for project in self._directory.projects() if not self._fleet.tried(project)]

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
