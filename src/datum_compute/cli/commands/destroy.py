"""Deletes a workload and everything it caused. Entry point: `command`."""

from collections.abc import Sequence
from typing import TypeVar

from datum_compute.answers.remains import Remains
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.quota import RESOURCE_CLAIM, ResourceClaim
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import Duration, option, workload_argument
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.durations import compact
from datum_compute.cli.show.lines import Line, Table
from datum_compute.cli.talk.entitlement import active_entitlement
from datum_compute.cli.workload import history
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import KubeObject

T = TypeVar("T", bound=KubeObject)

_LOOK_SECONDS = 1.0


@verb("destroy", needs=[project, active_entitlement], outputs=("table", "name"))
@workload_argument
@option("-y", "--yes", is_flag=True, help="Do not ask.")
@option("--wait/--no-wait", default=False, help="Return only when every instance has stopped.")
@option("--timeout", type=Duration(), default=600.0, metavar="DURATION", help="Longest wait; 10m unless given.")
def command(run: Run, workload: str, yes: bool, wait: bool, timeout: float) -> None:
    """Delete a workload and all its instances, in every city."""
    seen = run.project.get(WORKLOAD, workload).object
    remains = _remains(run, seen) if wait else None
    if seen.metadata.deleting:
        run.terminal.show(f"workload/{workload} is already being deleted.")
    else:
        run.terminal.note(*_facts(seen))
        if not yes and not _confirmed(run, workload):
            run.terminal.show("Aborted.")
            return
        run.project.delete(WORKLOAD, workload, seen.metadata.uid)
        run.terminal.show(f"workload/{workload} deleted.")
    history.forget(run.project, workload)
    if run.output == "name":
        run.terminal.name(f"workload/{workload}")
    if remains is not None:
        _until_stopped(run, seen, remains, timeout)


def _facts(workload: Workload) -> list[str | Line | Table]:
    placements = workload.spec.placements
    cities = sorted({city for placement in placements for city in placement.city_codes})
    replicas = sum(one.scale_settings.min_replicas for one in placements)
    return [
        f"{'Workload:':<14} {workload.name}",
        f"{'Placements:':<14} {', '.join(one.name for one in placements) or '(none)'}",
        f"{'Cities:':<14} {', '.join(cities) or '(none)'}",
        f"{'Min replicas:':<14} {replicas}",
    ]


def _confirmed(run: Run, workload: str) -> bool:
    if not run.terminal.asks:
        raise usage(f'deleting workload "{workload}" has to be confirmed: pass -y to confirm', f"destroy {workload} -y")
    question = "This will delete workload and all its instances. Continue? (y/N): "
    return run.terminal.confirm(question, default=False)


def _remains(run: Run, workload: Workload) -> Remains:
    uid = workload.metadata.uid
    of_workload = f"{WORKLOAD_UID}={uid}"
    remains = Remains(uid, _seen(run, WORKLOAD_DEPLOYMENT, of_workload), _seen(run, INSTANCE, of_workload))
    remains.note(_claims(run))
    return remains


def _claims(run: Run) -> Sequence[ResourceClaim]:
    return _seen(run, RESOURCE_CLAIM)


def _seen(run: Run, kind: Kind[T], selector: str = "") -> Sequence[T]:
    """Nothing where it is not served, or not to be seen."""
    listing = run.project.list_served(kind, selector)
    return listing.items if listing is not None else ()


def _until_stopped(run: Run, workload: Workload, remains: Remains, timeout: float) -> None:
    name = workload.name
    deadline = run.clock.monotonic() + timeout
    is_gone, told = False, False
    while True:
        found = run.project.find(WORKLOAD, name)
        claims = _claims(run)
        if found is None or found.object.metadata.uid == workload.metadata.uid:
            remains.note(claims)  # its sites may not have heard of the deletion yet
        is_gone = found is None or found.object.metadata.uid != workload.metadata.uid
        left = remains.left(claims)
        if is_gone and not left:
            break
        if is_gone and not told:
            run.terminal.note(f"workload/{name} is deleted; waiting for {_cities(left)} to stop {_count(left)}.")
            told = True
        if timeout and run.clock.monotonic() >= deadline:
            raise _late(workload, left, compact(timeout), is_gone=is_gone)
        run.clock.sleep(_LOOK_SECONDS)
    run.terminal.show(f"workload/{name} is gone.")
    if not remains.are_known:
        run.terminal.note("Its sites may still be stopping: no quota claim tells when its instances have stopped.")


def _late(workload: Workload, left: Sequence[str], after: str, *, is_gone: bool) -> Failure:
    name = workload.name
    if not is_gone:
        details = [f"Not stopped yet: {_count(left)} in {_cities(left)}."] if left else []
        sentence = f"workload/{name} is still being deleted after {after}; it goes on by itself"
        return Failure(sentence, Exit.TIMED_OUT, details=details, next_command=f"instances --workload={name}")
    sentence = f"workload/{name} is deleted, but {_cities(left)} did not stop {_count(left)} within {after}"
    return Failure(f"{sentence}; it goes on by itself", Exit.TIMED_OUT, next_command="quota")


def _count(left: Sequence[str]) -> str:
    return f"{len(left)} {'instance' if len(left) == 1 else 'instances'}"


def _cities(left: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(city or "an unknown city" for city in left))
