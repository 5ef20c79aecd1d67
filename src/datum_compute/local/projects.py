"""The projects of a local federation as they are now. Entry point: `projects`."""

from pathlib import Path

import msgspec
from msgspec import Struct

from datum_compute.api.services import PROJECT, READY, Project
from datum_compute.kube import calls, conditions
from datum_compute.kube.access.kubeconfig import KubeconfigError, load
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.errors import ApiError, from_status
from datum_compute.local.state import LocalError, Running, kubeconfig_path


class ProjectState(Struct, frozen=True):
    name: str
    state: str  # Ready, Starting or Deleting


def projects(running: Running, seconds: float) -> list[ProjectState]:
    """Lists the projects of the running federation by name; raises `LocalError` if it does not answer."""
    try:
        transport = BlockingTransport(load([kubeconfig_path(Path(running.directory))], "root"), timeout=seconds)
        try:
            pages = calls.Pages(PROJECT, PROJECT.decode)
            while pages.next_call is not None:
                answer = transport.call(pages.next_call)
                if answer.code >= 300:
                    raise from_status(answer.code, answer.body, "root")
                pages.add(answer.body)
        finally:
            transport.close()
    except (ApiError, KubeconfigError, msgspec.MsgspecError) as error:
        reason = error.message if isinstance(error, ApiError) else error
        raise LocalError(
            f"the local federation (process {running.pid}) is running but does not answer: {reason}; "
            "start it again with 'compute local down' and 'compute local up'"
        ) from None
    return sorted((ProjectState(project.name, _state(project)) for project in pages.items), key=lambda each: each.name)


def _state(project: Project) -> str:
    if project.metadata.deleting:
        return "Deleting"
    return "Ready" if conditions.is_true(conditions.of(project), READY) else "Starting"
