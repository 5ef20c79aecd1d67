"""When an image is pulled, and what is known about it. Entry points: `is_pulled_anew`, `Progress`, `ImageState`."""

from typing import Self

from msgspec import Struct

from datum_compute.providers.engine.words import PullProblem, excerpt

FIRST_WAIT, LONGEST_WAIT = 10.0, 300.0
FULL_WAIT = 30.0
_NOWHERE = "localhost/"  # Podman's prefix for images without a registry
_NOT_FOUND = (PullProblem.MISSING_OR_DENIED, PullProblem.MISSING, PullProblem.DENIED, PullProblem.NO_ANSWER)
PROGRESS_STEP, PROGRESS_SECONDS = 0.1, 5.0


class Present(Struct, frozen=True, tag=True):
    """The engine has the image. `stale` says why a newer one could not be pulled; empty if that was not tried."""

    stale: str = ""


class Pulling(Struct, frozen=True, tag=True):
    fraction: float | None = None


class Unavailable(Struct, frozen=True, tag=True):
    """The last pull failed; the next is made at `again_at`, in loop time, or is under way if that is None."""

    problem: PullProblem
    text: str  # the engine's words
    again_at: float | None = None
    reference: str = ""  # of the image

    @property
    def reason(self) -> str:
        if self.problem in _NOT_FOUND and self.reference and not _registry(self.reference):
            here = "it is not on this machine"  # where an image without a registry was probably built
            return here if self.reference.startswith(_NOWHERE) else f"{here}, and {self.problem.value}"
        return self.problem.value or excerpt(self.text)


ImageState = Present | Pulling | Unavailable


def is_pulled_anew(reference: str) -> bool:
    """Whether an image that the engine has is pulled all the same for a new Instance.

    So it is if its tag moves and its name has a registry. An image that was built on this machine has none, and runs
    without one.
    """
    if not _registry(reference) or "@" in reference:
        return False
    _, _, tag = reference.rpartition("/")[2].partition(":")
    return tag in ("", "latest")


def _registry(reference: str) -> str:
    """The registry that the name of an image has; empty if it has none."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first) else ""


def wait_after(problem: PullProblem, failures: int) -> float:
    """Seconds until the next pull, by the number of failures in a row."""
    if problem is PullProblem.DISK_FULL:
        return FULL_WAIT
    return min(FIRST_WAIT * 2.0 ** min(failures - 1, 10), LONGEST_WAIT)


class Progress(Struct, frozen=True):
    """The progress of a pull as users see it. It moves in large steps, because each one is written to three planes."""

    fraction: float | None = None
    at: float = 0.0  # loop time

    def moved(self, fraction: float | None, now: float) -> Self:
        """The progress to show; this one while it is not far or long enough from the last."""
        visible = self.fraction or 0.0
        if fraction is None or fraction < visible + PROGRESS_STEP - 1e-9 or now < self.at + PROGRESS_SECONDS:
            return self
        return type(self)(fraction, now)
