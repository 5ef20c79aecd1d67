"""The project's access to compute. Entry points: `ENTITLED_PROJECT`, `access`, `request`.

An entitlement that exists without a status is being activated, and never treated as not requested.
"""

from collections.abc import Iterable
from enum import Enum

from datum_compute.api.services import (
    READY,
    SERVICE_ENTITLEMENT,
    SERVICE_NAME,
    SERVICE_OBJECT,
    ServiceEntitlement,
)
from datum_compute.cli.shell.failures import Exit, Failure, NotYet
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.durations import age
from datum_compute.kube import conditions
from datum_compute.kube.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from datum_compute.kube.meta import Json

WAIT_SECONDS = 30.0
_YOUNG_SECONDS = 120
_POLL_SECONDS = 1.0


class Access(Enum):
    NOT_REQUESTED = "NotRequested"
    PROCESSING = "Processing"
    PENDING_APPROVAL = "PendingApproval"
    ACTIVE = "Active"
    DENIED = "Denied"
    REVOKED = "Revoked"
    UNAVAILABLE = "Unavailable"
    NO_CATALOG = "CatalogUnavailable"


def matching(entitlements: Iterable[ServiceEntitlement]) -> ServiceEntitlement | None:
    """The entitlement for compute: by the name of the service if there is one, else by the name of its object."""
    candidates = list(entitlements)
    by_service = [entitlement for entitlement in candidates if _service(entitlement) == SERVICE_NAME]
    by_object = [entitlement for entitlement in candidates if entitlement.spec.service_ref.name == SERVICE_OBJECT]
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
    """The need of a verb for a project that may use compute: returns if it may, else raises a `Failure`.

    In a terminal the user is asked once whether to request access; if that activates it, the verb continues.
    """
    if run.environment.environ.get("DATUM_COMPUTE_SKIP_ACCESS_CHECK") == "1":
        return
    try:
        entitlement = read(run)
    except Failure as failure:
        # Without permission to read entitlements, the calls of the command itself will be allowed or not.
        if isinstance(failure.__cause__, Forbidden):
            return
        if not isinstance(failure.__cause__, NotFound):
            raise
        if run.target.has_catalog:
            raise unavailable() from None
        return  # a self-hosted plane without a service catalog
    if entitlement is None and run.terminal.asks:
        entitlement = _offer_request(run)
    elif access(entitlement) is Access.PROCESSING:
        entitlement = _wait_if_recent(run, entitlement)
    if access(entitlement) is not Access.ACTIVE:
        raise refusal(run, entitlement)


ENTITLED_PROJECT = (project, active_entitlement)
"""The needs of most verbs."""


def read(run: Run) -> ServiceEntitlement | None:
    return matching(run.project.list(SERVICE_ENTITLEMENT, action="checking access to compute").items)


def request(run: Run, message: str = "") -> ServiceEntitlement | None:
    """Requests access to compute; returns the existing request if there is one already."""
    spec: Json = {"serviceRef": {"name": SERVICE_OBJECT}} | ({"requestMessage": message} if message else {})
    try:
        return run.project.create(SERVICE_ENTITLEMENT, SERVICE_ENTITLEMENT.body(SERVICE_OBJECT) | {"spec": spec}).object
    except Failure as failure:
        match failure.__cause__:
            case AlreadyExists():
                return read(run)
            case Invalid():
                raise unavailable() from None
            case Forbidden():
                text = f'you do not have permission to request compute access for project "{run.project.name}"'
                raise Failure(text, Exit.NOT_ALLOWED) from None
            case ApiError() as error:
                raise Failure(f"requesting compute access: {error.message}") from None
        raise


def wait_for_answer(run: Run, entitlement: ServiceEntitlement | None, seconds: float) -> ServiceEntitlement | None:
    """Waits until the entitlement has a status, at most so many seconds; 0 waits forever."""
    deadline = run.clock.monotonic() + seconds
    while access(entitlement) is Access.PROCESSING and (not seconds or run.clock.monotonic() < deadline):
        run.clock.sleep(_POLL_SECONDS)
        entitlement = read(run)
    return entitlement


def refusal(run: Run, entitlement: ServiceEntitlement | None) -> Failure:
    """The failure for a project that may not use compute now."""
    project, details = run.project.name, server_message(entitlement)
    since = age(entitlement.metadata.creation_timestamp, run.clock.now()) if entitlement else ""
    again = f"Run your command again shortly, or wait with: {run.try_next('access request --wait')}"
    match access(entitlement):
        case Access.NOT_REQUESTED:
            return Failure(
                f'compute is not enabled for project "{project}".',
                Exit.NOT_ENABLED,
                advice=f"Request access with: {run.try_next('access request')}",
            )
        case Access.PROCESSING:
            text = f'Compute access for project "{project}" was requested {since} ago and is still being activated.'
            return NotYet(text, Exit.PENDING, advice=again)
        case Access.PENDING_APPROVAL:
            text = f'Compute access for project "{project}" is waiting for approval (requested {since} ago).'
            return NotYet(text, Exit.PENDING, details=details, advice=again)
        case Access.DENIED | Access.REVOKED as state:
            text = f'compute access for project "{project}" was {state.value.lower()}.'
            return Failure(text, Exit.DENIED, details=details, next_command="access request --renew")
    return unavailable()


def unavailable() -> Failure:
    return Failure("the compute service is not available on this platform.", Exit.UNAVAILABLE)


def server_message(entitlement: ServiceEntitlement | None) -> list[str]:
    """The platform's message about the request, if there is one."""
    status = entitlement.status if entitlement else None
    ready = conditions.find(status.conditions, READY) if status else None
    return [ready.message] if ready and ready.message else []


def _offer_request(run: Run) -> ServiceEntitlement | None:
    project = run.project.name
    run.terminal.warn(f'Compute is not enabled for project "{project}".')
    if not run.terminal.confirm("Would you like to request access? [y/N]: ", default=False):
        raise NotYet("No request was made.", Exit.DECLINED, next_command="access request")
    run.terminal.aside(f'Requesting access to compute for project "{project}"...')
    entitlement = wait_for_answer(run, request(run), WAIT_SECONDS)
    if access(entitlement) is Access.PROCESSING:
        raise NotYet(
            f'Compute is being enabled for project "{project}". This can take a few minutes.',
            Exit.PENDING,
            advice=f"Run your command again shortly, or wait with: {run.try_next('access request --wait')}",
        )
    return _announced(run, entitlement)


def _wait_if_recent(run: Run, entitlement: ServiceEntitlement | None) -> ServiceEntitlement | None:
    """Waits for a recent request, which is usually activated within seconds."""
    created = entitlement.metadata.creation_timestamp if entitlement else None
    if created is None or (run.clock.now() - created).total_seconds() >= _YOUNG_SECONDS:
        return entitlement
    run.terminal.aside(f'Compute is being enabled for project "{run.project.name}". This can take a few minutes.')
    return _announced(run, wait_for_answer(run, entitlement, WAIT_SECONDS))


def _announced(run: Run, entitlement: ServiceEntitlement | None) -> ServiceEntitlement | None:
    if access(entitlement) is Access.ACTIVE:
        run.terminal.aside(f'Compute is now enabled for project "{run.project.name}".')
    return entitlement


def _service(entitlement: ServiceEntitlement) -> str:
    status = entitlement.status
    return (status.service_name if status else "") or entitlement.spec.service_ref.name
