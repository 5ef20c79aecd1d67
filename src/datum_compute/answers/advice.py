"""What to do next about an answer, as commands of ours. Entry points: `advice`, `Advice`."""

from msgspec import Struct

from datum_compute.answers.hops import Hop
from datum_compute.answers.walk import City
from datum_compute.answers.why import Answer
from datum_compute.api import reasons
from datum_compute.api.reasons import REPAIRS, Acts, todo

_UNDO_HELPS = (
    reasons.IMAGE_UNAVAILABLE,
    reasons.INSTANCE_CRASHING,
    reasons.CONFIGURATION_ERROR,
    reasons.FAILED,
    reasons.STOPPED,
)


class Advice(Struct, frozen=True):
    """One command to run, at most two others, each without the name of the program, and a text for people."""

    do: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    text: str = ""


def advice(answer: Answer, workload: str, *, operator: bool = False) -> Advice:
    """`operator`: the reader runs the platform, so that its repairs are theirs."""
    city = answer.cause
    if city is None or city.finding is None:
        return Advice()
    reason = city.finding.reason
    text = todo(reason)
    if operator and city.acts is Acts.PLATFORM:
        text = REPAIRS.get(reason, "")
    commands = _commands(city, workload, answer)
    if answer.generation == 1:  # no other revision to go back to
        commands = [command for command in commands if command[:2] != ("rollout", "undo")]
    do, *others = commands or [()]
    return Advice(do, tuple(others[:2]), text)


def _commands(city: City, name: str, answer: Answer) -> list[tuple[str, ...]]:
    finding = city.finding
    assert finding is not None
    match finding.reason:
        case reasons.QUOTA_EXCEEDED:
            ready = [city.ready or 0 for city in answer.blocks[0].cities]
            affordable = max(min(ready), 1)
            fewer = [("scale", name, f"--min={affordable}")] if affordable < city.desired else []
            return [*fewer, ("quota",)]
        case reasons.ROLLOUT_PAUSED:
            return [("rollout", "resume", name), ("rollout", "undo", name)]
        case reasons.NO_MATCHING_LOCATION:
            return [("cities",)]
        case reasons.ACCESS_PENDING:
            return [("access",)]
        case reasons.DEPLOYMENT_NAME_TAKEN:
            return [("workloads",)]
        case reasons.INSTANCE_CRASHING if finding.instance:
            return [("logs", name), ("instances", "describe", finding.instance), ("rollout", "undo", name)]
        case reason if reason in _UNDO_HELPS and finding.instance:
            return [("instances", "describe", finding.instance), ("rollout", "undo", name)]
    if city.acts in (Acts.WAIT, Acts.STALLED) and finding.hop is not Hop.DELETION:
        return [("rollout", "status", name)]
    return []
