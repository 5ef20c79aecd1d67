"""Names that completion offers. Entry points: `connected` and one function per kind of name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from datum_compute.answers.health import instance_health
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.instance_types import CATALOG
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.habits import INSTANCES, WORKLOADS, without_type
from datum_compute.cli.shell.run import Run, Settings
from datum_compute.cli.show.durations import age
from datum_compute.cli.show.log_entries import short_name
from datum_compute.cli.show.specs import container_names, image, short_image
from datum_compute.cli.talk.project import Project
from datum_compute.cli.talk.target import kubeconfig_files
from datum_compute.cli.workload.history import CURRENT, name_of
from datum_compute.cli.workload.revisions import Revisions
from datum_compute.kube.access.kubeconfig import Kubeconfig
from datum_compute.kube.kinds import CONFIG_MAP

Candidate = tuple[str, str]
"""A name and its description."""


@contextmanager
def connected(environment: Environment, seconds: float, flags: Mapping[str, str]) -> Iterator[Project]:
    """The project that flags or the environment choose, without checking its access to compute."""
    settings = replace(Settings(quiet=True, request_timeout=seconds), **flags)
    with Run(environment, settings, "table") as run:
        run.connect()
        yield run.project


def workloads(project: Project) -> Iterator[Candidate]:
    for workload in sorted(project.list(WORKLOAD).items, key=lambda workload: workload.name):
        yield workload.name, short_image(image(workload.spec.template.spec, "(vm)"))


def instances(project: Project) -> Iterator[Candidate]:
    for instance in sorted(project.list(INSTANCE).items, key=lambda instance: instance.name):
        yield instance.name, instance_health(instance).status


def cities(project: Project) -> Iterator[Candidate]:
    """Cities that are offered or, if that is not known, in use."""
    bindings = project.list_served(LOCATION_BINDING)
    specs = [binding.spec for binding in bindings.items] if bindings else []
    names = {spec.topology.get(TOPOLOGY_CITY, ""): spec.display_name for spec in specs}
    if not names:
        names = {deployment.spec.city_code: "" for deployment in project.list(WORKLOAD_DEPLOYMENT).items}
    yield from sorted((code, name) for code, name in names.items() if code)


def instance_types() -> Iterator[Candidate]:
    for type_ in CATALOG.values():
        yield type_.name, f"{type_.millicores / 1000:g} vCPU, {type_.mebibytes / 1024:g} GiB"


def contexts(kubeconfig: str, environ: Mapping[str, str]) -> list[str]:
    """Contexts of the kubeconfig that a flag names, or that would be used without it."""
    return sorted(Kubeconfig.read(kubeconfig_files(kubeconfig, environ)).contexts)


def backups(directory: str, now: datetime) -> Iterator[Candidate]:
    """Backups of the local federation in a directory, by default that of all `local` verbs, newest first."""
    from datum_compute.local.backups import backups
    from datum_compute.local.state import default_directory

    for backup in backups(Path(directory) if directory else default_directory()):
        yield backup.name, f"{'made by a restore' if backup.replaced else 'backup'}, {age(backup.taken, now)} ago"


def placements(project: Project, words: tuple[str, ...]) -> Iterator[Candidate]:
    """Placements of the workload that the words name."""
    workload = project.find(WORKLOAD, without_type(words[0], WORKLOADS)) if words else None
    for placement in workload.object.spec.placements if workload is not None else ():
        yield placement.name, ", ".join(placement.city_codes)


def short_names(project: Project, words: tuple[str, ...]) -> Iterator[Candidate]:
    """Instances of the workload that the words name, without its name."""
    name = without_type(words[0], WORKLOADS) if words else ""
    for instance, status in instances(project):
        if name and instance.startswith(f"{name}-"):
            yield short_name(name, instance), status


def containers(project: Project, words: tuple[str, ...]) -> Iterator[Candidate]:
    """Containers of the workload that the words name."""
    workload = project.find(WORKLOAD, without_type(words[0], WORKLOADS)) if words else None
    if workload is not None:
        yield from ((name, "") for name in container_names(workload.object.spec.template.spec))


def containers_of_instance(project: Project, words: tuple[str, ...]) -> Iterator[Candidate]:
    """Containers of the instance that the words name."""
    instance = project.find(INSTANCE, without_type(words[0], INSTANCES)) if words else None
    if instance is not None:
        yield from ((name, "") for name in container_names(instance.object.spec))


def revisions(project: Project, words: tuple[str, ...], now: datetime) -> Iterator[Candidate]:
    """Revisions of the workload that the words name, newest first."""
    config_map = project.find(CONFIG_MAP, name_of(without_type(words[0], WORKLOADS))) if words else None
    if config_map is None:
        return
    stored = config_map.object
    for entry in reversed(Revisions.of(stored.data, stored.metadata.annotations.get(CURRENT, "")).entries):
        yield str(entry.rev), f"{short_image(entry.image)}, {age(entry.time, now)} ago"
