"""Workloads as they are to be written: new ones, and edits that leave alone what nobody named.

Entry points: `Asked`, `new_spec`, `edited_spec`, `with_min_replicas`, `with_restart`. All take and give plain JSON, and
change nothing that they are given.
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
    """One variable to set, or with no value to remove."""

    name: str
    value: str | None


class Asked(Struct, frozen=True):
    """What the flags of a deploy name; None and empty are what they do not."""

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


def new_spec(asked: Asked) -> Json:
    container = _container({"name": "app", "image": asked.image}, asked)
    return {
        "template": {
            "spec": {
                "runtime": {
                    "resources": {"instanceType": asked.instance_type or DEFAULT_INSTANCE_TYPE},
                    "sandbox": {"containers": [container]},
                },
                "networkInterfaces": [{"network": {"name": DEFAULT_NETWORK}}],
            }
        },
        "placements": [
            {
                "name": DEFAULT_PLACEMENT,
                "cityCodes": list(asked.cities),
                "scaleSettings": {
                    "minReplicas": asked.min_replicas or 1,
                    "instanceManagementPolicy": "OrderedReady",
                },
            }
        ],
    }


def edited_spec(spec: Json, asked: Asked) -> Json:
    """The spec with what was asked for. Container flags act on the first container, the others on the only placement;
    whether there is one is for the caller to check."""
    if asked.needs_container:
        first, *others = containers(spec)
        spec = _with_template(spec, {"runtime": {"sandbox": {"containers": [_container(first, asked), *others]}}})
    if asked.instance_type is not None:
        spec = _with_template(spec, {"runtime": {"resources": {"instanceType": asked.instance_type}}})
    if asked.cities:
        spec = _with_placements(spec, lambda placement: placement | {"cityCodes": list(asked.cities)})
    if asked.min_replicas is not None:
        spec = with_min_replicas(spec, asked.min_replicas)
    return spec


def with_min_replicas(spec: Json, replicas: int, placement: str | None = None) -> Json:
    """In all placements, or in the one that is named."""

    def scaled(one: Json) -> Json:
        if placement is not None and one.get("name") != placement:
            return one
        return one | {"scaleSettings": (one.get("scaleSettings") or {}) | {"minReplicas": replicas}}

    return _with_placements(spec, scaled)


def with_restart(spec: Json, now: datetime) -> Json:
    """The template marked as restarted now, in any case later than it was before: it must differ to roll."""
    return _marked(spec, _later([_restarted_at(spec)], now))


def with_city_restart(body: Json, city: str, marks: Iterable[str | None], now: datetime) -> tuple[Json, str]:
    """A workload with a restart of this city noted on it, and the time that it says: later than all before it there.

    `marks` are those of the city's deployments.
    """
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    mark = _later([*marks, _restarted_at(body["spec"]), city_restarts(annotations).get(city)], now)
    asked = [code for placement in placements(body["spec"]) for code in placement.get("cityCodes") or ()]
    return body | {"metadata": metadata | {"annotations": add_city_restart(annotations, city, mark, asked)}}, mark


def with_mark(deployment: Json, mark: str) -> Json:
    """A deployment whose template was restarted then."""
    return deployment | {"spec": _marked(deployment["spec"], mark)}


def _marked(spec: Json, mark: str) -> Json:
    return spec | {"template": merge(spec.get("template") or {}, {"metadata": {"annotations": {RESTARTED_AT: mark}}})}


def _restarted_at(spec: Json) -> str | None:
    metadata = (spec.get("template") or {}).get("metadata") or {}
    mark = (metadata.get("annotations") or {}).get(RESTARTED_AT)
    return mark if isinstance(mark, str) else None


def _later(marks: Iterable[str | None], now: datetime) -> str:
    """Now, or a second after the latest of the marks, whose clock may have been ahead."""
    latest = parse_time(newest(*marks))
    chosen = now.replace(microsecond=0)
    if latest is not None:
        with suppress(OverflowError):  # the end of time has been reached before
            chosen = max(chosen, latest.replace(microsecond=0) + timedelta(seconds=1))
    return timestamp(chosen)


def containers(spec: Json) -> list[Json]:
    """The containers of the template; none for a virtual machine."""
    runtime = _template_spec(spec).get("runtime") or {}
    return list((runtime.get("sandbox") or {}).get("containers") or [])


def networks(spec: Json) -> list[str]:
    """The networks that the template attaches to, each once."""
    interfaces = _template_spec(spec).get("networkInterfaces") or []
    return list(dict.fromkeys(str((one.get("network") or {}).get("name", "")) for one in interfaces))


def placements(spec: Json) -> list[Json]:
    return list(spec.get("placements") or [])


def _template_spec(spec: Json) -> Json:
    return (spec.get("template") or {}).get("spec") or {}


def _with_template(spec: Json, change: Json) -> Json:
    changed: Json = merge(spec, {"template": {"spec": change}})
    return changed


def _with_placements(spec: Json, change: Callable[[Json], Json]) -> Json:
    return spec | {"placements": [change(placement) for placement in placements(spec)]}


def _container(container: Json, asked: Asked) -> Json:
    if asked.image is not None:
        container = container | {"image": asked.image}
    if asked.port is not None:
        container = _filled(container, "ports", _ports(container.get("ports") or [], asked.port))
    if asked.env:
        container = _filled(container, "env", _env(container.get("env") or [], asked.env))
    return container


def _filled(container: Json, key: str, items: Sequence[Any]) -> Json:
    without = {name: value for name, value in container.items() if name != key}
    return without | ({key: list(items)} if items else {})


def _ports(ports: Iterable[Json], port: int) -> list[Json]:
    """The port named http set in its place, or taken away by 0; others are not ours."""
    wanted = [{"name": _PORT_NAME, "port": port, "protocol": "TCP"}] if port else []
    result: list[Json] = []
    for one in ports:
        if one.get("name") != _PORT_NAME:
            result.append(one)
        elif wanted:
            result.append(one | {"port": port})
            wanted = []
    return result + wanted


def _env(env: Iterable[Json], changes: Sequence[EnvChange]) -> list[Json]:
    """Variables keep their place; a value replaces a reference; the last change of a name counts."""
    latest = {change.name: change for change in changes}
    result: list[Json] = []
    for one in env:
        change = latest.pop(str(one.get("name")), None)
        if change is None:
            result.append(one)
        elif change.value is not None:
            result.append(_variable(change))
    return result + [_variable(change) for change in latest.values() if change.value is not None]


def _variable(change: EnvChange) -> Json:
    return {"name": change.name, "value": change.value}
