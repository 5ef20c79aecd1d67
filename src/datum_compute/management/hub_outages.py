"""Tells the users of a project when the way to the hub is interrupted, once, and not for a hiccup. Entry: `HubOutages`.

What the hub refuses is no interruption: the federator tells it as a condition, at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.kube.errors import ApiError, Conflict
from datum_compute.runtime import Pass, Problem, Request

PATIENCE = timedelta(seconds=10)  # what passes sooner was no news


class _Failing(Struct):
    since: datetime
    told: str = ""  # the sentence that was told last


class HubOutages:
    """Remembers which deployments wait, so that an outage is told when it sets in and not with every try."""

    def __init__(self) -> None:
        self._failing: dict[Request, _Failing] = {}

    def over(self, request: Request) -> None:
        self._failing.pop(request, None)

    def forget(self, plane: str) -> None:
        """The project left, and with it everybody who could be told."""
        for request in [request for request in self._failing if request.plane == plane]:
            del self._failing[request]

    @contextmanager
    def told(self, pass_: Pass, deployment: WorkloadDeployment) -> Iterator[None]:
        """Around one try; whatever it raises goes on."""
        try:
            yield
        except Conflict:
            raise
        except ApiError as error:
            if not Problem("", error).is_refusal:
                self._failed(pass_, deployment, error)
            raise
        else:
            self.over(pass_.request)

    def _failed(self, pass_: Pass, deployment: WorkloadDeployment, error: ApiError) -> None:
        if error.plane == pass_.name:
            return  # who could be told there is out of reach as well
        now = pass_.now()
        failing = self._failing.setdefault(pass_.request, _Failing(now))
        sentence = _sentence(error)
        if failing.told == sentence or now - failing.since < PATIENCE:
            return
        failing.told = sentence
        pass_.events.warning(deployment, reasons.FEDERATION_FAILED, sentence)


def _sentence(error: ApiError) -> str:
    if error.retryable:
        return "The way to the site is interrupted; what runs goes on, and changes are carried out when it is back"
    return f"The deployment cannot be handed on to its site: {error}"
