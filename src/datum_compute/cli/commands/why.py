"""Why a workload is not as it was requested. Entry point: `command`."""

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

import click
from msgspec import Struct

from datum_compute.answers.advice import advice
from datum_compute.answers.document import document
from datum_compute.answers.seen import Gap
from datum_compute.answers.walk import Verdict
from datum_compute.answers.why import Answer, why
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.failures import Exit, Failure, usage
from datum_compute.cli.shell.flags import Name, option, verb
from datum_compute.cli.shell.habits import INSTANCES, WORKLOADS
from datum_compute.cli.shell.run import Run, project
from datum_compute.cli.show.answers import answer_page, summary_table
from datum_compute.cli.show.lines import hints
from datum_compute.cli.show.views import Page, View
from datum_compute.cli.talk.federations import find_federation
from datum_compute.cli.talk.planes import Federation, Plane
from datum_compute.cli.talk.project import NAMESPACE
from datum_compute.cli.talk.sighting import Reader, base_of
from datum_compute.kube.meta import Json, KubeObject

T = TypeVar("T", bound=KubeObject)

_BADNESS = (
    Verdict.BLOCKED,
    Verdict.STALLED,
    Verdict.DEGRADED,
    Verdict.UNKNOWN,
    Verdict.DELETING,
    Verdict.WAITING,
    Verdict.FINE,
)


class Flags(Struct, frozen=True):
    name: str | None
    federation_kubeconfig: str
    federation_context: str
    cell_context: tuple[str, ...]
    host_context: str
    exit_code: bool


@verb("why", needs=[project], outputs=("table", "wide", "json", "yaml"), flags=Flags)
@click.argument("name", type=Name("workload", (*WORKLOADS, *INSTANCES)), metavar="[WORKLOAD|INSTANCE]", required=False)
@option(
    "--federation-kubeconfig", default="", metavar="FILE", help="Kubeconfig of the hub and the cells, to read more."
)
@option(
    "--federation-context",
    default="",
    metavar="NAME",
    help="Its context for the hub; hub or the current one by default.",
)
@option(
    "--cell-context", multiple=True, metavar="NAME=CONTEXT", help="Its context for a cell, by the name of its Cluster."
)
@option("--host-context", default="", metavar="NAME", help="Its context for the cluster that the manager runs in.")
@option("--exit-code", is_flag=True, help="Exit with 14 unless nothing blocks it.")
def command(run: Run, flags: Flags) -> View | Exit:
    """Say what holds up a workload or an instance, since when, and who can act.

    A request is followed from hop to hop through every server that can be read; the first hop that it did not pass is
    the answer. Without a name, all workloads are listed that are not fine, the worst first.
    """
    federation = find_federation(
        run,
        flags.federation_kubeconfig,
        context=flags.federation_context,
        cells=_pairs(flags.cell_context),
        host=flags.host_context,
    )
    try:
        answers, view = _one(run, flags.name, federation) if flags.name else _all(run)
    finally:
        if federation is not None:
            federation.close()
    if not flags.exit_code:
        return view
    run.show(view)
    return Exit.OK if all(answer.verdict is Verdict.FINE for answer in answers) else Exit.NOT_FINE


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, context = text.partition("=")
        if not (name and equals and context):
            raise usage(f'--cell-context: "{text}" is not NAME=CONTEXT')
        pairs[name] = context
    return pairs


def _one(run: Run, name: str, federation: Federation | None) -> tuple[list[Answer], View]:
    now = run.clock.now().astimezone()
    reader = Reader(run.project, federation, now, has_catalog=run.target.has_catalog)
    read, instance = reader.workload_of(name)
    seen = reader.read(read, instance)
    if seen.deployments is Gap.DENIED and seen.instances is Gap.DENIED:
        raise Failure(
            f"you may not read deployments and instances in project {run.project.name}, so the cause cannot be found",
            Exit.NOT_ALLOWED,
        )
    answer = why(seen, now, instance)
    workload = read.object.name
    found = advice(answer, workload, operator=seen.operator)
    ask = _ask(run, workload)
    page = answer_page(run, answer, found, ask, now)
    return [answer], View(
        lambda _now: page, document(answer, found, now, program=run.program, ask="" if seen.operator else ask)
    )


def _ask(run: Run, workload: str) -> str:
    """The command that an operator would type."""
    return f"{run.program} why {workload} --project={run.project.name} --federation-kubeconfig=FILE"


def _all(run: Run) -> tuple[list[Answer], View]:
    """Every workload, with three calls in all."""
    now = run.clock.now().astimezone()
    workloads = run.project.list(WORKLOAD)
    plane = Plane(run.project.transport)
    deployments, instances = plane.list(WORKLOAD_DEPLOYMENT, NAMESPACE), plane.list(INSTANCE, NAMESPACE)
    answers = [
        why(base_of(run.project, read, _of(deployments, uid), _of(instances, uid)), now)
        for read in workloads.found
        for uid in [read.object.metadata.uid]
    ]
    troubled = sorted(
        (answer for answer in answers if answer.verdict is not Verdict.FINE),
        key=lambda answer: (_BADNESS.index(answer.verdict), answer.name),
    )
    return answers, View(
        lambda _now: _page(run, answers, troubled), [_document(run, answer, now) for answer in troubled]
    )


def _of(found: tuple[T, ...] | Gap, uid: str) -> list[T] | Gap:
    """Those that belong to a workload."""
    if isinstance(found, Gap):
        return found
    return [item for item in found if item.metadata.labels.get(WORKLOAD_UID) == uid]


def _page(run: Run, answers: Sequence[Answer], troubled: Sequence[Answer]) -> Page:
    if not answers:
        return Page([f"No workloads found in project {run.project.name}."])
    if not troubled:
        return Page([f"Nothing blocks any workload in project {run.project.name}."])
    closer = run.try_next(f"why {troubled[0].name}")
    return Page([summary_table(troubled)], hints("", f"Look closer: {closer}"))


def _document(run: Run, answer: Answer, now: datetime) -> Json:
    return document(answer, advice(answer, answer.name), now, program=run.program, ask=_ask(run, answer.name))
