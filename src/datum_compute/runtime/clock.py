"""Wall time, injected so that tests can turn it. Entry points: `Clock`, `SystemClock`.

Durations go through the event loop (`asyncio.sleep`, `loop.call_later`); only timestamps that end up in objects, and
ages measured against them, need this.
"""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)
