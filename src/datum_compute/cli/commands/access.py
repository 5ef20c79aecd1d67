"""Whether the project may use compute, and asking for it. Entry point: `command`."""

import math

from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_NAME, ServiceEntitlement
from datum_compute.cli.shell.failures import Exit, Failure, NotYet
from datum_compute.cli.shell.flags import Duration, option
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.durations import age, compact
from datum_compute.cli.show.fragments import head
from datum_compute.cli.talk.entitlement import (
    WAIT_SECONDS,
    Access,
    access,
    decided,
    read,
    refusal,
    request,
    server_message,
    unavailable,
)
from datum_compute.kube.errors import NotFound

_WORDS = {
    Access.NOT_REQUESTED: "not requested",
    Access.PROCESSING: "being activated",
    Access.PENDING_APPROVAL: "waiting for approval",
    Access.ACTIVE: "enabled",
    Access.DENIED: "denied",
    Access.REVOKED: "revoked",
    Access.UNAVAILABLE: "not available on this platform",
    Access.NO_CATALOG: "no service catalog here; compute needs no access",
}
_NEXT = {
    Access.NOT_REQUESTED: "access request",
    Access.PROCESSING: "access request --wait",
    Access.PENDING_APPROVAL: "access request --wait",
    Access.DENIED: "access request --renew",
    Access.REVOKED: "access request --renew",
}
_DRAIN_SECONDS = 1.0
_LOOK_SECONDS = 2.0


@verb("show", needs=[project], outputs=("table", "json", "yaml"))
def show(run: Run) -> None:
    """Show whether the project may use compute. Asking is never an error."""
    try:
        entitlement, state = read(run), None
    except Failure as failure:
        if not isinstance(failure.__cause__, NotFound):
            raise
        entitlement, state = None, Access.NO_CATALOG
    _show(run, entitlement, state or access(entitlement))


@verb("request", needs=[project], outputs=("table", "json", "yaml"))
@option("--message", default="", metavar="TEXT", help="What to tell whoever approves it; at most 1024 characters.")
@option("--renew", is_flag=True, help="Ask again after a request was denied or access was revoked.")
@option("--wait/--no-wait", default=False, help="Return only when it is decided.")
@option("--timeout", type=Duration(), default=1800.0, metavar="DURATION", help="Longest wait; 30m unless given.")
def request_(run: Run, message: str, renew: bool, wait: bool, timeout: float) -> None:
    """Request access to compute for the project.

    A request that was made before is not made again.
    """
    deadline = run.clock.monotonic() + (timeout if wait and timeout else math.inf)
    entitlement = _existing(run)
    if access(entitlement) in (Access.DENIED, Access.REVOKED):
        entitlement = _renewed(run, entitlement, message, deadline, renew=renew)
    elif entitlement is None:
        run.terminal.aside(f'Requesting access to compute for project "{run.project.name}"...')
        entitlement = request(run, message)
    entitlement = _waited(run, entitlement, deadline) if wait else decided(run, entitlement, WAIT_SECONDS)
    state = access(entitlement)
    if state is Access.UNAVAILABLE:
        raise unavailable()
    if state in (Access.DENIED, Access.REVOKED):
        raise refusal(run, entitlement)
    _show(run, entitlement, state)


def _existing(run: Run) -> ServiceEntitlement | None:
    try:
        return read(run)
    except Failure as failure:
        if isinstance(failure.__cause__, NotFound):
            raise unavailable() from None
        raise


def _renewed(
    run: Run, entitlement: ServiceEntitlement | None, message: str, deadline: float, *, renew: bool
) -> ServiceEntitlement | None:
    """The old request makes room for a new one; as long as it drains, a new one cannot be made."""
    assert entitlement is not None
    if not renew:
        raise refusal(run, entitlement)
    if run.terminal.asks and not run.terminal.confirm("Withdraw the old request and ask again? [y/N]: ", default=False):
        raise NotYet("No request was made.", Exit.DECLINED, next_command="access request --renew")
    run.project.delete(SERVICE_ENTITLEMENT, entitlement.name, entitlement.metadata.uid)
    began = run.clock.monotonic()
    deadline = min(deadline, began + WAIT_SECONDS)
    while True:
        found = request(run, message)
        if found is not None and found.metadata.uid != entitlement.metadata.uid:
            return found
        now = run.clock.monotonic()
        if now >= deadline:
            raise Failure(
                f"the old request is still being withdrawn after {compact(now - began)}; try again",
                Exit.PENDING,
                next_command="access request --renew",
            )
        run.clock.sleep(min(deadline - now, _DRAIN_SECONDS))


def _waited(run: Run, entitlement: ServiceEntitlement | None, deadline: float) -> ServiceEntitlement | None:
    while access(entitlement) in (Access.PROCESSING, Access.PENDING_APPROVAL):
        left = deadline - run.clock.monotonic()
        if left <= 0:
            raise refusal(run, entitlement)
        run.clock.sleep(min(left, _LOOK_SECONDS))
        entitlement = read(run)
    return entitlement


def _show(run: Run, entitlement: ServiceEntitlement | None, state: Access) -> None:
    if run.output != "table":
        run.terminal.data(
            {
                "service": SERVICE_NAME,
                "project": run.project.name,
                "state": state.value,
                "entitlement": entitlement.name if entitlement else None,
            },
            run.output,
        )
        return
    since = age(entitlement.metadata.creation_timestamp, run.clock.now()) if entitlement else ""
    requested = f" (requested {since} ago)" if since else ""
    run.terminal.show(
        head("Service", SERVICE_NAME),
        head("Project", run.project.name),
        head("Status", f"{_WORDS[state]}{requested}"),
        *(head("", text) for text in server_message(entitlement)),
    )
    if state in _NEXT:
        run.terminal.hint("", f"Next: {run.try_next(_NEXT[state])}")


command = Verbs("access", "Show or request access to compute.", [show, request_], bare="show")
