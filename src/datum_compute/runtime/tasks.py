"""Concurrent tasks of which the first to end ends all. Entry point: `first`."""

import asyncio
from collections.abc import Coroutine
from typing import Any

CANCEL_SECONDS = 3.0


async def first(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Returns or raises as soon as the first of them does.

    The others are cancelled. A task that ignores its cancellation is abandoned, because a replica that lost its lease
    has to stop whatever its parts do.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended, _ = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in ended:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report it a second time
    for task in tasks:
        if task in done:
            task.result()
