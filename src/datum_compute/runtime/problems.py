"""What failed in a pass while the rest of it went on. Entry points: `Problems`, `worst`.

The shape of every pass that does several independent things: collect the errors, go on with the others, write the truth
into status and events, and raise the worst at the end. An object that a server refuses never stops its neighbours.
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
    """One thing that could not be done; `subject` says what, in words that fit into a condition's message."""

    subject: str
    error: ApiError | Unfinished

    @property
    def is_refusal(self) -> bool:
        """Whether a server considered the request and said no: the same request gets the same answer."""
        return isinstance(self.error, _REFUSALS) and not isinstance(self.error, NamespaceTerminating)

    @property
    def sentence(self) -> str:
        return f"{self.subject}: {self.error}" if self.subject else str(self.error)


class Problems:
    """Collects API errors and `Unfinished`; a defect is never collected and ends the pass where it happens."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @contextmanager
    def collect(self, subject: str) -> Iterator[None]:
        """Errors of the block are kept, and the code after it runs."""
        try:
            yield
        except (ApiError, Unfinished) as error:
            self._found.append(Problem(subject, error))

    def refusals(self) -> list[Problem]:
        return [problem for problem in self._found if problem.is_refusal]

    def raise_worst(self) -> None:
        """Ends the pass with the error that decides when it runs again; does nothing when all went well."""
        if self._found:
            raise worst(problem.error for problem in self._found)


def worst(errors: Iterable[Exception]) -> Exception:
    """The error that decides how a pass ended when several things failed.

    A defect first, then what may succeed later, because it sets the pace; then a conflict, which is settled by the next
    event; then a server that said when to ask again, since nothing else has to wait for it; then what only a change
    can mend, because that runs slowly; last a namespace that goes, which is no failure.
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
