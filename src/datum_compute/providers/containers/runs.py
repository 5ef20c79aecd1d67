"""How often a container ended, and when it is started again. Entry points: `Runs`, `observed`, `Trouble`."""

import msgspec
from msgspec import Struct

from datum_compute.providers.engine.interface import ContainerState
from datum_compute.providers.engine.words import Refusal

RUNNING, PAUSED = "running", "paused"
CREATED = frozenset({"created", "configured", "initialized"})
ENDED = frozenset({"exited", "stopped"})

FORGIVEN_SECONDS = 60.0
LONGEST_WAIT = 60.0
_SECOND = 10**9

_FULL_WAIT = 30.0
_CONFIGURATION_WAIT = 300.0
_PORT_TRIES, _PORT_WAIT = 3, 10.0
_NAME_WAIT = 10.0
_FIRST_WAIT, _REFUSED_LONGEST_WAIT = 30.0, 300.0


class Runs(Struct, frozen=True):
    """What this process has seen of a container. It is lost with the process, so what ended before is not counted."""

    run: int = 0  # start of the latest run that was seen, as the engine gives it
    since: float = 0.0  # loop time since which it runs
    ended: int = -1  # start of the latest run that was seen ended
    count: int = 0  # ends in a row that nobody asked for
    crashed: bool = False  # whether the latest end counted
    resumes: bool = False  # whether it only goes on: the latest end was ours, or nobody saw it
    again_at: float = 0.0  # loop time before which it is not started again
    starting: bool = False  # whether a start was sent and its run not seen yet
    stopping: bool = False  # whether a stop was sent


def observed(runs: Runs, state: ContainerState, now: float, wall: int) -> Runs:
    """`runs` after a look at the container; `now` is loop time, `wall` nanoseconds since 1970.

    Each run that ends is counted once, if this process saw it or started it, and did not stop it.
    """
    if state.status in (RUNNING, PAUSED):
        if state.started == runs.run and not runs.starting:
            return runs
        # A run that others began is as old as the engine says; the clocks may differ if the engine has its own machine.
        age = 0.0 if runs.starting else max(0.0, (wall - state.started) / _SECOND)
        return msgspec.structs.replace(runs, run=state.started, since=now - age, starting=False)
    if state.status not in ENDED or state.started == runs.ended:
        return runs
    known = runs.starting or state.started == runs.run
    ended = msgspec.structs.replace(runs, run=state.started, ended=state.started, starting=False, stopping=False)
    if not known or runs.stopping:
        return msgspec.structs.replace(ended, crashed=False, resumes=True, again_at=now)
    lasted = (state.finished - state.started) / _SECOND
    count = 1 if lasted >= FORGIVEN_SECONDS else runs.count + 1
    again_at = now + wait_after_crash(count)
    return msgspec.structs.replace(ended, count=count, crashed=True, resumes=False, again_at=again_at)


def forgotten(runs: Runs) -> Runs:
    """`runs` after an outage of the engine, which may have ended the container: that does not count as a crash."""
    return msgspec.structs.replace(runs, run=0, starting=False, stopping=False)


def wait_after_crash(count: int) -> float:
    """Seconds until a container is started again after so many ends in a row: 0, 1, 2, 4 and so on up to 60."""
    return 0.0 if count <= 1 else min(2.0 ** min(count - 2, 10), LONGEST_WAIT)


class Trouble(Struct, frozen=True):
    """The latest refusal to create or start a container, until it runs."""

    refusal: Refusal
    text: str = ""  # the engine's words
    count: int = 1  # in a row
    again_at: float = 0.0  # loop time
    anew: bool = False  # whether the container must be made anew before it is started


def troubled(before: Trouble | None, refusal: Refusal, text: str, now: float, *, anew: bool) -> Trouble:
    """The trouble after one more refusal."""
    count = before.count + 1 if before is not None and before.refusal is refusal else 1
    return Trouble(refusal, text, count, now + wait_after_refusal(refusal, count), anew)


def wait_after_refusal(refusal: Refusal, count: int) -> float:
    """Seconds until the next try, by the number of refusals in a row."""
    match refusal:
        case Refusal.DISK_FULL:
            return _FULL_WAIT
        case Refusal.PROGRAM_MISSING | Refusal.PROGRAM_UNUSABLE | Refusal.OTHER_PROCESSOR:
            return _CONFIGURATION_WAIT
        case Refusal.PORT_TAKEN:
            return 0.0 if count <= _PORT_TRIES else _PORT_WAIT
        case Refusal.NAME_TAKEN:
            return _NAME_WAIT
        case Refusal.OTHER:
            return min(_FIRST_WAIT * 2.0 ** min(count - 1, 10), _REFUSED_LONGEST_WAIT)
