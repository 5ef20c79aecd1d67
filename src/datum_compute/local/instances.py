"""What runs the instances of a local federation in this process. Entry points: `open_instances`, `Instances`."""

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CONTAINERS_FINALIZER
from datum_compute.embedded.engine import Engine
from datum_compute.federation.lines import Sink
from datum_compute.federation.lives import Recorder
from datum_compute.federation.roles import CELL
from datum_compute.federation.sessions import Runner
from datum_compute.local import containers
from datum_compute.local.choice import (
    AUTO,
    CONTAINERS,
    SIMULATED,
    Choice,
    Former,
    Refusal,
    Situation,
    Wish,
    choose,
    needs_engine,
)
from datum_compute.local.containers import Recalled, Record
from datum_compute.local.endpoints import Published
from datum_compute.local.federation import simulated
from datum_compute.local.logs import Logs
from datum_compute.local.state import Engine as RunningEngine
from datum_compute.local.state import LocalError, Paths, is_same_socket
from datum_compute.providers.containers.provider import ContainersProvider
from datum_compute.providers.containers.removal import Progress, owned, remove_all
from datum_compute.providers.containers.shape import Owner
from datum_compute.providers.engine.address import find_engine
from datum_compute.providers.engine.client import EngineClient
from datum_compute.providers.engine.credentials import registry_credentials
from datum_compute.providers.engine.interface import ContainerEngine, EngineAway, EngineError, EngineInfo
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime import Clock, Reconciler

# Long enough that a roll can be seen, short enough that nobody waits.
BEHAVIOUR = Behaviour(start_seconds=0.3, stop_seconds=0.2)

LEAVE = "'compute local up --instances=simulated --leave-containers'"


class Engines(Struct, frozen=True):
    """How engines are found: by an address that the user names, or any if it is empty; and one at a known address."""

    find: Callable[[str], Awaitable[ContainerEngine]]
    connect: Callable[[str], Awaitable[ContainerEngine]]


def _connect(address: str) -> Awaitable[ContainerEngine]:
    return EngineClient.connect(address.removeprefix("unix://"))


def _find(address: str) -> Awaitable[ContainerEngine]:
    return find_engine(os.environ, Path.home(), address)


def _credentials(reference: str) -> Awaitable[str]:
    return registry_credentials(reference, os.environ, Path.home())


ENGINES = Engines(_find, _connect)


class Instances(Struct, frozen=True):
    """`published`, `runner` and `engine` are None if nothing really runs."""

    mode: str  # containers or simulated
    provider: Reconciler
    summary: str  # the same in words, at the start
    published: Published | None = None
    runner: Runner | None = None
    engine: RunningEngine | None = None
    look: Callable[[], EngineInfo | None] = lambda: None  # the engine, while it answers
    notes: Sequence[str] = ()  # lines for whoever starts it


def simulated_instances(reason: str = "", *, recorder: Recorder | None = None, notes: Sequence[str] = ()) -> Instances:
    """`reason` says why they are simulated, if nobody asked for it. `recorder` gets what their logs need."""
    summary = f"simulated ({reason})" if reason else "simulated"
    return Instances(SIMULATED, simulated(BEHAVIOUR, recorder), summary, notes=notes)


async def open_instances(
    engine: Engine,
    cells: Iterable[str],
    paths: Paths,
    wish: Wish,
    *,
    logs: Logs,
    clock: Clock,
    engines: Engines = ENGINES,
    progress: Progress = lambda: None,
) -> Instances:
    """Chooses what runs the Instances, changes over to it if need be, and remembers it. If it raises `LocalError`,
    nothing was changed. To be called before a controller runs. `progress` is a sign of life during a change."""
    recalled = containers.recall(paths)
    record = recalled.record
    found = await _all_instances(engine, cells)
    remembered = record.instances or _provider_of(found)
    search = _Search("no container engine was looked for")
    if needs_engine(wish.instances or AUTO, remembered, leave=wish.leave):
        search = await _search(engines, record, wish, is_needed=remembered == CONTAINERS and bool(found))
    async with AsyncExitStack() as unused:
        if search.engine is not None:
            unused.push_async_callback(search.engine.close)
        choice = choose(
            Situation(wish.instances or AUTO, remembered, bool(found), search.engine is not None, wish.leave)
        )
        if isinstance(choice, Refusal):
            raise LocalError(_refusal(choice, record, search))
        if choice.former is Former.REMOVED and search.engine is not None:
            await _remove(search.engine, record, progress)
        now = _updated(record, choice, search.info)
        notes = list(_notes(choice, recalled, search))
        if choice.instances == CONTAINERS and record.address and not is_same_socket(now.address, record.address):
            notes += await _part_from(engines, record, progress)
        containers.remember(paths, now)
        if choice.instances == SIMULATED:
            reason = "" if wish.instances == SIMULATED or choice.offers else "no container engine answers"
            return simulated_instances(reason, recorder=logs.lives, notes=notes)
        unused.pop_all()
        return _in_containers(now, partial(containers.remember, paths), search.engine, engines, logs.ring, clock, notes)


async def _remove(engine: ContainerEngine, record: Record, progress: Progress) -> None:
    try:
        await remove_all(engine, Owner(record.id, record.directory), progress)
    except EngineError as error:
        raise LocalError(f"the containers could not be removed: {error}; nothing else was changed") from None


async def _all_instances(engine: Engine, cells: Iterable[str]) -> list[Instance]:
    found = []
    for cell in cells:
        engine.serve(cell, CELL)
        found += (await engine.client(cell).list(INSTANCE)).items
    return found


def _provider_of(instances: Iterable[Instance]) -> str:
    """What ran these Instances, for a federation that does not remember it; empty if there are none.

    They were simulated before there was a choice.
    """
    found = {CONTAINERS_FINALIZER in instance.metadata.finalizers for instance in instances}
    return "" if not found else CONTAINERS if True in found else SIMULATED


