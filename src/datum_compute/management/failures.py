"""Tells the users of a project when a deployment cannot be handed on, once, and not for a hiccup. Entry: `Failures`."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeployment
from datum_compute.kube.errors import ApiError, Conflict
from datum_compute.runtime.clock import Clock
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.requests import Request, Unfinished

PATIENCE = timedelta(seconds=10)  # what passes sooner was no news


class _Failing(Struct):
    since: datetime
    told: str = ""  # the sentence that was told last


class Failures:
    """Remembers which deployments fail, so that each failure is told when it sets in and not with every try."""

    def __init__(self, component: str, clock: Clock) -> None:
        self._component = component
        self._clock = clock
        self._failing: dict[Request, _Failing] = {}

    def over(self, request: Request) -> None:
        self._failing.pop(request, None)

    @contextmanager
    def told(self, project: Plane, deployment: WorkloadDeployment) -> Iterator[None]:
        """Around one try; whatever it raises goes on."""
        request = Request(project.name, deployment.namespace, deployment.name)
        try:
            yield
        except Conflict:
            raise
        except (ApiError, Unfinished) as error:
            self._failed(project, deployment, request, error)
            raise
        else:
            self.over(request)

    def _failed(self, project: Plane, deployment: WorkloadDeployment, request: Request, error: Exception) -> None:
        if isinstance(error, ApiError) and error.plane == project.name:
            return  # who could be told there is out of reach as well
        now = self._clock.now()
        failing = self._failing.setdefault(request, _Failing(now))
        may_pass = isinstance(error, ApiError)
        sentence = _sentence(error)
        if failing.told == sentence or (may_pass and now - failing.since < PATIENCE):
            return
        failing.told = sentence
        project.events.warning(
            self._component, WORKLOAD_DEPLOYMENT, deployment, reasons.FEDERATION_FAILED, sentence, now=now
        )


def _sentence(error: Exception) -> str:
    if isinstance(error, ApiError) and error.retryable:
        return "The way to the site is interrupted; what runs goes on, and changes are carried out when it is back"
    return f"The deployment cannot be handed on to its site: {error}"
