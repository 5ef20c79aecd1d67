"""The time and the number of lines that flags ask for. Entry points: `Window`, `window_of`, `Moment`, `Tail`."""

from datetime import UTC, datetime
from typing import Any

import click
from msgspec import Struct

from datum_compute.cli.shell.failures import usage
from datum_compute.cli.show.durations import compact

DEFAULT_TAIL = 200
ALL = -1

_DAY = 86400
_DEFAULT_SECONDS, _GENERATIONS_SECONDS = 1.0 * _DAY, 7.0 * _DAY
_DIGITS = 9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = 10**18  # in 2001: earlier times have fewer digits, by which servers tell nanoseconds from seconds


class Moment(click.ParamType[datetime]):
    """A date and time in ISO 8601. Without a time zone it means what the output means: local time, or UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        flag = param.opts[-1] if param is not None else "value"
        try:
            moment = datetime.fromisoformat(str(value).strip())
            nanoseconds(moment)  # some times have no place in a year
        except (ValueError, OverflowError):
            raise usage(f'{flag}: "{value}" is not a time; write it like 2026-11-16T11:03:00Z') from None
        return moment


class Tail(click.ParamType[int]):
    """A number of lines, or -1 for all."""

    name = "int"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text != str(ALL) and not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
            raise usage(f'--tail: "{value}" is not a number of lines; use -1 for all of them')
        return int(text)


class Window(Struct, frozen=True):
    start: int  # in nanoseconds since 1970
    end: int | None  # None for now
    tail: int  # newest lines, or ALL
    length: str  # in words: `the last 24h`


def nanoseconds(moment: datetime, *, utc: bool = False) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC) if utc else moment.astimezone()
    since = moment - _EPOCH
    return (since.days * _DAY + since.seconds) * 1_000_000_000 + since.microseconds * 1000


def window_of(
    now: datetime,
    *,
    since: float | None = None,
    since_time: datetime | None = None,
    until: datetime | None = None,
    tail: int | None = None,
    utc: bool = False,
    generations: bool = False,
) -> Window:
    """`generations` if single generations of instances are looked for, which needs a longer window."""
    end = nanoseconds(until, utc=utc) if until is not None else None
    is_named = since is not None or since_time is not None
    if tail is None:
        tail = ALL if is_named else DEFAULT_TAIL
    if since_time is not None:
        start, length = nanoseconds(since_time, utc=utc), "that time"
    else:
        seconds = since if since is not None else _GENERATIONS_SECONDS if generations else _DEFAULT_SECONDS
        duration = "24h" if seconds == _DAY else compact(seconds)
        length = f"the last {duration}" if end is None else f"the {duration} before --until"
        latest = end if end is not None else nanoseconds(now)
        start = latest - int(seconds) * 1_000_000_000
    if start >= (end if end is not None else nanoseconds(now)):
        raise usage("--since-time must be before --until" if end is not None else "--since-time must be in the past")
    return Window(max(start, _FIRST), end, tail, length)
