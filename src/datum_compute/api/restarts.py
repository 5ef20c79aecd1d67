"""Times of requested restarts, of a whole workload or of one city. Entry points: `newest`, `city_restarts`.

Restarts of single cities are noted on the Workload itself, as JSON from city code to time: on the template they would
restart every city.
"""

from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec

from datum_compute.api.labels import CITY_RESTARTS
from datum_compute.kube.meta import encode

MOST_BYTES = 16 * 1024  # enough for a thousand cities


def parse_time(text: str | None) -> datetime | None:
    """None for anything that is not a time with an offset."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else None


def newest(*texts: str | None) -> str | None:
    """The text with the latest time, and of equal times the first. Anything that is not a time is ignored."""
    latest: str | None = None
    for text in texts:
        time, best = parse_time(text), parse_time(latest)
        if time is not None and (best is None or time > best):
            latest = text
    return latest


def city_restarts(annotations: Mapping[str, str]) -> dict[str, str]:
    """Times by city code, from the annotations of a Workload, without entries that cannot be read."""
    restarts = _read(annotations.get(CITY_RESTARTS, "")) or {}
    return {city: text for city, text in restarts.items() if parse_time(text) is not None}


def is_valid_note(text: str) -> bool:
    """Whether every entry of the annotation can be read."""
    restarts = _read(text)
    return restarts is not None and all(parse_time(time) is not None for time in restarts.values())


def _read(text: str) -> dict[str, str] | None:
    if len(text) > MOST_BYTES:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def add_city_restart(annotations: Mapping[str, str], city: str, time: str, current: Collection[str]) -> dict[str, str]:
    """The annotations with a restart of `city` added, and those of cities that are not `current` removed."""
    others = {other: value for other, value in city_restarts(annotations).items() if other in current}
    return {**annotations, CITY_RESTARTS: encode(dict(sorted((others | {city: time}).items()))).decode()}
