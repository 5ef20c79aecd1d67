"""Which deployments a workload should have. Entry point: `wanted`."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from msgspec import Raw, Struct

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.labels import RESTARTED_AT, ROLLOUT_PAUSED, TOPOLOGY_CITY
from datum_compute.api.names import deployment_name
from datum_compute.api.restarts import city_restarts, newest
from datum_compute.api.workload import Workload
from datum_compute.kube.meta import Json, as_dict, encode, same_json


class Wanted(Struct, frozen=True):
    """One deployment that a workload should have. An existing one keeps its name."""

    name: str
    placement: str
    city: str
    spec_json: Raw
    existing: WorkloadDeployment | None
    held: bool = False  # its template is older than the workload's, because the rollout is paused


def offered_cities(topologies: Iterable[Mapping[str, str]]) -> list[str]:
    """The cities named by these location topologies, sorted."""
    return sorted({topology[TOPOLOGY_CITY] for topology in topologies if topology.get(TOPOLOGY_CITY)})


def is_paused(workload: Workload) -> bool:
    return workload.metadata.annotations.get(ROLLOUT_PAUSED) == "true"


def networks(workload: Workload) -> list[str]:
    """The networks that the template names, all in the workload's own namespace."""
    return sorted({interface.network.name for interface in workload.spec.template.spec.network_interfaces})


def wanted(workload: Workload, existing: Collection[WorkloadDeployment]) -> list[Wanted]:
    """One entry per placement and city of the spec, in its order; a pair that is named twice counts once."""
    # Of two deployments for one place the older wins, because it is the one that serves.
    newest_first = sorted(existing, key=_created, reverse=True)
    by_place = {(current.spec.placement_name, current.spec.city_code): current for current in newest_first}
    uid, restarts = workload.metadata.uid, city_restarts(workload.metadata.annotations)
    entries: dict[tuple[str, str], Wanted] = {}
    for placement in workload.spec.placements:
        for city in placement.city_codes:
            current = by_place.get((placement.name, city))
            name = current.name if current else deployment_name(workload.name, uid, placement.name, city)
            template: Raw | Json = _template(workload, current, restarts.get(city))
            held = False
            if current is not None and is_paused(workload):
                held = not same_json(current.template_json, encode(template))
                template = current.template_json
            spec = {
                "workloadRef": {"name": workload.name, "uid": uid},
                "placementName": placement.name,
                "cityCode": city,
                "template": template,
                "scaleSettings": placement.scale_settings_json,
            }
            entries[placement.name, city] = Wanted(name, placement.name, city, Raw(encode(spec)), current, held)
    return list(entries.values())


def _created(deployment: WorkloadDeployment) -> tuple[datetime, str]:
    return deployment.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), deployment.name


def _template(workload: Workload, existing: WorkloadDeployment | None, city_restart: str | None) -> Raw | Json:
    """The workload's template, with the newest restart of the workload, the city and the deployment itself.

    A restart of one city must survive the next change of the workload.
    """
    requested = workload.spec.template.metadata.annotations.get(RESTARTED_AT)
    own = existing.spec.template.metadata.annotations.get(RESTARTED_AT) if existing else None
    latest = newest(requested, own, city_restart)
    if latest is None or latest == requested:
        return workload.template_json
    template = as_dict(workload.template_json)
    metadata = template.get("metadata") or {}
    annotations = (metadata.get("annotations") or {}) | {RESTARTED_AT: latest}
    return template | {"metadata": metadata | {"annotations": annotations}}