class _Search(Struct, frozen=True):
    """An engine that answers, or what those said that do not."""

    trouble: str
    engine: ContainerEngine | None = None

    @property
    def sentence(self) -> str:
        """The trouble without the list of what was tried."""
        return self.trouble.partition("; tried were\n")[0]

    @property
    def info(self) -> EngineInfo | None:
        return self.engine.info if self.engine is not None else None


async def _search(engines: Engines, record: Record, wish: Wish, *, is_needed: bool) -> _Search:
    """Looks for the engine that may have something of ours, else for the one that the user names, or any.

    Ours is never passed over where Instances need it, nor where everything of ours is to be removed.
    """
    ends = wish.instances == SIMULATED
    named = "" if ends else wish.engine
    if record.address and (not named or is_same_socket(named, record.address)):
        try:
            return _Search("", await engines.connect(record.address))
        except EngineError as error:
            if is_needed or ends:
                return _Search(f"{record.address}: {error}")
    elif record.address and is_needed:
        await _check_home(engines, record, named)
    try:
        return _Search("", await engines.find(named))
    except EngineError as error:
        return _Search(str(error))


async def _check_home(engines: Engines, record: Record, address: str) -> None:
    """While Instances need an engine, another may be used only if the one so far has no containers of ours."""
    try:
        engine = await engines.connect(record.address)
        try:
            count = len(await owned(engine, Owner(record.id, record.directory)))
        finally:
            await engine.close()
    except EngineError:
        raise LocalError(
            f"the instances run in {_home(record)}, which does not answer; start it, or give its containers up with "
            f"{LEAVE}"
        ) from None
    if count:
        raise LocalError(
            f"{_home(record)} has {count} containers of this federation, so another engine cannot be used; remove them "
            f"first with 'compute local up --instances=simulated', or leave out {address}"
        )


async def _part_from(engines: Engines, record: Record, progress: Progress) -> Iterable[str]:
    """Removes what the engine so far has of ours, which nothing needs any more; one that is gone holds up nobody."""
    try:
        engine = await engines.connect(record.address)
        try:
            await remove_all(engine, Owner(record.id, record.directory), progress)
        finally:
            await engine.close()
    except EngineError:
        return [
            f"{_home(record)} is not used any more and could not be cleaned up; what it still has of this federation "
            f"has the label {record.label}."
        ]
    return []


def _home(record: Record) -> str:
    return f"{record.engine or 'the engine'} at {record.address}"


def _refusal(refusal: Refusal, record: Record, search: _Search) -> str:
    match refusal:
        case Refusal.NO_ENGINE:
            return f"{search.trouble}\nStart Docker or Podman, or name its socket with --engine=unix://PATH."
        case Refusal.HELD:
            return (
                f"the instances run in containers of {record.engine or 'an engine'}, which cannot be removed now: "
                f"{search.sentence}; start the engine, or leave the containers behind with {LEAVE}"
            )


def _updated(record: Record, choice: Choice, info: EngineInfo | None) -> Record:
    if choice.instances == CONTAINERS and info is not None:
        return replace(record, instances=CONTAINERS, address=info.address, engine=name_of(info))
    if choice.former is not Former.STAY:
        return replace(record, instances=choice.instances, address="", engine="")
    return replace(record, instances=choice.instances)


def _notes(choice: Choice, recalled: Recalled, search: _Search) -> Iterable[str]:
    if choice.offers and search.info is not None:
        yield (
            f"{name_of(search.info)} answers; 'compute local down', then 'compute local up --instances=containers' "
            "runs them there instead."
        )
    if choice.waits:
        yield f"Instances wait for the container engine: {search.sentence}."
        yield f"If it is gone for good, {LEAVE} goes on without it."
    if choice.former is Former.LEFT:
        yield f"Containers of this federation were left behind; they have the label {recalled.record.label}."
    if recalled.former is not None and recalled.former.instances == CONTAINERS:
        where, label = recalled.former.directory, recalled.former.label
        yield f"Containers of {where} stay as they are; they have the label {label}."


def _in_containers(
    record: Record,
    remember: Callable[[Record], None],
    engine: ContainerEngine | None,
    engines: Engines,
    sink: Sink,
    clock: Clock,
    notes: Sequence[str],
) -> Instances:
    """`engine` is the one that was found, if any; the provider closes it. One that is found later is remembered."""
    home = record.address

    async def connect() -> ContainerEngine:
        nonlocal home
        try:
            found = await (engines.connect(home) if home else engines.find(""))
        except EngineAway:
            raise
        except EngineError as error:
            raise EngineAway(str(error)) from None
        if not home:
            home = found.info.address
            remember(replace(record, address=home, engine=name_of(found.info)))
        return found

    provider = ContainersProvider(connect, Owner(record.id, record.directory), clock, sink, _credentials, engine)
    return Instances(
        CONTAINERS,
        provider,
        in_words(record.engine, answers=engine is not None),
        provider.published,
        provider,
        RunningEngine(record.engine, record.address),
        lambda: provider.info,
        notes,
    )


def in_words(engine: str, *, answers: bool) -> str:
    name = engine or "an engine"
    return f"containers of {name}; a city is a name here" if answers else f"containers of {name}, which does not answer"


def unenforced_limits(info: EngineInfo) -> tuple[str, ...]:
    """The limits of instances that an engine ignores, in words."""
    enforced = {"memory": info.limits_memory, "CPU": info.limits_cpu, "processes": info.limits_processes}
    return tuple(name for name, is_enforced in enforced.items() if not is_enforced)


def name_of(info: EngineInfo) -> str:
    return f"{info.product} {info.version}"
