"""When a template was last asked to be started anew, everywhere or in one city. Entry points: `newest`, `of_cities`.

A restart of one city is noted on the Workload itself, as JSON from city code to time: on the template it would roll
every city.
"""

from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec

from datum_compute.api.labels import CITY_RESTARTS
from datum_compute.kube.meta import encode

MOST_BYTES = 16 * 1024  # a thousand cities; more is no list of cities


def moment(text: str | None) -> datetime | None:
    """The time that a mark says; None for no time at all, or one without an offset."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else None


def newest(*marks: str | None) -> str | None:
    """The latest mark, as it was written; of equal ones the first. What is no time does not count."""
    latest: str | None = None
    for mark in marks:
        found, best = moment(mark), moment(latest)
        if found is not None and (best is None or found > best):
            latest = mark
    return latest


def of_cities(annotations: Mapping[str, str]) -> dict[str, str]:
    """By city code, from a Workload's annotations; what cannot be read is left out."""
    found = _read(annotations.get(CITY_RESTARTS, "")) or {}
    return {city: mark for city, mark in found.items() if moment(mark) is not None}


def is_note(text: str) -> bool:
    """Whether all of it can be read."""
    found = _read(text)
    return found is not None and all(moment(mark) is not None for mark in found.values())


def _read(text: str) -> dict[str, str] | None:
    if len(text) > MOST_BYTES:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def with_city(annotations: Mapping[str, str], city: str, mark: str, kept: Collection[str]) -> dict[str, str]:
    """The annotations with a restart of `city` noted; of other cities only those of `kept` stay."""
    others = {other: value for other, value in of_cities(annotations).items() if other in kept}
    return {**annotations, CITY_RESTARTS: encode(dict(sorted((others | {city: mark}).items()))).decode()}
