"""The status of a project deployment: what its site answered, and what keeps it from the hub.

Entry points: `is_answered`, `mirrored`, `with_obstacle`, `without_obstacle`, `without_refused_view`.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from datum_compute.api import reasons
from datum_compute.api.deployment import FEDERATED, PROJECTED, WorkloadDeployment
from datum_compute.federation.obstacles import Obstacle
from datum_compute.kube import conditions
from datum_compute.kube.meta import Json, as_dict

_COUNTERS = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")


def is_answered(copy: WorkloadDeployment | None) -> bool:
    """Whether a site has reported a status for the hub deployment."""
    return copy is not None and bool(as_dict(copy.status_json))


def mirrored(deployment: WorkloadDeployment, copy: WorkloadDeployment) -> Json:
    """The status of the copy, verbatim, and the project's own conditions beside it."""
    status = as_dict(copy.status_json)
    before = _conditions(as_dict(deployment.status_json))
    own = [condition for condition in before if condition["type"] in (FEDERATED, PROJECTED)]
    return status | {"conditions": [*_conditions(status), *own]} if own else status


def with_obstacle(
    deployment: WorkloadDeployment, types: Iterable[str], obstacle: Obstacle, now: datetime, *, answered: bool
) -> Json:
    """The status with these conditions False; until a site has answered, with all counters at zero."""
    generation = deployment.metadata.generation
    wanted = [
        conditions.condition(type_, False, obstacle.reason, obstacle.message, generation=generation, now=now)
        for type_ in types
    ]
    status = conditions.status_with(deployment, wanted)
    return status if answered else status | dict.fromkeys(_COUNTERS, 0) | {"observedGeneration": generation}


def without_obstacle(deployment: WorkloadDeployment, *, answered: bool) -> Json:
    """The status once nothing keeps the deployment from the hub; unchanged when nothing did."""

    def is_over(condition: Json) -> bool:
        return condition["type"] == FEDERATED or (not answered and condition["reason"] in reasons.OBSTACLES)

    return _without(deployment, lambda condition: condition["type"] != PROJECTED and is_over(condition))


def without_refused_view(deployment: WorkloadDeployment) -> Json:
    """The status once the project shows all Instances."""
    return _without(deployment, lambda condition: condition["type"] == PROJECTED)


def _without(deployment: WorkloadDeployment, is_over: Callable[[Json], bool]) -> Json:
    status = as_dict(deployment.status_json)
    left = [condition for condition in _conditions(status) if not is_over(condition)]
    return status if len(left) == len(_conditions(status)) else status | {"conditions": left}


def _conditions(status: Json) -> list[Json]:
    values: list[Json] = status.get("conditions") or []
    return values
