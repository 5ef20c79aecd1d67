"""The change that a deploy is about to make. Entry points: `Plan`, `from_flags`, `from_manifest`.

Everything that can be wrong with a request is found while its plan is made; nothing is written here.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.lines import Line
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import cities, edits, manifest
from datum_compute.cli.workload.edits import SpecChange
from datum_compute.cli.workload.writing import check_not_deleting
from datum_compute.kube.meta import Json


class Plan(Struct, frozen=True):
    """A workload and the edit to make; `live` is None when the workload is new.

    `heading` is shown before the changes. `complete` means that the server has no defaults to fill in, so that the
    edited workload can be compared with the live one.
    """

    name: str
    live: Read[Workload] | None
    edit: Callable[[Json], Json]
    heading: Sequence[str | Line]
    complete: bool

    @property
    def before(self) -> Json | None:
        return self.live.body() if self.live is not None else None

    @property
    def after(self) -> Json:
        return self.edit(self.before or WORKLOAD.body(self.name, "default"))


def from_flags(run: Run, name: str, change: SpecChange) -> Plan:
    run.terminal.note(f'Resolving workload "{name}" in project {run.project.name}...')
    live = run.project.find(WORKLOAD, name)
    if live is None:
        if not change.image:
            raise usage("--image is required", f"deploy {name} --image=IMAGE --city=CITY")
        if not change.cities:
            raise usage("--city is required (e.g. --city=DFW,IAD)", "cities")
    else:
        check_not_deleting(live.object)
        _check_editable(run, name, live.body()["spec"], change)
    if change.cities:
        spelled = cities.spelled(change.cities, cities.offered(run.project), used_cities(live), run.project.name)
        change = replace(change, cities=spelled)
    return from_change(name, live, change)


def from_change(name: str, live: Read[Workload] | None, change: SpecChange, heading: Sequence[str | Line] = ()) -> Plan:
    """The plan for a change that was checked: a new workload, or an edit of only what the change names."""

    def edit(body: Json) -> Json:
        spec = edits.new_spec(change) if live is None else edits.edited_spec(body["spec"], change)
        return body | {"spec": spec}

    plan = Plan(name, live, edit, heading, complete=True)
    return plan if heading else replace(plan, heading=_placement_lines(plan.after["spec"]))


def from_manifest(run: Run, body: Json) -> Plan:
    name = str(body["metadata"]["name"])
    live = run.project.find(WORKLOAD, name)
    if live is not None:
        check_not_deleting(live.object)
    heading = _placement_lines(body["spec"]) if live is None else [f'Changes to workload "{name}":']
    return Plan(name, live, manifest.applied(body), heading, complete=False)


def used_cities(live: Read[Workload] | None) -> list[str]:
    placements = live.object.spec.placements if live is not None else ()
    return [code for placement in placements for code in placement.city_codes]


def _placement_lines(spec: Json) -> list[str]:
    return [
        f'  Placement "{placement.get("name")}": {edits.placement_text(placement)}'
        for placement in edits.placements(spec)
    ]


def _check_editable(run: Run, name: str, spec: Json, change: SpecChange) -> None:
    if change.needs_container and not edits.containers(spec):
        raise usage(f'workload "{name}" is a virtual machine; --image, --port and --env are for containers')
    number = len(edits.placements(spec))
    if change.needs_placement and number != 1:
        command = run.try_next("deploy -f workload.yaml")
        raise Failure(
            f'workload "{name}" has {number} placements — edit it with a manifest: {command}',
            Exit.USAGE,
            details=[f"Get one:  {run.try_next(f'workloads describe {name} -o yaml')} > workload.yaml"],
        )
