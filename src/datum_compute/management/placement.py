"""Which deployments a workload asks for. Entry point: `wanted`."""

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
    """One deployment of a workload. An existing one keeps its name for its lifetime."""

    name: str
    placement: str
    city: str
    spec_json: Raw
    existing: WorkloadDeployment | None
    held: bool = False  # its template is older than the workload's, because the rollout is paused


def offered_cities(topologies: Iterable[Mapping[str, str]]) -> list[str]:
    """The cities of the locations with these topologies."""
    return sorted({topology[TOPOLOGY_CITY] for topology in topologies if topology.get(TOPOLOGY_CITY)})


def is_paused(workload: Workload) -> bool:
    return workload.metadata.annotations.get(ROLLOUT_PAUSED) == "true"


def networks(workload: Workload) -> list[str]:
    """The networks that the template names; they are those of the workload's own namespace."""
    return sorted({interface.network.name for interface in workload.spec.template.spec.network_interfaces})


def wanted(workload: Workload, existing: Collection[WorkloadDeployment]) -> list[Wanted]:
    """One entry for each placement and city of the spec, in its order; a pair named twice counts once."""
    # Of two for one place the older stays, because it is the one that serves.
    by_age = sorted(existing, key=_created, reverse=True)
    by_place = {(found.spec.placement_name, found.spec.city_code): found for found in by_age}
    uid, restarts = workload.metadata.uid, city_restarts(workload.metadata.annotations)
    entries: dict[tuple[str, str], Wanted] = {}
    for placement in workload.spec.placements:
        for city in placement.city_codes:
            found = by_place.get((placement.name, city))
            name = found.name if found else deployment_name(workload.name, uid, placement.name, city)
            template: Raw | Json = _template(workload, found, restarts.get(city))
            held = False
            if found is not None and is_paused(workload):
                held = not same_json(found.template_json, encode(template))
                template = found.template_json
            spec = {
                "workloadRef": {"name": workload.name, "uid": uid},
                "placementName": placement.name,
                "cityCode": city,
                "template": template,
                "scaleSettings": placement.scale_settings_json,
            }
            entries[placement.name, city] = Wanted(name, placement.name, city, Raw(encode(spec)), found, held)
    return list(entries.values())


def _created(deployment: WorkloadDeployment) -> tuple[datetime, str]:
    return deployment.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), deployment.name


def _template(workload: Workload, existing: WorkloadDeployment | None, of_city: str | None) -> Raw | Json:
    """The workload's template, with the newest restart of the workload, the city and the deployment itself (R14)."""
    asked = workload.spec.template.metadata.annotations.get(RESTARTED_AT)
    own = existing.spec.template.metadata.annotations.get(RESTARTED_AT) if existing else None
    latest = newest(asked, own, of_city)
    if latest is None or latest == asked:
        return workload.template_json
    template = as_dict(workload.template_json)
    metadata = template.get("metadata") or {}
    annotations = (metadata.get("annotations") or {}) | {RESTARTED_AT: latest}
    return template | {"metadata": metadata | {"annotations": annotations}}
