"""Brings the stored state in line with the cities and limits that were chosen. Entry points: `settle`, `keep`.

The settings are stored in the federation itself, so that a backup brings them back with everything else.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from shlex import quote

import msgspec

from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING, LocationBinding
from datum_compute.api.quota import QUOTA_NAMESPACE, RESOURCE_GRANT
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.engine import Engine
from datum_compute.federation.roles import CELL, HUB, PROJECT, ROOT
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, NotFound
from datum_compute.kube.kinds import CONFIG_MAP, NAMESPACE
from datum_compute.kube.meta import as_dict
from datum_compute.local.federation import HUB_PLANE, ROOT_PLANE
from datum_compute.local.settings import DEFAULT_CITIES, Settings, cell_of
from datum_compute.local.state import LocalError
from datum_compute.platform.grants import DEFAULT_LIMITS, default_grants
from datum_compute.platform.locations import is_made_here

_NAMESPACE = "datum-compute"
_NAME = "local-settings"
_KEY = "settings.json"
_DEFAULTS = Settings(DEFAULT_CITIES, DEFAULT_LIMITS)


async def settle(engine: Engine, wanted: Settings) -> Settings:
    """Returns the settings to start with. If it raises `LocalError`, nothing was changed.

    Called before any controller runs, so that none sees a city without its cell.
    """
    root = _client(engine, ROOT_PLANE, ROOT)
    stored = await _stored(root)
    chosen = wanted.over(stored)
    removed = [city for city in stored.cities if city not in chosen.cities]
    projects = {item.name: _client(engine, item.name, PROJECT) for item in (await root.list(PROJECT_KIND)).items}
    in_use = {city: use for city in removed if (use := await anext(_uses(engine, projects, city), ""))}
    for city, use in in_use.items():
        both = ",".join([*(f"{code}={name}" if name else code for code, name in wanted.cities.items()), *in_use])
        raise LocalError(f"city {city} cannot be removed: {use}, or keep it: --city={quote(both)}")
    hub = _client(engine, HUB_PLANE, HUB)
    for city in removed:
        await _delete_cluster(hub, cell_of(city))
    for project in projects.values():
        for binding in (await project.list(LOCATION_BINDING)).items:
            await _offer(project, binding, chosen)
        await _set_limits(project, wanted)
    return chosen


async def keep(engine: Engine, settings: Settings) -> None:
    """Stores the settings that the federation started with; writes nothing if they are unchanged."""
    root = _client(engine, ROOT_PLANE, ROOT)
    if await _stored(root) == settings:
        return
    with suppress(AlreadyExists):
        await root.create(NAMESPACE, NAMESPACE.body(_NAMESPACE))
    data = {_KEY: msgspec.json.encode(settings).decode()}
    try:
        await root.create(CONFIG_MAP, CONFIG_MAP.body(_NAME, _NAMESPACE) | {"data": data})
    except AlreadyExists:
        await root.merge_patch(CONFIG_MAP, _NAME, _NAMESPACE, {"data": data})


async def _stored(root: Client) -> Settings:
    try:
        config_map = await root.get(CONFIG_MAP, _NAME, _NAMESPACE)
        return msgspec.json.decode(config_map.data[_KEY], type=Settings).over(_DEFAULTS)
    except NotFound:
        return _DEFAULTS
    except (KeyError, msgspec.MsgspecError):
        raise LocalError(
            f"the settings in ConfigMap {_NAMESPACE}/{_NAME} of the root plane cannot be read; "
            "go back to a backup with 'compute local restore', or start anew with 'compute local reset'"
        ) from None


async def _uses(engine: Engine, projects: dict[str, Client], city: str) -> AsyncIterator[str]:
    """What prevents the removal of a city, and what to do about it."""
    for name, project in projects.items():
        for workload in (await project.list(WORKLOAD)).items:
            if any(city in placement.city_codes for placement in workload.spec.placements):
                yield f"workload {workload.name} of project {name} runs there; deploy it elsewhere or destroy it first"
    for instance in (await _client(engine, cell_of(city), CELL).list(INSTANCE)).items:
        yield f"instance {instance.name} is still being stopped there; start without --city and wait until it is gone"


async def _delete_cluster(hub: Client, name: str) -> None:
    with suppress(NotFound):
        await hub.delete(CLUSTER, name)


async def _offer(project: Client, binding: LocationBinding, chosen: Settings) -> None:
    if not is_made_here(binding.metadata.labels):
        return
    city = binding.spec.topology.get(TOPOLOGY_CITY, "")
    if city not in chosen.cities:
        await project.delete(LOCATION_BINDING, binding.name)
    elif binding.spec.display_name != chosen.cities[city]:
        patch = {"spec": {"displayName": chosen.cities[city]}}
        await project.merge_patch(LOCATION_BINDING, binding.name, "", patch)


async def _set_limits(project: Client, wanted: Settings) -> None:
    """Applies limits that were requested now to existing projects; otherwise grants made by hand stay."""
    for body in default_grants(project.plane, wanted.limits, owner={}):
        name, spec = body["metadata"]["name"], body["spec"]
        if not wanted.limits.keys() & {allowance["resourceType"] for allowance in spec["allowances"]}:
            continue
        try:
            grant = await project.get(RESOURCE_GRANT, name, QUOTA_NAMESPACE)
        except NotFound:
            continue  # made with the entitlement, and then with these limits
        if as_dict(grant.spec_json) != spec:
            await project.merge_patch(RESOURCE_GRANT, name, QUOTA_NAMESPACE, {"spec": spec})


def _client(engine: Engine, plane: str, role: str) -> Client:
    engine.serve(plane, role)
    return engine.client(plane)
