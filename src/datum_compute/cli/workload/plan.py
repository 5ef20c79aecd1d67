"""What a deploy is about to write, whichever way it was asked for. Entry points: `Plan`, `from_flags`, `from_manifest`.

Everything that can be wrong with a request is found while its plan is made; nothing is written here.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.lines import Line
from datum_compute.cli.show.results import check_changeable
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import cities, edits, manifest
from datum_compute.cli.workload.edits import Asked
from datum_compute.kube.meta import Json


class Plan(Struct, frozen=True):
    """A workload and the edit that makes of it what is wanted; `seen` is the live one, None when it is new.

    `heading` is told before the changes are. `complete`: the edit leaves nothing for the server to fill in, so that it
    can be compared with the live workload as it is.
    """

    name: str
    seen: Read[Workload] | None
    edit: Callable[[Json], Json]
    heading: Sequence[str | Line]
    complete: bool

    @property
    def before(self) -> Json | None:
        return self.seen.body() if self.seen is not None else None

    @property
    def after(self) -> Json:
        return self.edit(self.before or WORKLOAD.body(self.name, "default"))


def from_flags(run: Run, name: str, asked: Asked) -> Plan:
    run.terminal.note(f'Resolving workload "{name}" in project {run.project.name}...')
    seen = run.project.find(WORKLOAD, name)
    if seen is None:
        if not asked.image:
            raise usage("--image is required", f"deploy {name} --image=IMAGE --city=CITY")
        if not asked.cities:
            raise usage("--city is required (e.g. --city=DFW,IAD)", "cities")
    else:
        check_changeable(seen.object)
        _check_editable(run, name, seen.body()["spec"], asked)
    if asked.cities:
        used = used_cities(seen)
        spelled = cities.spelled(asked.cities, cities.offered(run.project), used, run.project.name)
        asked = replace(asked, cities=spelled)
    return planned(name, seen, asked)


def planned(name: str, seen: Read[Workload] | None, asked: Asked, heading: Sequence[str | Line] = ()) -> Plan:
    """The plan for checked wishes: a new workload, or only what they name of a live one."""

    def edit(body: Json) -> Json:
        spec = edits.new_spec(asked) if seen is None else edits.edited_spec(body["spec"], asked)
        return body | {"spec": spec}

    plan = Plan(name, seen, edit, heading, complete=True)
    return plan if heading else replace(plan, heading=placement_lines(plan.after["spec"]))


def from_manifest(run: Run, wanted: Json) -> Plan:
    name = str(wanted["metadata"]["name"])
    seen = run.project.find(WORKLOAD, name)
    if seen is not None:
        check_changeable(seen.object)
    heading = placement_lines(wanted["spec"]) if seen is None else [f'Changes to workload "{name}":']
    return Plan(name, seen, manifest.applied(wanted), heading, complete=False)


def used_cities(seen: Read[Workload] | None) -> list[str]:
    placements = seen.object.spec.placements if seen is not None else ()
    return [code for placement in placements for code in placement.city_codes]


def placement_lines(spec: Json) -> list[str]:
    return [
        f'  Placement "{one.get("name")}": cities=[{", ".join(one.get("cityCodes") or [])}], '
        f"min={(one.get('scaleSettings') or {}).get('minReplicas', 1)}"
        for one in edits.placements(spec)
    ]


def _check_editable(run: Run, name: str, spec: Json, asked: Asked) -> None:
    if asked.needs_container and not edits.containers(spec):
        raise usage(f'workload "{name}" is a virtual machine; --image, --port and --env are for containers')
    number = len(edits.placements(spec))
    if asked.needs_placement and number != 1:
        command = run.try_next("deploy -f workload.yaml")
        raise Failure(
            f'workload "{name}" has {number} placements — edit it with a manifest: {command}',
            Exit.USAGE,
            details=[f"Get one:  {run.try_next(f'workloads describe {name} -o yaml')} > workload.yaml"],
        )
