"""New specs of workloads, and edits that keep everything else. Entry points: `SpecChange`, `new_spec`, `edited_spec`,
`with_min_replicas`, `with_restart`.

All functions take and return plain JSON, and never modify their arguments.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from datum_compute.api.labels import RESTARTED_AT
from datum_compute.api.restarts import add_city_restart, city_restarts, newest, parse_time
from datum_compute.kube.meta import Json, timestamp
from datum_compute.kube.patches import merge

DEFAULT_INSTANCE_TYPE = "datumcloud/d1-standard-2"
DEFAULT_NETWORK = "default"
DEFAULT_PLACEMENT = "default"
_PORT_NAME = "http"


class EnvChange(Struct, frozen=True):
    """A variable to set, or to remove if the value is None."""

    name: str
    value: str | None


class SpecChange(Struct, frozen=True):
    """Changes that the flags of a deploy name; None and empty values change nothing."""

    image: str | None = None
    cities: tuple[str, ...] = ()
    min_replicas: int | None = None
    port: int | None = None
    instance_type: str | None = None
    env: tuple[EnvChange, ...] = ()

    @property
    def needs_container(self) -> bool:
        return self.image is not None or self.port is not None or bool(self.env)

    @property
    def needs_placement(self) -> bool:
        return bool(self.cities) or self.min_replicas is not None


def new_spec(change: SpecChange) -> Json:
    container = _container({"name": "app", "image": change.image}, change)
    return {
        "template": {
            "spec": {
                "runtime": {
                    "resources": {"instanceType": change.instance_type or DEFAULT_INSTANCE_TYPE},
                    "sandbox": {"containers": [container]},
                },
                "networkInterfaces": [{"network": {"name": DEFAULT_NETWORK}}],
            }
        },
        "placements": [
            {
                "name": DEFAULT_PLACEMENT,
                "cityCodes": list(change.cities),
                "scaleSettings": {
                    "minReplicas": change.min_replicas or 1,
                    "instanceManagementPolicy": "OrderedReady",
                },
            }
        ],
    }


def edited_spec(spec: Json, change: SpecChange) -> Json:
    """The spec with the change made to its first container and its only placement, which the caller has checked to
    exist."""
    if change.needs_container:
        first, *others = containers(spec)
        spec = _with_template(spec, {"runtime": {"sandbox": {"containers": [_container(first, change), *others]}}})
    if change.instance_type is not None:
        spec = _with_template(spec, {"runtime": {"resources": {"instanceType": change.instance_type}}})
    if change.cities:
        spec = _with_placements(spec, lambda placement: placement | {"cityCodes": list(change.cities)})
    if change.min_replicas is not None:
        spec = with_min_replicas(spec, change.min_replicas)
    return spec


def with_min_replicas(spec: Json, replicas: int, name: str | None = None) -> Json:
    """The spec with this many replicas in all placements, or in the one with this name."""

    def scaled(placement: Json) -> Json:
        if name is not None and placement.get("name") != name:
            return placement
        return placement | {"scaleSettings": (placement.get("scaleSettings") or {}) | {"minReplicas": replicas}}

    return _with_placements(spec, scaled)


def with_restart(spec: Json, now: datetime) -> Json:
    """The spec with its template marked as restarted now, but later than any earlier restart: it must differ."""
    return _with_restart_time(spec, _later([_restarted_at(spec)], now))


def with_city_restart(body: Json, city: str, times: Iterable[str | None], now: datetime) -> tuple[Json, str]:
    """A workload with a restart of this city noted on it, and the time of the restart, later than any earlier one.

    `times` are the last restarts of the city's deployments.
    """
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    time = _later([*times, _restarted_at(body["spec"]), city_restarts(annotations).get(city)], now)
    codes = [code for placement in placements(body["spec"]) for code in placement.get("cityCodes") or ()]
    return body | {"metadata": metadata | {"annotations": add_city_restart(annotations, city, time, codes)}}, time


def with_deployment_restart(deployment: Json, time: str) -> Json:
    """A deployment with its template marked as restarted at this time."""
    return deployment | {"spec": _with_restart_time(deployment["spec"], time)}


def _with_restart_time(spec: Json, time: str) -> Json:
    return spec | {"template": merge(spec.get("template") or {}, {"metadata": {"annotations": {RESTARTED_AT: time}}})}


def _restarted_at(spec: Json) -> str | None:
    metadata = (spec.get("template") or {}).get("metadata") or {}
    time = (metadata.get("annotations") or {}).get(RESTARTED_AT)
    return time if isinstance(time, str) else None


def _later(times: Iterable[str | None], now: datetime) -> str:
    """Now, or a second after the latest of these times, because another clock may have been ahead."""
    latest = parse_time(newest(*times))
    chosen = now.replace(microsecond=0)
    if latest is not None:
        with suppress(OverflowError):  # the latest possible time was used already
            chosen = max(chosen, latest.replace(microsecond=0) + timedelta(seconds=1))
    return timestamp(chosen)


def containers(spec: Json) -> list[Json]:
    """The containers of the template; none for a virtual machine."""
    runtime = _template_spec(spec).get("runtime") or {}
    return list((runtime.get("sandbox") or {}).get("containers") or [])


def first_container(spec: Json) -> Json:
    """The first container; empty for a virtual machine."""
    return next(iter(containers(spec)), {})


def instance_type(spec: Json) -> str:
    runtime = _template_spec(spec).get("runtime") or {}
    return str((runtime.get("resources") or {}).get("instanceType") or "")


def networks(spec: Json) -> list[str]:
    """The networks that the template attaches to, each once."""
    interfaces = _template_spec(spec).get("networkInterfaces") or []
    return list(dict.fromkeys(str((interface.get("network") or {}).get("name", "")) for interface in interfaces))


def placements(spec: Json) -> list[Json]:
    return list(spec.get("placements") or [])


def min_replicas(placement: Json) -> Any:
    return (placement.get("scaleSettings") or {}).get("minReplicas", 1)


def city_text(placement: Json) -> str:
    return ", ".join(placement.get("cityCodes") or [])


def placement_text(placement: Json) -> str:
    return f"cities=[{city_text(placement)}], min={min_replicas(placement)}"


def _template_spec(spec: Json) -> Json:
    return (spec.get("template") or {}).get("spec") or {}


def _with_template(spec: Json, change: Json) -> Json:
    changed: Json = merge(spec, {"template": {"spec": change}})
    return changed


def _with_placements(spec: Json, change: Callable[[Json], Json]) -> Json:
    return spec | {"placements": [change(placement) for placement in placements(spec)]}


def _container(container: Json, change: SpecChange) -> Json:
    if change.image is not None:
        container = container | {"image": change.image}
    if change.port is not None:
        container = _with_items(container, "ports", _ports(container.get("ports") or [], change.port))
    if change.env:
        container = _with_items(container, "env", _env(container.get("env") or [], change.env))
    return container


def _with_items(container: Json, key: str, items: Sequence[Any]) -> Json:
    without = {name: value for name, value in container.items() if name != key}
    return without | ({key: list(items)} if items else {})


def _ports(ports: Iterable[Json], port: int) -> list[Json]:
    """The ports with the one named http set, or removed by 0. Other ports are kept, and so is the order."""
    missing = [{"name": _PORT_NAME, "port": port, "protocol": "TCP"}] if port else []
    result: list[Json] = []
    for item in ports:
        if item.get("name") != _PORT_NAME:
            result.append(item)
        elif missing:
            result.append(item | {"port": port})
            missing = []
    return result + missing


def _env(env: Iterable[Json], changes: Sequence[EnvChange]) -> list[Json]:
    """Variables keep their order; a value replaces a reference; the last change of a name counts."""
    latest = {change.name: change for change in changes}
    result: list[Json] = []
    for item in env:
        change = latest.pop(str(item.get("name")), None)
        if change is None:
            result.append(item)
        elif change.value is not None:
            result.append(_variable(change))
    return result + [_variable(change) for change in latest.values() if change.value is not None]


def _variable(change: EnvChange) -> Json:
    return {"name": change.name, "value": change.value}
