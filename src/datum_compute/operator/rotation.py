"""How a certificate of our own is renewed without a failed call. Entry points: `next_step`, `after`.

A call fails when the caller does not trust the authority that signed what a replica serves. Callers and replicas learn
of changes late. So a renewal first lets callers trust the new authority as well, then serves the new certificate, and
then ends the trust in the old authority, each after everybody had time to notice the step before.
"""

from collections.abc import Callable
from datetime import datetime
from enum import Enum

from msgspec import Struct

RENEWED_AFTER = 2 / 3  # of the time for which a certificate is valid


class Serving(Struct, frozen=True):
    """A certificate and its key, and the authority that signed it, in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes
    begins: datetime
    ends: datetime
    hosts: frozenset[str]

    def __repr__(self) -> str:  # a key has no place in a log
        return f"Serving({self.begins:%F} to {self.ends:%F})"


class Contents(Struct, frozen=True):
    """What is stored for all replicas. What is missing or cannot be used is None."""

    current: Serving | None = None
    prepared: Serving | None = None  # to be served next
    trusted: tuple[bytes, ...] = ()  # authorities, the newest first


class Step(Enum):
    CREATE = "created"  # a certificate to serve at once, because there is none
    PREPARE = "prepared"  # a certificate to serve later, whose authority is trusted from now on
    PROMOTE = "promoted"  # serve the prepared certificate
    RETIRE = "retired"  # trust only the authority of the current certificate


def next_step(contents: Contents, now: datetime, hosts: frozenset[str], *, noticed: bool) -> Step | None:
    """`hosts` must be in the certificate; `noticed` says that everybody had time to notice the contents."""
    current, prepared = (
        serving if serving is not None and serving.begins <= now < serving.ends else None
        for serving in (contents.current, contents.prepared)
    )
    match current, prepared:
        case None, None:
            return Step.CREATE
        case None, _:
            return Step.PROMOTE  # perhaps too early for some callers, but the current one is too late for all
        case Serving(), None if _is_due(current, now, hosts):
            return Step.PREPARE
        case Serving(), None:
            return Step.RETIRE if noticed and contents.trusted != (current.authority,) else None
    # Never replaced, even if it lacks a host: replicas of two versions would replace each other's.
    return Step.PROMOTE if noticed else None


def _is_due(current: Serving, now: datetime, hosts: frozenset[str]) -> bool:
    return not hosts <= current.hosts or now >= current.begins + RENEWED_AFTER * (current.ends - current.begins)


def after(contents: Contents, step: Step, issue: Callable[[], Serving]) -> Contents:
    """`issue` makes a certificate with an authority of its own."""
    current, prepared, trusted = contents.current, contents.prepared, contents.trusted
    match step:
        case Step.CREATE:
            created = issue()
            return Contents(created, None, (created.authority, *trusted))
        case Step.PREPARE:
            created = issue()
            return Contents(current, created, (created.authority, *trusted))
        case Step.PROMOTE:
            return Contents(prepared, None, trusted)
        case Step.RETIRE:
            assert current is not None
            return Contents(current, None, (current.authority,))
