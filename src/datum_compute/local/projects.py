"""The projects of a local federation as they are now. Entry point: `projects`."""

from pathlib import Path

import msgspec
from msgspec import Raw, Struct

from datum_compute.api.services import PROJECT, READY, Project
from datum_compute.kube import conditions
from datum_compute.kube.access.kubeconfig import KubeconfigError, load
from datum_compute.kube.blocking import PlainTransport
from datum_compute.kube.errors import ApiError, from_status
from datum_compute.kube.meta import decode
from datum_compute.kube.transport import Call
from datum_compute.local.state import LocalError, Running, kubeconfig_path


class ProjectState(Struct, frozen=True):
    name: str
    state: str  # Ready, Starting or Deleting


class _Listed(Struct, frozen=True):
    items: list[Raw]


def projects(running: Running, seconds: float) -> list[ProjectState]:
    """Asked of the federation itself, by name; raises `LocalError` when it does not answer."""
    try:
        transport = PlainTransport(load([kubeconfig_path(Path(running.directory))], "root"), timeout=seconds)
        try:
            answer = transport.call(Call("GET", PROJECT.path()))
        finally:
            transport.close()
        if answer.code >= 300:
            raise from_status(answer.code, answer.body, "root")
        found = [PROJECT.decode(item) for item in decode(answer.body, _Listed).items]
    except (ApiError, KubeconfigError, msgspec.MsgspecError) as error:
        reason = error.message if isinstance(error, ApiError) else error
        raise LocalError(
            f"the local federation (process {running.pid}) is running but does not answer: {reason}; "
            "start it again with 'compute local down' and 'compute local up'"
        ) from None
    return sorted((ProjectState(one.name, _state(one)) for one in found), key=lambda one: one.name)


def _state(project: Project) -> str:
    if project.metadata.deleting:
        return "Deleting"
    return "Ready" if conditions.is_true(conditions.of(project), READY) else "Starting"
