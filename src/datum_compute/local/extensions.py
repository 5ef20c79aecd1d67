"""What the planes of projects serve besides objects. Entry point: `extensions`."""

from collections.abc import Mapping
from typing import Any

from datum_compute.embedded.https.application import BEARER
from datum_compute.embedded.https.extensions import Extension
from datum_compute.federation.roles import PROJECT
from datum_compute.federation.sessions import Runner
from datum_compute.local.federation import HUB_PLANE, Federation
from datum_compute.local.logs import Logs
from datum_compute.telemetry.exec.door import Caller, Door
from datum_compute.telemetry.exec.places import Places
from datum_compute.telemetry.exec.request import GROUP as RUN_GROUP
from datum_compute.telemetry.exec.request import VERSION as RUN_VERSION
from datum_compute.telemetry.gateway import GROUP as LOGS_GROUP
from datum_compute.telemetry.gateway import VERSION as LOGS_VERSION


def extensions(federation: Federation, *, runner: Runner | None, logs: Logs) -> list[Extension]:
    """`runner` runs commands in Instances; there is none where they are simulated."""
    places = Places(federation.client, lambda: federation.client(HUB_PLANE), federation.engine.clock)
    return [
        Extension(RUN_GROUP, RUN_VERSION, PROJECT, Door(_open_access, places, runner), websockets=True),
        Extension(LOGS_GROUP, LOGS_VERSION, PROJECT, logs.gateway),
    ]


async def _open_access(plane: str, scope: Mapping[str, Any], namespace: str, instance: str) -> Caller:
    """Whoever holds the token may do everything."""
    return Caller(plane, BEARER.name)
