"""Why something that was asked for cannot be made, in words for a condition.

Entry points: `obstacles`, `StableMessages`, `Blocked`.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.kube.errors import BadRequest, Invalid, TooLarge
from datum_compute.runtime import Problem, Request, Unfinished

_LONGEST = 1000  # characters of a server's sentence: an event takes 1024 bytes, and values can be echoed at any length


class Obstacle(Struct, frozen=True):
    """Reason and message of a condition."""

    reason: str
    message: str


class Blocked(Unfinished):
    """A pass that cannot go on until somebody acts; `reason` is what a condition says meanwhile."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def obstacles(problems: Iterable[Problem]) -> Mapping[str, Obstacle]:
    """What people are told of, by subject; outages and conflicts pass by themselves and are left out."""
    found: dict[str, Obstacle] = {}
    for problem in problems:
        if (obstacle := _obstacle(problem)) is not None:
            found.setdefault(problem.subject, obstacle)
    return found


def _obstacle(problem: Problem) -> Obstacle | None:
    if isinstance(problem.error, Blocked):
        return Obstacle(problem.error.reason, str(problem.error))
    if not problem.is_refusal:
        return None
    is_about_the_spec = isinstance(problem.error, BadRequest | Invalid | TooLarge)
    reason = reasons.SPEC_REFUSED if is_about_the_spec else reasons.WRITE_FORBIDDEN
    return Obstacle(reason, f"{problem.subject} was refused: {_shortened(str(problem.error))}")


class StableMessages:
    """The first wording of each refusal, kept while the same is refused of the same generation.

    A server may word a refusal differently with every try, with a time or the number of a request. Written each time,
    the status would wake its own controller for ever.
    """

    def __init__(self) -> None:
        self._known: dict[Request, tuple[int, dict[str, Obstacle]]] = {}

    def settled(self, request: Request, generation: int, found: Mapping[str, Obstacle]) -> Mapping[str, Obstacle]:
        earlier, known = self._known.pop(request, (generation, {}))
        if earlier != generation:
            known = {}
        settled = {subject: _kept(known.get(subject), obstacle) for subject, obstacle in found.items()}
        if settled:
            self._known[request] = generation, settled
        return settled

    def forget(self, request: Request) -> None:
        self._known.pop(request, None)

    def forget_plane(self, plane: str) -> None:
        for request in [request for request in self._known if request.plane == plane]:
            del self._known[request]


def _kept(known: Obstacle | None, obstacle: Obstacle) -> Obstacle:
    is_worded_by_a_server = obstacle.reason in (reasons.SPEC_REFUSED, reasons.WRITE_FORBIDDEN)
    return known if known is not None and is_worded_by_a_server and known.reason == obstacle.reason else obstacle


def _shortened(sentence: str) -> str:
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."
