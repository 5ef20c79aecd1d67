"""Asks interactively for a workload. Entry point: `from_questions`.

For an existing workload the current values are the defaults, so that Enter keeps them.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from datum_compute.api.images import is_image
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Failure, usage
from datum_compute.cli.shell.flags import MIN_REPLICAS, WORKLOAD_NAME, Cities, Port, not_an_image
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.lines import Line, line
from datum_compute.cli.talk.project import Read
from datum_compute.cli.workload import cities, edits
from datum_compute.cli.workload.edits import SpecChange
from datum_compute.cli.workload.plan import Plan, from_change, used_cities
from datum_compute.cli.workload.writing import check_not_deleting
from datum_compute.kube.meta import Json

T = TypeVar("T")

_TRIES = 3


class EndOfInput(Exception):
    """The input ended at a question, which counts as a no."""


def from_questions(run: Run) -> Plan:
    """Raises `EndOfInput`, or `Failure` after three invalid answers to a question."""
    name = _answer(run, "Workload name", "", lambda text: WORKLOAD_NAME.convert(text, None, None))
    live = run.project.find(WORKLOAD, name)
    if live is not None:
        check_not_deleting(live.object)
        run.terminal.note(f'Workload "{name}" exists already; Enter keeps its current values.')
    change = _change(run, live)
    spec = from_change(name, live, change).after["spec"]
    return from_change(name, live, change, ["", *_summary(name, spec)])


def _change(run: Run, live: Read[Workload] | None) -> SpecChange:
    """Asks only what applies: a machine has no image, and several placements have no common number of replicas."""
    spec: Json = live.body()["spec"] if live is not None else {}
    image = port = min_replicas = None
    city_codes: tuple[str, ...] = ()
    container = edits.first_container(spec)
    placements = edits.placements(spec)
    has_container, has_placement = live is None or bool(container), live is None or len(placements) == 1
    if has_container:
        image = _answer(run, "Container image", str(container.get("image") or ""), _image)
    instance_type = _answer(run, "Instance type", edits.instance_type(spec) or edits.DEFAULT_INSTANCE_TYPE, str)
    if has_placement:
        offered = cities.offered(run.project)
        used = used_cities(live)
        label = f"Cities, separated by commas ({', '.join(offered)})" if offered else "Cities, separated by commas"
        city_codes = _answer(run, label, ", ".join(used), lambda text: _cities(run, text, offered, used))
        current = (edits.min_replicas(placements[0]) if placements else None) or 1
        min_replicas = _answer(
            run, "Minimum replicas per city", str(current), lambda text: MIN_REPLICAS.convert(text, None, None)
        )
    if has_container:
        ports = {item.get("name"): item.get("port") for item in container.get("ports") or []}
        port = _answer(run, "Port (optional)", str(ports.get("http") or "none"), _port)
    return SpecChange(image, city_codes, min_replicas, port, instance_type)


def _answer(run: Run, label: str, default: str, parse: Callable[[str], T]) -> T:
    question = f"{label} [{default}]: " if default else f"{label}: "
    problem = ""
    for _ in range(_TRIES):
        answer = run.terminal.ask(question)
        if answer is None:
            raise EndOfInput
        try:
            return parse(answer or default)
        except Failure as failure:
            problem = failure.message
            run.terminal.warn(f"  {problem}")
    raise usage(f"no usable answer in three tries: {problem}")


def _image(text: str) -> str:
    if not text:
        raise usage("name the image to run, for example registry.example/shop:2.1")
    if not is_image(text):
        raise usage(not_an_image(text))
    return text


def _cities(run: Run, text: str, offered: Sequence[str], used: Sequence[str]) -> tuple[str, ...]:
    return cities.spelled(Cities().convert(text, None, None), offered, used, run.project.name)


def _port(text: str) -> int:
    return 0 if text.lower() == "none" else Port(optional=True).convert(text, None, None)


def _summary(name: str, spec: Json) -> list[str | Line]:
    container = edits.first_container(spec)
    facts = {
        "Workload": name,
        "Image": str(container.get("image") or "(virtual machine)"),
        "Instance type": edits.instance_type(spec),
        "Port": ", ".join(str(port.get("port")) for port in container.get("ports") or []) or "none",
    }
    for placement in edits.placements(spec):
        facts[f'Placement "{placement.get("name")}"'] = edits.placement_text(placement)
    width = max(map(len, facts))
    return [line(f"  {label:<{width}}   {value}") for label, value in facts.items()]
