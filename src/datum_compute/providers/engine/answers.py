"""Answers of the Docker Engine API as values of ours. Entry points: `container_of`, `summaries_of`, `info_of`, `Pull`.

Fields that are missing, null or of another type count as absent: engines leave out different ones.
"""

from collections.abc import Mapping
from typing import Any

from datum_compute.kube.meta import Json
from datum_compute.providers.engine.interface import (
    DOCKER,
    PODMAN,
    Container,
    ContainerState,
    EngineAway,
    EngineInfo,
    Event,
    PullProgress,
    Summary,
)
from datum_compute.providers.engine.streams import nanoseconds

NEWEST_API = (1, 44)
OLDEST_API = (1, 40)

_STATES = {"configured": "created", "initialized": "created", "stopped": "exited", "stopping": "running"}


class TooOld(EngineAway):
    """The engine cannot be used; the text says why."""


def api_version(offered: str, minimum: str) -> str:
    """The version to speak with an engine: the newest that both know, and not less than it demands."""
    newest, oldest = _version(offered), _version(minimum)
    if newest is None or newest < OLDEST_API:
        known = ".".join(map(str, OLDEST_API))
        raise TooOld(f"its API has version {offered or 'unknown'}, and at least {known} is needed; update the engine")
    chosen = min(newest, NEWEST_API)
    if oldest is not None:
        chosen = max(chosen, oldest)
    return ".".join(map(str, chosen))


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def info_of(version: Json, info: Json, api: str, address: str) -> EngineInfo:
    components = [_text(_object(part).get("Name")) for part in _list(version.get("Components"))]
    podman = any("podman" in name.lower() for name in components)
    cpus = info.get("NCPU")
    return EngineInfo(
        product=PODMAN if podman else DOCKER,
        version=_text(version.get("Version")),
        api=api,
        address=address,
        cpus=cpus if isinstance(cpus, int) else 0,
        limits_memory=info.get("MemoryLimit") is True,
        limits_cpu=info.get("CpuCfsQuota") is True,
        limits_processes=info.get("PidsLimit") is True,
    )


def summaries_of(listed: list[Any]) -> list[Summary]:
    return [
        Summary(
            id=_text(entry.get("Id")),
            name=_text(next(iter(_list(entry.get("Names"))), "")).lstrip("/"),
            labels=_labels(entry.get("Labels")),
            state=_state(entry.get("State")),
            created=_number(entry.get("Created")),
        )
        for entry in map(_object, listed)
    ]


def networks_of(listed: list[Any], labels: Mapping[str, str]) -> list[str]:
    """The names of those networks that really have these labels, whatever the engine made of a filter."""
    return [
        name
        for entry in map(_object, listed)
        if (name := _text(entry.get("Name"))) and labels.items() <= _labels(entry.get("Labels")).items()
    ]


def container_of(found: Json) -> Container:
    config, state = _object(found.get("Config")), _object(found.get("State"))
    settings = _object(found.get("NetworkSettings"))
    status = _state(state.get("Status"))
    started, finished = (nanoseconds(_text(state.get(field))) for field in ("StartedAt", "FinishedAt"))
    if status == "exited":
        finished = max(finished, started)  # Podman takes the two from different clocks
    return Container(
        id=_text(found.get("Id")),
        name=_text(found.get("Name")).lstrip("/"),
        labels=_labels(config.get("Labels")),
        image=_text(config.get("Image")),
        state=ContainerState(
            status=status,
            exit_code=_number(state.get("ExitCode")),
            out_of_memory=state.get("OOMKilled") is True,
            error=_text(state.get("Error")),
            started=started,
            finished=finished,
        ),
        ports=_ports(_object(settings.get("Ports"))),
        addresses={
            name: address
            for name, network in _object(settings.get("Networks")).items()
            if (address := _text(_object(network).get("IPAddress")))
        },
    )


def event_of(document: Json) -> Event:
    actor = _object(document.get("Actor"))
    return Event(
        action=_text(document.get("Action")) or _text(document.get("status")),
        id=_text(actor.get("ID")) or _text(document.get("id")),
        labels=_labels(actor.get("Attributes")),
    )


def message_of(body: Json) -> str:
    """What an engine says about a refusal."""
    return " ".join((_text(body.get("message")) or _text(body.get("cause"))).split())


class Pull:
    """Sums the progress of a pull over the layers of an image."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}  # bytes that are there, and in all
        self._best = 0.0

    def add(self, document: Json) -> PullProgress:
        error = _text(document.get("error")) or _text(_object(document.get("errorDetail")).get("message"))
        if error:
            return PullProgress(error=" ".join(error.split()))
        layer, status = _text(document.get("id")), _text(document.get("status"))
        detail = _object(document.get("progressDetail"))
        current, total = _number(detail.get("current")), _number(detail.get("total"))
        if layer and total > 0 and status == "Downloading":
            self._layers[layer] = (min(current, total), total)
        elif layer in self._layers and status in ("Download complete", "Pull complete", "Already exists"):
            self._layers[layer] = (self._layers[layer][1],) * 2
        return PullProgress(fraction=self._fraction())

    def _fraction(self) -> float | None:
        whole = sum(total for _, total in self._layers.values())
        if not whole:
            return None
        # A layer whose size becomes known late would set it back.
        self._best = max(self._best, sum(current for current, _ in self._layers.values()) / whole)
        return self._best


def repository_and_tag(reference: str) -> tuple[str, str]:
    """What `images/create` calls `fromImage` and `tag`. Without a tag an engine would pull every one there is."""
    name, at, digest = reference.partition("@")
    if at:
        return _without_tag(name), digest
    plain = _without_tag(name)
    return plain, name[len(plain) + 1 :] or "latest"


def _without_tag(name: str) -> str:
    colon = name.rfind(":")
    return name[:colon] if colon > name.rfind("/") else name


def _ports(published: Json) -> dict[str, int]:
    found = {}
    for port, bindings in published.items():
        for binding in map(_object, _list(bindings)):
            number = _text(binding.get("HostPort"))
            if number.isdecimal() and int(number):
                found[port] = int(number)
                break
    return found


def _state(value: Any) -> str:
    text = _text(value).lower()
    return _STATES.get(text, text)


def _labels(value: Any) -> dict[str, str]:
    return {key: text for key, text in _object(value).items() if isinstance(text, str)}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
