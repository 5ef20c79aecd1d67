"""The projects of a local federation as they are now. Entry points: `projects`, `asking`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from datum_compute.api.services import PROJECT, READY, Project
from datum_compute.kube import calls, conditions
from datum_compute.kube.access.kubeconfig import KubeconfigError, load
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.errors import ApiError, from_status
from datum_compute.kube.transport import Call
from datum_compute.local.state import LocalError, Running, kubeconfig_path


class ProjectState(Struct, frozen=True):
    name: str
    state: str  # Ready, Starting or Deleting


def projects(running: Running, seconds: float) -> list[ProjectState]:
    """Lists the projects of the running federation by name; raises `LocalError` if it does not answer."""
    pages = calls.Pages(PROJECT, PROJECT.decode)
    with asking(running, seconds) as ask:
        while pages.next_call is not None:
            pages.add(ask(pages.next_call))
    return sorted((ProjectState(project.name, _state(project)) for project in pages.items), key=lambda each: each.name)


@contextmanager
def asking(running: Running, seconds: float) -> Iterator[Callable[[Call], bytes]]:
    """A function that calls the root plane and returns the answer; raises `LocalError` if there is no good one."""
    try:
        transport = BlockingTransport(load([kubeconfig_path(Path(running.directory))], "root"), timeout=seconds)

        def ask(call: Call) -> bytes:
            answer = transport.call(call)
            if answer.code >= 300:
                raise from_status(answer.code, answer.body, "root")
            return answer.body

        try:
            yield ask
        finally:
            transport.close()
    except (ApiError, KubeconfigError, msgspec.MsgspecError) as error:
        reason = error.message if isinstance(error, ApiError) else error
        raise LocalError(
            f"the local federation (process {running.pid}) is running but does not answer: {reason}; "
            "start it again with 'compute local down' and 'compute local up'"
        ) from None


def _state(project: Project) -> str:
    if project.metadata.deleting:
        return "Deleting"
    return "Ready" if conditions.is_true(conditions.of(project), READY) else "Starting"
