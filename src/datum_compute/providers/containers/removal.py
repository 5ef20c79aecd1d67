"""Stops and removes everything that a local federation has in an engine. Entry points: `stop_all`, `remove_all`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from msgspec import Struct

from datum_compute.providers.containers.runs import RUNNING
from datum_compute.providers.containers.shape import GRACE_SECONDS, Owner
from datum_compute.providers.engine.interface import ContainerEngine, Refused, Summary

Progress = Callable[[], None]

AT_ONCE = 8
NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Removal(Struct, frozen=True):
    """What was removed. Images stay; these were in use."""

    containers: int
    networks: int
    images: tuple[str, ...]


async def stop_all(engine: ContainerEngine, owner: Owner) -> int:
    """Stops all containers of a federation, which keeps them; returns how many ran."""
    running = [summary for summary in await owned(engine, owner) if summary.state == RUNNING]
    await stop(engine, running)
    return len(running)


async def remove_all(engine: ContainerEngine, owner: Owner, progress: Progress = lambda: None) -> Removal:
    """Removes all containers and networks of a federation. Raises `Refused` if something could not be removed.

    `progress` is called after each container, because many of them take long.
    """
    images = set()
    summaries = await owned(engine, owner)
    for summary in summaries:
        if (container := await engine.inspect(summary.id)) is not None:
            images.add(container.image)
    await stop(engine, [summary for summary in summaries if summary.state == RUNNING], progress)
    await remove(engine, summaries, progress)
    networks = [name for name in await engine.networks(owner.labels) if name.startswith(owner.network(""))]
    for network in networks:
        await engine.remove_network(network)
    return Removal(len(summaries), len(networks), tuple(sorted(images)))


async def owned(engine: ContainerEngine, owner: Owner, labels: Mapping[str, str] = NO_LABELS) -> list[Summary]:
    """All containers with the id of a federation and these labels, whatever the engine makes of a filter."""
    wanted = {**owner.labels, **labels}
    return [summary for summary in await engine.containers(wanted) if wanted.items() <= summary.labels.items()]


async def stop(engine: ContainerEngine, summaries: Sequence[Summary], progress: Progress = lambda: None) -> None:
    """Stops containers, some at once. One that the engine refuses to stop is left to whoever removes or starts it."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def stop_one(summary: Summary) -> None:
        async with slots:
            with suppress(Refused):
                await engine.stop(summary.id, GRACE_SECONDS)
            progress()

    await asyncio.gather(*(stop_one(summary) for summary in summaries))


async def remove(engine: ContainerEngine, summaries: Sequence[Summary], progress: Progress = lambda: None) -> None:
    """Removes containers. Those that use the network of another go first; their names begin with its name."""
    for summary in sorted(summaries, key=lambda summary: summary.name, reverse=True):
        await engine.remove(summary.id)
        progress()
