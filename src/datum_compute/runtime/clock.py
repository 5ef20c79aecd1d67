"""Wall time, injected so that tests can control it. Entry points: `Clock`, `SystemClock`.

Durations come from the event loop (`asyncio.sleep`, `loop.call_later`); only timestamps in objects, and ages measured
against them, need a clock.
"""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)
