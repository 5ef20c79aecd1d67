"""Whether the project may use compute. Entry points: `active_entitlement`, `access`.

An entitlement that exists and says nothing yet is being activated; it is never taken for one that was not requested.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum

from datum_compute.api.services import (
    READY,
    SERVICE_ENTITLEMENT,
    SERVICE_NAME,
    SERVICE_OBJECT,
    ServiceEntitlement,
)
from datum_compute.cli.durations import age
from datum_compute.cli.failures import Exit, Failure, NotYet
from datum_compute.cli.run import Run
from datum_compute.kube import conditions
from datum_compute.kube.errors import Forbidden, NotFound

_YOUNG_SECONDS = 120
_WAIT_SECONDS = 30
_LOOK_SECONDS = 1.0
_AGAIN = "Run your command again shortly."


class Access(Enum):
    NOT_REQUESTED = "NotRequested"
    PROCESSING = "Processing"
    PENDING_APPROVAL = "PendingApproval"
    ACTIVE = "Active"
    DENIED = "Denied"
    REVOKED = "Revoked"
    UNAVAILABLE = "Unavailable"


def matching(entitlements: Iterable[ServiceEntitlement]) -> ServiceEntitlement | None:
    """The one for compute: by the service's own name where it is known, else by the name of its object."""
    found = list(entitlements)
    by_service = [one for one in found if _service(one) == SERVICE_NAME]
    by_object = [one for one in found if one.spec.service_ref.name == SERVICE_OBJECT]
    return next(iter(by_service or by_object), None)


def access(entitlement: ServiceEntitlement | None) -> Access:
    if entitlement is None:
        return Access.NOT_REQUESTED
    status = entitlement.status
    ready = conditions.find(status.conditions, READY) if status else None
    if status is None or ready is None or not status.phase:
        return Access.PROCESSING
    match status.phase:
        case "Active":
            return Access.ACTIVE
        case "PendingApproval":
            return Access.PENDING_APPROVAL
        case "Rejected" if ready.reason == "ServiceNotPublished":
            return Access.UNAVAILABLE
        case "Rejected":
            return Access.REVOKED if status.entitled_at else Access.DENIED
    return Access.PROCESSING


def active_entitlement(run: Run) -> None:
    """The need of a verb for a project that may use compute: returns when it may, else tells the state it is in."""
    if _skipped(run.surroundings.environ):
        return
    try:
        entitlement = _read(run)
    except Failure as failure:
        # Who may not look cannot be told; the calls of the command itself are allowed or not.
        if isinstance(failure.__cause__, Forbidden):
            return
        if not isinstance(failure.__cause__, NotFound):
            raise
        if run.place.has_catalog:
            raise _unavailable() from None
        return  # a plane of one's own without a service catalog
    if access(entitlement) is Access.PROCESSING:
        entitlement = _wait(run, entitlement)
    if access(entitlement) is not Access.ACTIVE:
        raise refusal(entitlement, run.project.name, run.clock.now())


def refusal(entitlement: ServiceEntitlement | None, project: str, now: datetime) -> Failure:
    """The state in words, with its exit code."""
    message = _message(entitlement)
    details = [message] if message else []
    since = age(entitlement.metadata.creation_timestamp, now) if entitlement else ""
    match access(entitlement):
        case Access.NOT_REQUESTED:
            return Failure(
                f'compute is not enabled for project "{project}".',
                Exit.NOT_ENABLED,
                advice=f'An owner of the project enables it with a ServiceEntitlement named "{SERVICE_OBJECT}".',
            )
        case Access.PROCESSING:
            text = f'Compute access for project "{project}" was requested {since} ago and is still being activated.'
            return NotYet(text, Exit.PENDING, advice=_AGAIN)
        case Access.PENDING_APPROVAL:
            text = f'Compute access for project "{project}" is waiting for approval (requested {since} ago).'
            return NotYet(text, Exit.PENDING, details=details, advice=_AGAIN)
        case Access.DENIED | Access.REVOKED as state:
            word = state.value.lower()
            return Failure(f'compute access for project "{project}" was {word}.', Exit.DENIED, details=details)
    return _unavailable()


def _unavailable() -> Failure:
    return Failure("the compute service is not available on this platform.", Exit.UNAVAILABLE)


def _read(run: Run) -> ServiceEntitlement | None:
    return matching(run.project.list(SERVICE_ENTITLEMENT, action="checking access to compute").items)


def _wait(run: Run, entitlement: ServiceEntitlement | None) -> ServiceEntitlement | None:
    """A young request is usually a matter of seconds, which are better spent here than in typing again."""
    created = entitlement.metadata.creation_timestamp if entitlement else None
    if created is None or (run.clock.now() - created).total_seconds() >= _YOUNG_SECONDS:
        return entitlement
    run.terminal.aside(f'Compute is being enabled for project "{run.project.name}". This can take a few minutes.')
    deadline = run.clock.monotonic() + _WAIT_SECONDS
    while access(entitlement) is Access.PROCESSING and run.clock.monotonic() < deadline:
        run.clock.sleep(_LOOK_SECONDS)
        entitlement = _read(run)
    if access(entitlement) is Access.ACTIVE:
        run.terminal.aside(f'Compute is now enabled for project "{run.project.name}".')
    return entitlement


def _service(entitlement: ServiceEntitlement) -> str:
    status = entitlement.status
    return (status.service_name if status else "") or entitlement.spec.service_ref.name


def _message(entitlement: ServiceEntitlement | None) -> str:
    status = entitlement.status if entitlement else None
    ready = conditions.find(status.conditions, READY) if status else None
    return ready.message if ready else ""


def _skipped(environ: Mapping[str, str]) -> bool:
    return environ.get("DATUM_COMPUTE_SKIP_ACCESS_CHECK") == "1"
