"""Warns the users of a project when the hub stays unreachable. Entry point: `HubOutages`.

A refusal by the hub is no outage: the federator reports it at once, as a condition.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.kube.errors import ApiError, Conflict
from datum_compute.runtime import Pass, Problem, Request

GRACE = timedelta(seconds=10)  # anything shorter is not worth a warning


class _Outage(Struct):
    since: datetime
    reported: str = ""  # the last message


class HubOutages:
    """Remembers which deployments wait for the hub, so that each outage is reported once and not with every attempt."""

    def __init__(self) -> None:
        self._outages: dict[Request, _Outage] = {}

    def forget(self, request: Request) -> None:
        self._outages.pop(request, None)

    def forget_plane(self, plane: str) -> None:
        for request in [request for request in self._outages if request.plane == plane]:
            del self._outages[request]

    @contextmanager
    def reported(self, pass_: Pass, deployment: WorkloadDeployment) -> Iterator[None]:
        """Reports an outage that interrupts the block; errors are re-raised."""
        try:
            yield
        except Conflict:
            raise
        except ApiError as error:
            if not Problem("", error).is_refusal:
                self._report(pass_, deployment, error)
            raise
        else:
            self.forget(pass_.request)

    def _report(self, pass_: Pass, deployment: WorkloadDeployment, error: ApiError) -> None:
        if error.plane == pass_.name:
            return  # the event could not be written to that plane either
        now = pass_.now()
        outage = self._outages.setdefault(pass_.request, _Outage(now))
        message = _message(error)
        if outage.reported == message or now - outage.since < GRACE:
            return
        outage.reported = message
        pass_.events.warning(deployment, reasons.FEDERATION_FAILED, message)


def _message(error: ApiError) -> str:
    if error.retryable:
        return "The way to the site is interrupted; what runs goes on, and changes are carried out when it is back"
    return f"The deployment cannot be sent to its site: {error}"
