"""Whether the project may use compute, and requests for access. Entry point: `command`."""

import math
from datetime import datetime

from msgspec import Struct

from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_NAME, ServiceEntitlement
from datum_compute.cli.shell.failures import Exit, Failure, NotYet
from datum_compute.cli.shell.flags import Duration, option, verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.shell.tree import Verbs
from datum_compute.cli.show.durations import age, compact
from datum_compute.cli.show.fragments import labelled_line
from datum_compute.cli.show.lines import hints
from datum_compute.cli.show.views import Page, View
from datum_compute.cli.talk.entitlement import (
    WAIT_SECONDS,
    Access,
    access,
    read,
    refusal,
    request,
    server_message,
    unavailable,
    wait_for_answer,
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
_RETRY_SECONDS = 1.0
_POLL_SECONDS = 2.0


@verb("show", needs=[project], outputs=("table", "json", "yaml"))
def show(run: Run) -> View:
    """Show whether the project may use compute; exits with 0 in any case."""
    try:
        entitlement = read(run)
    except Failure as failure:
        if not isinstance(failure.__cause__, NotFound):
            raise
        return _view(run, None, Access.NO_CATALOG)
    return _view(run, entitlement, access(entitlement))


class RequestFlags(Struct, frozen=True):
    message: str
    renew: bool
    wait: bool
    timeout: float


@verb("request", needs=[project], outputs=("table", "json", "yaml"), flags=RequestFlags)
@option("--message", default="", metavar="TEXT", help="Message to whoever approves it; at most 1024 characters.")
@option("--renew", is_flag=True, help="Ask again after a request was denied or access was revoked.")
@option("--wait/--no-wait", default=False, help="Wait until the request is decided.")
@option("--timeout", type=Duration(), default=1800.0, metavar="DURATION", help="Longest time to wait; 30m by default.")
def request_(run: Run, flags: RequestFlags) -> View:
    """Request access to compute for the project.

    A request that was made before is not made again.
    """
    deadline = run.clock.monotonic() + (flags.timeout if flags.wait and flags.timeout else math.inf)
    entitlement = _existing(run)
    if entitlement is None:
        run.terminal.aside(f'Requesting access to compute for project "{run.project.name}"...')
        entitlement = request(run, flags.message)
    elif access(entitlement) in (Access.DENIED, Access.REVOKED):
        entitlement = _renew(run, entitlement, flags, deadline)
    if flags.wait:
        entitlement = _wait_for_decision(run, entitlement, deadline)
    else:
        entitlement = wait_for_answer(run, entitlement, WAIT_SECONDS)
    state = access(entitlement)
    if state is Access.UNAVAILABLE:
        raise unavailable()
    if state in (Access.DENIED, Access.REVOKED):
        raise refusal(run, entitlement)
    return _view(run, entitlement, state)


def _existing(run: Run) -> ServiceEntitlement | None:
    try:
        return read(run)
    except Failure as failure:
        if isinstance(failure.__cause__, NotFound):
            raise unavailable() from None
        raise


def _renew(run: Run, entitlement: ServiceEntitlement, flags: RequestFlags, deadline: float) -> ServiceEntitlement:
    """Withdraws the old request and makes a new one, which is possible only once the old one is deleted."""
    if not flags.renew:
        raise refusal(run, entitlement)
    if run.terminal.asks and not run.terminal.confirm("Withdraw the old request and ask again? [y/N]: ", default=False):
        raise NotYet("No request was made.", Exit.DECLINED, next_command="access request --renew")
    run.project.delete(SERVICE_ENTITLEMENT, entitlement.name, entitlement.metadata.uid)
    started = run.clock.monotonic()
    deadline = min(deadline, started + WAIT_SECONDS)
    while True:
        new = request(run, flags.message)
        if new is not None and new.metadata.uid != entitlement.metadata.uid:
            return new
        now = run.clock.monotonic()
        if now >= deadline:
            raise Failure(
                f"the old request is still being withdrawn after {compact(now - started)}; try again",
                Exit.PENDING,
                next_command="access request --renew",
            )
        run.clock.sleep(min(deadline - now, _RETRY_SECONDS))


def _wait_for_decision(run: Run, entitlement: ServiceEntitlement | None, deadline: float) -> ServiceEntitlement | None:
    while access(entitlement) in (Access.PROCESSING, Access.PENDING_APPROVAL):
        left = deadline - run.clock.monotonic()
        if left <= 0:
            raise refusal(run, entitlement)
        run.clock.sleep(min(left, _POLL_SECONDS))
        entitlement = read(run)
    return entitlement


def _view(run: Run, entitlement: ServiceEntitlement | None, state: Access) -> View:
    def page(now: datetime) -> Page:
        since = age(entitlement.metadata.creation_timestamp, now) if entitlement else ""
        requested = f" (requested {since} ago)" if since else ""
        content = [
            labelled_line("Service", SERVICE_NAME),
            labelled_line("Project", run.project.name),
            labelled_line("Status", f"{_WORDS[state]}{requested}"),
            *(labelled_line("", text) for text in server_message(entitlement)),
        ]
        return Page(content, hints("", f"Next: {run.try_next(_NEXT[state])}") if state in _NEXT else ())

    document = {
        "service": SERVICE_NAME,
        "project": run.project.name,
        "state": state.value,
        "entitlement": entitlement.name if entitlement else None,
    }
    return View(page, document)


command = Verbs("access", "Show or request access to compute.", [show, request_], bare="show")
