"""Durations as people write and read them. Entry points: `parse`, `age`, `elapsed`, `compact`."""

import re
from datetime import datetime

_FORM = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS = (86400, 3600, 60, 1)
LONGEST = 3650.0 * 86400
_UNITS = tuple(zip("dhms", _SECONDS, strict=True))


def parse(text: str, longest: float = LONGEST) -> float:
    """Seconds of `90s`, `15m`, `2h`, `1h30m`, `7d` or a plain 0; raises `ValueError` for anything else."""
    form = _FORM.fullmatch(text)
    if text == "0":
        return 0.0
    if not text or form is None:
        raise ValueError(f'"{text}" is not a duration; write it like 90s, 15m, 2h, 1h30m or 7d')
    # Floats, because converting very long integers is slow, or refused.
    seconds = sum(float(number) * unit for number, unit in zip(form.groups(), _SECONDS, strict=True) if number)
    if seconds > longest:
        raise ValueError(f"{text[:20]} is too long; use at most {compact(longest)}")
    return seconds


def age(since: datetime | None, now: datetime) -> str:
    """The age in the largest whole unit: `59s`, `59m`, `23h`, `7d`; empty if it is not known."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m"
    if seconds < 86400:
        return f"{seconds // 3600}h"
    return f"{seconds // 86400}d"


def elapsed(seconds: float) -> str:
    """A duration to read: `0.8s`, or in its two largest units: `47s`, `1m 12s`, `2h 5m`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    return " ".join(_parts(int(seconds + 0.5))[:2])


def compact(seconds: float) -> str:
    """A duration as it is typed: `15m`, `1h30m`."""
    return "".join(_parts(int(seconds))) or "0s"


def _parts(seconds: int) -> list[str]:
    parts = []
    for unit, size in _UNITS:
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number}{unit}")
    return parts
