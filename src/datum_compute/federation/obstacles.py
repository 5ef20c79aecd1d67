"""Why something requested cannot be created, worded for a condition.

Entry points: `Obstacles`, `Obstacle`, `Blocked`, `obstacles`, `warn_of_obstacle`.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.workload import Workload
from datum_compute.kube import conditions
from datum_compute.kube.errors import BadRequest, Invalid, TooLarge
from datum_compute.runtime import Pass, Problem, Request, Unfinished

T = TypeVar("T", Workload, WorkloadDeployment)

_LONGEST = 1000  # characters of a server's message: an event takes 1024 bytes, and servers echo values of any length


class Obstacle(Struct, frozen=True):
    """Reason and message of a condition."""

    reason: str
    message: str


class Blocked(Unfinished):
    """A pass that cannot continue until somebody acts; `reason` is reported in a condition meanwhile."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def obstacles(problems: Iterable[Problem]) -> Mapping[str, Obstacle]:
    """The first obstacle per subject. Outages and conflicts resolve themselves and are left out."""
    by_subject: dict[str, Obstacle] = {}
    for problem in problems:
        if (obstacle := _obstacle(problem)) is not None:
            by_subject.setdefault(problem.subject, obstacle)
    return by_subject


def _obstacle(problem: Problem) -> Obstacle | None:
    if isinstance(problem.error, Blocked):
        return Obstacle(problem.error.reason, str(problem.error))
    if not problem.is_refusal:
        return None
    is_about_the_spec = isinstance(problem.error, BadRequest | Invalid | TooLarge)
    reason = reasons.SPEC_REFUSED if is_about_the_spec else reasons.WRITE_FORBIDDEN
    return Obstacle(reason, f"{problem.subject} was refused: {_shortened(str(problem.error))}")


class Obstacles:
    """The obstacles of each request, with the first message of a refusal kept while the generation stays the same.

    A server may word a refusal differently each time, with a timestamp or a request number. Writing every variant
    into the status would wake its own controller for ever.
    """

    def __init__(self) -> None:
        self._known: dict[Request, tuple[int, dict[str, Obstacle]]] = {}

    def update(self, request: Request, generation: int, problems: Iterable[Problem]) -> Mapping[str, Obstacle]:
        """The current obstacles per subject."""
        known_generation, known = self._known.pop(request, (generation, {}))
        if known_generation != generation:
            known = {}
        current = {
            subject: _first_wording(known.get(subject), obstacle) for subject, obstacle in obstacles(problems).items()
        }
        if current:
            self._known[request] = generation, current
        return current

    def known(self, request: Request) -> Mapping[str, Obstacle]:
        """The obstacles per subject that the last update of a request left."""
        _, obstacles = self._known.get(request, (0, {}))
        return obstacles

    def forget(self, request: Request) -> None:
        self._known.pop(request, None)

    def forget_plane(self, plane: str) -> None:
        for request in [request for request in self._known if request.plane == plane]:
            del self._known[request]


def warn_of_obstacle(pass_: Pass, type_: str, before: T, after: T) -> None:
    """Emits a warning when the condition of this type starts to report an obstacle, or a different one."""
    was, now = (conditions.find(conditions.of(object_), type_) for object_ in (before, after))
    if now is not None and now.reason in reasons.OBSTACLES and (was is None or was.message != now.message):
        pass_.events.warning(after, now.reason, now.message)


def _first_wording(known: Obstacle | None, obstacle: Obstacle) -> Obstacle:
    is_server_message = obstacle.reason in (reasons.SPEC_REFUSED, reasons.WRITE_FORBIDDEN)
    return known if known is not None and is_server_message and known.reason == obstacle.reason else obstacle


def _shortened(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
