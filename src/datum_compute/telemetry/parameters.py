"""Parameters of requests for logs, as Loki has them. Entry points: `Parameters`, `parse_time`."""

import re
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from msgspec import Struct

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DEFAULT_LIMIT, MOST_LINES = 100, 5000
MOST_DELAY_MS = 5000

_LATEST = 2**63 - 1
_FACTORS = {10: SECOND, 13: SECOND // 1000, 16: SECOND // 1_000_000, 19: 1}  # by the number of digits
_UNITS = {
    "ms": SECOND // 1000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": HOUR,
    "d": 24 * HOUR,
    "w": 7 * 24 * HOUR,
}
_DURATION = re.compile(r"(?:\d{1,6}(?:ms|[smhdw]))+")
_PART = re.compile(r"(\d+)(ms|[smhdw])")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d\d:\d\d))", flags=re.ASCII)


class ParameterError(ValueError):
    """One sentence that names a parameter and what it should be."""


class Parameters(Struct, frozen=True):
    """The parameters of one request; of a repeated one the first counts."""

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, query_string: bytes) -> "Parameters":
        try:
            return cls(tuple(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=100)))
        except ValueError:
            raise ParameterError("the request has more than 100 parameters") from None

    def text(self, name: str) -> str:
        return next((value for key, value in self.pairs if key == name), "")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]

    def required(self, name: str) -> str:
        if not (text := self.text(name)):
            raise ParameterError(f"the parameter {name} is missing")
        return text

    def time(self, name: str, now: int, default: int) -> int:
        return parse_time(name, text, now) if (text := self.text(name)) else default

    def window(self, now: int, *, default: int = HOUR) -> tuple[int, int]:
        """`start` and `end`; without them, the time of length `default` that ends now."""
        end = self.time("end", now, now)
        return self.time("start", now, max(end - default, 0)), end

    def limit(self) -> int:
        """At most `MOST_LINES`; what is not a positive number is as if it were absent."""
        text = self.text("limit")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        return min(number, MOST_LINES) or DEFAULT_LIMIT

    def backward(self) -> bool:
        match self.text("direction").lower():
            case "" | "backward":
                return True
            case "forward":
                return False
        raise ParameterError("the parameter direction has to be backward or forward")

    def delay(self) -> float | None:
        """Seconds that a followed line waits; None if the client does not say."""
        text = self.text("delay")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MOST_DELAY_MS):
            raise ParameterError(f"the parameter delay has to be a number of milliseconds from 0 to {MOST_DELAY_MS}")
        return int(text) / 1000


def parse_time(name: str, text: str, now: int) -> int:
    """Nanoseconds since 1970, exactly; a time before that, or too late to be counted, becomes the nearest that can be.

    Raises `ParameterError`.
    """
    return min(max(_parsed(name, text, now), 0), _LATEST)


def _parsed(name: str, text: str, now: int) -> int:
    if text.isascii() and text.isdigit() and len(text) in _FACTORS:
        return int(text) * _FACTORS[len(text)]
    if _DURATION.fullmatch(text):
        return now - sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(text))
    try:
        if (found := _RFC3339.fullmatch(text)) is not None:
            return _nanoseconds(*found.groups())
    except ValueError:
        pass
    raise ParameterError(
        f"the parameter {name} is not a time; use RFC 3339 (2026-01-31T12:00:00Z), "
        "an integer of 10, 13, 16 or 19 digits, or a duration before now (1h)"
    )


def _nanoseconds(date: str, time: str, fraction: str | None, zone: str | None) -> int:
    moment = datetime.fromisoformat(f"{date}T{time}{zone or '+00:00'}")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * SECOND + int((fraction or "0").ljust(9, "0"))
