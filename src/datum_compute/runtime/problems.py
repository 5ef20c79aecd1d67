"""Errors of the independent parts of a pass. Entry points: `Problems`, `worst`.

A pass that does several independent things collects the errors, goes on with the rest, reports the truth in status and
events, and raises the worst error at the end. An object that a server refuses never stops its neighbours.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from datum_compute.kube.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    NamespaceTerminating,
    TooLarge,
)
from datum_compute.runtime.requests import Unfinished

_REFUSALS = (BadRequest, Forbidden, Invalid, MethodNotAllowed, TooLarge)


class Problem(Struct, frozen=True):
    """One part that failed; `subject` names it in words that fit into a condition's message."""

    subject: str
    error: ApiError | Unfinished

    @property
    def is_refusal(self) -> bool:
        """Whether a server considered the call and refused it: repeating it gives the same answer."""
        return isinstance(self.error, _REFUSALS) and not isinstance(self.error, NamespaceTerminating)

    @property
    def sentence(self) -> str:
        return f"{self.subject}: {self.error}" if self.subject else str(self.error)


class Problems:
    """Collects API errors and `Unfinished`. A defect is never collected: it ends the pass where it happens."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._problems)

    def __len__(self) -> int:
        return len(self._problems)

    @contextmanager
    def collect(self, subject: str) -> Iterator[None]:
        """Collects an error of the block; the code after it runs."""
        try:
            yield
        except (ApiError, Unfinished) as error:
            self._problems.append(Problem(subject, error))

    def refusals(self) -> list[Problem]:
        return [problem for problem in self._problems if problem.is_refusal]

    def raise_worst(self) -> None:
        """Raises the error that decides when the pass runs again, if there is any."""
        if self._problems:
            raise worst(problem.error for problem in self._problems)


def worst(errors: Iterable[Exception]) -> Exception:
    """The error that decides how a pass ended when several things failed.

    A defect first, then what may succeed later, because it sets the pace; then a conflict, which the next event
    resolves; then a server that said when to retry, since nothing else has to wait for it; then what only a change can
    fix, because that runs slowly; last a terminating namespace, which is not a failure.
    """
    return min(errors, key=_rank)


def _rank(error: Exception) -> int:
    match error:
        case NamespaceTerminating():
            return 5
        case Conflict():
            return 2
        case ApiError(retryable=False):
            return 4
        case ApiError(retry_after=seconds) if seconds > 0:
            return 3
        case ApiError() | Unfinished():
            return 1
    return 0
