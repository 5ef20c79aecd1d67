"""What a project has that can be named on a command line. Entry points: `connected` and one function a kind."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from msgspec.structs import replace

from datum_compute.answers.health import judge
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.instance_types import CATALOG
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.habits import WORKLOADS, without_type
from datum_compute.cli.shell.run import Run, Settings
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.specs import image, short_image
from datum_compute.cli.talk.project import Project
from datum_compute.cli.talk.target import kubeconfig_files
from datum_compute.cli.workload.history import CURRENT, name_of
from datum_compute.cli.workload.revisions import Revisions
from datum_compute.kube.access.kubeconfig import Kubeconfig
from datum_compute.kube.kinds import CONFIG_MAP

Offer = tuple[str, str]
"""A word, and what it stands for."""


@contextmanager
def connected(environment: Environment, seconds: float, where: Mapping[str, str]) -> Iterator[Project]:
    """The project of the environment, or the one that flags name, without the question whether it may use compute."""
    settings = replace(Settings(quiet=True, request_timeout=seconds), **where)
    with Run(environment, settings, "table") as run:
        run.connect()
        yield run.project


def workloads(project: Project) -> Iterator[Offer]:
    for one in sorted(project.list(WORKLOAD).items, key=lambda one: one.name):
        yield one.name, short_image(image(one.spec.template.spec, "(vm)"))


def instances(project: Project) -> Iterator[Offer]:
    for one in sorted(project.list(INSTANCE).items, key=lambda one: one.name):
        yield one.name, judge(one).status


def cities(project: Project) -> Iterator[Offer]:
    """Those that are offered; where nobody says, those that are in use."""
    bindings = project.list_served(LOCATION_BINDING)
    names = (
        {one.spec.topology.get(TOPOLOGY_CITY, ""): one.spec.display_name for one in bindings.items} if bindings else {}
    )
    if not names:
        names = {one.spec.city_code: "" for one in project.list(WORKLOAD_DEPLOYMENT).items}
    yield from sorted((code, name) for code, name in names.items() if code)


def instance_types() -> Iterator[Offer]:
    for one in CATALOG.values():
        yield one.name, f"{one.millicores / 1000:g} vCPU, {one.mebibytes / 1024:g} GiB"


def contexts(kubeconfig: str, environ: Mapping[str, str]) -> list[str]:
    """Those of the kubeconfig that is named, or that would be used."""
    return sorted(Kubeconfig.read(kubeconfig_files(kubeconfig, environ)).contexts)


def placements(project: Project, words: tuple[str, ...]) -> Iterator[Offer]:
    """Of the workload that the words name."""
    found = project.find(WORKLOAD, without_type(words[0], WORKLOADS)) if words else None
    for one in found.object.spec.placements if found is not None else ():
        yield one.name, ", ".join(one.city_codes)


def revisions(project: Project, words: tuple[str, ...], now: datetime) -> Iterator[Offer]:
    """Of the workload that the words name; newest first."""
    found = project.find(CONFIG_MAP, name_of(without_type(words[0], WORKLOADS))) if words else None
    if found is None:
        return
    known = Revisions.of(found.object.data, found.object.metadata.annotations.get(CURRENT, ""))
    for entry in reversed(known.entries):
        yield str(entry.rev), f"{short_image(entry.image)}, {age(entry.time, now)} ago"
