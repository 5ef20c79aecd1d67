"""Takes the steps that an Instance needs, and notes what the engine refuses. Entry points: `take`, `remove`."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

import structlog

from datum_compute.api.labels import CONTAINER_INSTANCE_UID, CONTAINER_NAME
from datum_compute.providers.containers import removal as container_removal
from datum_compute.providers.containers.logs import ContainerLogs
from datum_compute.providers.containers.memory import Memory
from datum_compute.providers.containers.runs import RUNNING
from datum_compute.providers.containers.shape import GRACE_SECONDS, Owner, Shape
from datum_compute.providers.containers.state import Create, Remove, Start, Step, Stop, View
from datum_compute.providers.engine.interface import Container, ContainerEngine, Refused, Summary
from datum_compute.providers.engine.words import Refusal, excerpt, refusal_in
from datum_compute.runtime import Unfinished

_UNSTARTABLE_CODES = (1, 126, 127, 255)
_AT_ONCE_SECONDS = 1.0
_LOG_LINES, _LOG_SECONDS = 3, 2.0

_log = structlog.get_logger(__name__)


async def take(
    step: Step, owner: Owner, memory: Memory, shape: Shape, views: Sequence[View], engine: ContainerEngine
) -> None:
    match step:
        case Create(index=index):
            await _create(index, owner, memory, shape, views[0].found, engine)
        case Start(index=index):
            await _start(memory, views[index], engine)
        case Stop(indexes=indexes):
            await asyncio.gather(*(_stop(memory, views[index], engine) for index in indexes))
        case Remove(indexes=indexes):
            for index in indexes:
                await _remove(views[index].found, engine)


async def remove(summaries: Sequence[Summary], engine: ContainerEngine, logs: ContainerLogs) -> None:
    """Stops containers, reads their last lines, and then removes them."""
    await container_removal.stop(engine, [summary for summary in summaries if summary.state == RUNNING])
    await logs.finish(summary.id for summary in summaries)
    try:
        await container_removal.remove(engine, summaries)
    except Refused as error:
        raise Unfinished(f"a container cannot be removed: {excerpt(error.message)}") from None


async def _create(
    index: int, owner: Owner, memory: Memory, shape: Shape, first: Container | None, engine: ContainerEngine
) -> None:
    wanted = shape.containers[index]
    name = wanted.container
    try:
        if index == 0:
            await engine.create_network(shape.network, owner.labels)
        await engine.create(wanted.name, shape.body(index, first.id if first is not None else ""))
    except Refused as error:
        there = await engine.inspect(wanted.name)
        if there is None:
            _refuse(memory, name, refusal_in(error.message), error, anew=False)
        elif not _is_for(there, owner, shape, name):
            _refuse(memory, name, Refusal.NAME_TAKEN, error, anew=False)
        # Otherwise an earlier call made it after all, and the next look finds it.
    else:
        memory.made_anew(name)


async def _start(memory: Memory, view: View, engine: ContainerEngine) -> None:
    assert view.found is not None
    name, before = view.shape.container, memory.run_of(view.shape.container)
    memory.mark(name, starting=True)
    try:
        await engine.start(view.found.id)
    except Refused as error:
        after = await engine.inspect(view.found.id)
        if after is None or (after.state.status != RUNNING and after.state.started == view.started):
            memory.runs[name] = before
            _refuse(memory, name, refusal_in(error.message), error, anew=True)


async def _stop(memory: Memory, view: View, engine: ContainerEngine) -> None:
    assert view.found is not None
    memory.mark(view.shape.container, stopping=True)
    try:
        await engine.stop(view.found.id, GRACE_SECONDS)
    except Refused:
        await _remove(view.found, engine)


async def _remove(found: Container | None, engine: ContainerEngine) -> None:
    if found is None:
        return
    try:
        await engine.remove(found.id)
    except Refused as error:
        raise Unfinished(f"container {found.name} cannot be removed: {excerpt(error.message)}") from None


async def is_for_other_processor(found: Container, engine: ContainerEngine) -> bool:
    """Whether a container ended at once because its program is for another processor.

    Some engines notice that only after the start, and leave the reason in its log.
    """
    lasted = (found.state.finished - found.state.started) / 10**9
    if found.state.exit_code not in _UNSTARTABLE_CODES or lasted > _AT_ONCE_SECONDS:
        return False
    text = b""
    with suppress(TimeoutError, Refused):
        async with asyncio.timeout(_LOG_SECONDS), aclosing(engine.logs(found.id, _LOG_LINES)) as chunks:
            async for chunk in chunks:
                text += chunk
    return refusal_in(text.decode(errors="replace")) is Refusal.OTHER_PROCESSOR


def _refuse(memory: Memory, container: str, refusal: Refusal, error: Refused, *, anew: bool) -> None:
    memory.refuse(container, refusal, error.message, asyncio.get_running_loop().time(), anew=anew)
    _log.warning("container refused", container=container, uid=memory.uid, reason=refusal.value, error=str(error))


def _is_for(found: Container, owner: Owner, shape: Shape, container: str) -> bool:
    is_same = found.labels.get(CONTAINER_INSTANCE_UID) == shape.uid and found.labels.get(CONTAINER_NAME) == container
    return owner.owns(found.labels) and is_same
