"""Deletes a workload. Entry point: `command`."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from datum_compute.answers.remains import Remains
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.quota import RESOURCE_CLAIM, ResourceClaim
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import Duration, option, verb, workload_argument, yes_option
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.durations import compact
from datum_compute.cli.show.views import Page, object_view
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.project import of_workload
from datum_compute.cli.workload import history
from datum_compute.cli.workload.writing import ABORTED
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

_POLL_SECONDS = 1.0


class DestroyFlags(Struct, frozen=True):
    workload: str
    yes: bool
    wait: bool
    timeout: float


@verb("destroy", needs=ENTITLED_PROJECT, outputs=("table", "name"), flags=DestroyFlags)
@workload_argument
@yes_option
@option("--wait/--no-wait", default=False, help="Wait until every instance has stopped.")
@option("--timeout", type=Duration(), default=600.0, metavar="DURATION", help="Longest time to wait; 10m by default.")
def command(run: Run, flags: DestroyFlags) -> None:
    """Delete a workload and all its instances, in every city."""
    name = flags.workload
    read = run.project.get(WORKLOAD, name)
    workload = read.object
    remains = _remains(run, workload) if flags.wait else None
    if workload.metadata.deleting:
        run.terminal.show(f"workload/{name} is already being deleted.")
    else:
        run.terminal.note(*_summary(workload))
        if not flags.yes and not _is_confirmed(run, name):
            run.terminal.show(ABORTED)
            return
        run.project.delete(WORKLOAD, name, workload.metadata.uid)
        run.terminal.show(f"workload/{name} deleted.")
        if not flags.wait:
            run.terminal.hint(
                "Its sites may still be stopping its instances; quota counts them until then.",
                f"Run '{run.try_next('quota')}' to see what is counted.",
            )
    history.delete(run.project, name)
    run.show(object_view(WORKLOAD, read, lambda _now: Page(())))
    if remains is not None:
        _wait_until_stopped(run, workload, remains, flags.timeout)


def _summary(workload: Workload) -> list[str]:
    placements = workload.spec.placements
    cities = sorted({city for placement in placements for city in placement.city_codes})
    replicas = sum(placement.scale_settings.min_replicas for placement in placements)
    return [
        f"{'Workload:':<14} {workload.name}",
        f"{'Placements:':<14} {', '.join(placement.name for placement in placements) or '(none)'}",
        f"{'Cities:':<14} {', '.join(cities) or '(none)'}",
        f"{'Min replicas:':<14} {replicas}",
    ]


def _is_confirmed(run: Run, workload: str) -> bool:
    if not run.terminal.asks:
        raise usage(f'deleting workload "{workload}" has to be confirmed: pass -y to confirm', f"destroy {workload} -y")
    question = "This will delete workload and all its instances. Continue? (y/N): "
    return run.terminal.confirm(question, default=False)


def _remains(run: Run, workload: Workload) -> Remains:
    selector = of_workload(workload)
    remains = Remains(workload.metadata.uid, _list(run, WORKLOAD_DEPLOYMENT, selector), _list(run, INSTANCE, selector))
    remains.note(_claims(run))
    return remains


def _claims(run: Run) -> Sequence[ResourceClaim]:
    return _list(run, RESOURCE_CLAIM)


def _list(run: Run, kind: Kind[T], selector: str = "") -> Sequence[T]:
    """Nothing if the kind is not served, or may not be read."""
    listing = run.project.list_served(kind, selector)
    return listing.items if listing is not None else ()


def _wait_until_stopped(run: Run, workload: Workload, remains: Remains, timeout: float) -> None:
    name = workload.name
    deadline = run.clock.monotonic() + timeout
    is_reported = False
    while True:
        current = run.project.find(WORKLOAD, name)
        claims = _claims(run)
        is_gone = current is None or current.object.metadata.uid != workload.metadata.uid
        if current is None or not is_gone:
            remains.note(claims)  # its sites may not know of the deletion yet
        left = remains.left(claims)
        if is_gone and not left:
            break
        if is_gone and not is_reported:
            run.terminal.note(f"workload/{name} is deleted; waiting for {_cities(left)} to stop {_count(left)}.")
            is_reported = True
        if timeout and run.clock.monotonic() >= deadline:
            raise _timed_out(name, left, compact(timeout), is_gone=is_gone)
        run.clock.sleep(_POLL_SECONDS)
    run.terminal.show(f"workload/{name} is gone.")
    if not remains.are_known:
        run.terminal.note("Its sites may still be stopping: no quota claim shows when its instances have stopped.")


def _timed_out(name: str, left: Sequence[str], after: str, *, is_gone: bool) -> Failure:
    if not is_gone:
        details = [f"Not stopped yet: {_count(left)} in {_cities(left)}."] if left else []
        sentence = f"workload/{name} is still being deleted after {after}; the deletion continues"
        return Failure(sentence, Exit.TIMED_OUT, details=details, next_command=f"instances --workload={name}")
    sentence = f"workload/{name} is deleted, but {_cities(left)} did not stop {_count(left)} within {after}"
    return Failure(f"{sentence}; the deletion continues", Exit.TIMED_OUT, next_command="quota")


def _count(left: Sequence[str]) -> str:
    return f"{len(left)} {'instance' if len(left) == 1 else 'instances'}"


def _cities(left: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(city or "an unknown city" for city in left))
