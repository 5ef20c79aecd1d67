"""Asks for a workload, one thing after the other. Entry point: `from_questions`.

Of a workload that is there already each answer is offered as it is now, so that Enter keeps it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from datum_compute.api.images import is_image
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Failure, usage
from datum_compute.cli.shell.flags import WORKLOAD_NAME, Cities, Port, Replicas, no_image
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.lines import Line, line
from datum_compute.cli.show.results import check_changeable
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import cities, edits
from datum_compute.cli.workload.edits import Asked
from datum_compute.cli.workload.plan import Plan, planned, used_cities
from datum_compute.kube.meta import Json

T = TypeVar("T")

_TRIES = 3


class Ended(Exception):
    """The input ended at a question, which is a no to all of it."""


def from_questions(run: Run) -> Plan:
    """Raises `Ended`, or `Failure` after three answers that make no sense."""
    name = _answer(run, "Workload name", "", lambda text: WORKLOAD_NAME.convert(text, None, None))
    seen = run.project.find(WORKLOAD, name)
    if seen is not None:
        check_changeable(seen.object)
        run.terminal.note(f'Workload "{name}" is there already; Enter keeps what it has.')
    asked = _wishes(run, seen)
    return planned(name, seen, asked, ["", *_summary(name, planned(name, seen, asked).after["spec"])])


def _wishes(run: Run, seen: Read[Workload] | None) -> Asked:
    """What does not apply is not asked: a machine has no image, and several placements have no one number."""
    spec: Json = seen.body()["spec"] if seen is not None else {}
    image = port = min_replicas = None
    where: tuple[str, ...] = ()
    first = next(iter(edits.containers(spec)), {})
    placements = edits.placements(spec)
    has_container, has_place = seen is None or bool(first), seen is None or len(placements) == 1
    if has_container:
        image = _answer(run, "Container image", str(first.get("image") or ""), _image)
    instance_type = _answer(run, "Instance type", _type(spec) or edits.DEFAULT_INSTANCE_TYPE, str)
    if has_place:
        offered = cities.offered(run.project)
        used = used_cities(seen)
        label = f"Cities, separated by commas ({', '.join(offered)})" if offered else "Cities, separated by commas"
        where = _answer(run, label, ", ".join(used), lambda text: _cities(run, text, offered, used))
        settings = placements[0].get("scaleSettings") or {} if placements else {}
        min_replicas = _answer(
            run,
            "Minimum replicas per city",
            str(settings.get("minReplicas") or 1),
            lambda text: Replicas().convert(text, None, None),
        )
    if has_container:
        now = next((one.get("port") for one in first.get("ports") or [] if one.get("name") == "http"), None)
        port = _answer(run, "Port (optional)", str(now or "none"), _port)
    return Asked(image, where, min_replicas, port, instance_type)


def _answer(run: Run, label: str, default: str, understood: Callable[[str], T]) -> T:
    question = f"{label} [{default}]: " if default else f"{label}: "
    problem = ""
    for _ in range(_TRIES):
        typed = run.terminal.ask(question)
        if typed is None:
            raise Ended
        try:
            return understood(typed or default)
        except Failure as failure:
            problem = failure.message
            run.terminal.warn(f"  {problem}")
    raise usage(f"no usable answer in three tries: {problem}")


def _image(text: str) -> str:
    if not text:
        raise usage("name the image to run, for example registry.example/shop:2.1")
    if not is_image(text):
        raise usage(no_image(text))
    return text


def _cities(run: Run, text: str, offered: Sequence[str], used: Sequence[str]) -> tuple[str, ...]:
    return cities.spelled(Cities().convert(text, None, None), offered, used, run.project.name)


def _port(text: str) -> int:
    return 0 if text.lower() == "none" else Port().convert(text, None, None)


def _type(spec: Json) -> str:
    runtime = ((spec.get("template") or {}).get("spec") or {}).get("runtime") or {}
    return str((runtime.get("resources") or {}).get("instanceType") or "")


def _summary(name: str, spec: Json) -> list[str | Line]:
    first = next(iter(edits.containers(spec)), {})
    ports = ", ".join(str(one.get("port")) for one in first.get("ports") or [])
    facts = {
        "Workload": name,
        "Image": str(first.get("image") or "(virtual machine)"),
        "Instance type": _type(spec),
        "Port": ports or "none",
    }
    for one in edits.placements(spec):
        facts[f'Placement "{one.get("name")}"'] = (
            f"cities=[{', '.join(one.get('cityCodes') or [])}], "
            f"min={(one.get('scaleSettings') or {}).get('minReplicas', 1)}"
        )
    width = max(map(len, facts))
    return [line(f"  {label:<{width}}   {value}") for label, value in facts.items()]
