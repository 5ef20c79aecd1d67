"""Who may run commands in Instances, decided by the plane of their project. Entry point: `ProjectExecAccess`."""

from collections.abc import Mapping
from typing import Any

from datum_compute.api import GROUP
from datum_compute.api.instance import INSTANCE
from datum_compute.kube.errors import Forbidden
from datum_compute.telemetry.callers.project_access import ProjectAccess
from datum_compute.telemetry.exec.door import Caller


class ProjectExecAccess:
    """An `Access` of the door for commands; callers are recognized as for logs."""

    def __init__(self, callers: ProjectAccess) -> None:
        self._callers = callers

    async def __call__(self, plane: str, scope: Mapping[str, Any], namespace: str, instance: str, /) -> Caller:
        project, caller = await self._callers.identify(plane, scope)
        if not await self._callers.may_run(project, caller, namespace, instance):
            raise Forbidden(
                f'"{caller.username}" may not run commands in instance "{instance}" of project {project}: '
                f'ask for the right to "create" {INSTANCE.plural}/exec of {GROUP}'
            )
        return Caller(project, caller.username)
