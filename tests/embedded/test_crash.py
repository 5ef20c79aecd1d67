"""Killed at any moment, the server keeps every acknowledged write, and its watchers lose nothing.

Several clients write over HTTPS, each its own objects, so that each knows what it must find: what was acknowledged
last, or what it was just asking for. A watcher follows all of it through all lives of the server.
"""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.errors import Gone, Unavailable
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.patches import MERGE
from datum_compute.kube.transport import Call
from tests.conftest import count
from tests.embedded.serving import Process

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CLIENTS = 6
LIVES = 5  # of the server, on one log

# Of an object: its number, which every write counts up; None when it does not exist.
Number = int | None


class Written(Struct):
    """What clients know of one object."""

    number: Number = None
    in_flight: list[Number] = []  # in flight when the connection was lost

    def may_be(self, number: Number) -> bool:
        return number == self.number or number in self.in_flight


class History:
    """All changes that any client saw, in all lives of the server."""

    def __init__(self) -> None:
        self.objects: dict[str, Written] = {}
        self.by_revision: dict[int, tuple[str, Number]] = {}
        self.newest = 0
        self.written = 0

    def record(self, revision: int, name: str, number: Number) -> None:
        """Checks that a revision is one change of one object for every client, for ever."""
        assert self.by_revision.setdefault(revision, (name, number)) == (name, number), "a resourceVersion used twice"
        self.newest = max(self.newest, revision)


class Writer:
    """A client that writes its own objects."""

    def __init__(self, transport: HttpTransport, history: History, generator: random.Random, names: list[str]) -> None:
        self._transport = transport
        self._history = history
        self._generator = generator
        self._names = names
        self._floor = history.newest  # every write of this life is newer than all seen before

    async def run(self) -> None:
        """Writes until the server is killed."""
        with suppress(Unavailable):
            while True:
                await self._write(self._generator.choice(self._names))

    async def _write(self, name: str) -> None:
        known = self._history.objects.setdefault(name, Written())
        if known.number is None:
            after, call = 1, Call("POST", CONFIG_MAPS, {}, encode(_config_map(name, 1)))
        elif self._generator.random() < 0.25:
            after, call = None, Call("DELETE", f"{CONFIG_MAPS}/{name}")
        else:
            after = known.number + 1
            change = encode({"data": {"number": str(after)}})
            call = Call("PATCH", f"{CONFIG_MAPS}/{name}", {}, change, MERGE)
        known.in_flight = [after]
        answer = await self._transport.call(call)
        assert answer.code in (200, 201), answer.body
        known.number, known.in_flight = after, []
        self._history.written += 1
        if after is not None:
            revision = int(msgspec.json.decode(answer.body)["metadata"]["resourceVersion"])
            assert revision > self._floor
            self._history.record(revision, name, after)


class Watcher:
    """Mirrors all objects by list and watch, as any client does."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.revision = 0
        self.copy: dict[str, Number] = {}
        self.expired = 0

    async def run(self, transport: HttpTransport) -> None:
        with suppress(Unavailable):
            while True:
                try:
                    await self._follow(transport)
                except Gone:
                    self.expired += 1
                    self.revision, self.copy = await listed(transport, self._history)

    async def _follow(self, transport: HttpTransport) -> None:
        query = {"watch": "1", "resourceVersion": str(self.revision), "allowWatchBookmarks": "true"}
        async with transport.stream(Call("GET", CONFIG_MAPS, query)) as lines:
            async for line in lines:
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    raise Gone(event["object"]["message"])
                revision = int(event["object"]["metadata"]["resourceVersion"])
                assert revision > self.revision or event["type"] == "BOOKMARK", "an event told twice, or out of order"
                self.revision = revision
                if event["type"] != "BOOKMARK":
                    self._take(event["type"], event["object"])

    def _take(self, type_: str, object_: Json) -> None:
        name = object_["metadata"]["name"]
        number = None if type_ == "DELETED" else int(object_["data"]["number"])
        self._history.record(self.revision, name, number)
        self.copy[name] = number


async def listed(transport: HttpTransport, history: History) -> tuple[int, dict[str, Number]]:
    answer = await transport.call(Call("GET", CONFIG_MAPS))
    assert answer.code == 200
    listing = msgspec.json.decode(answer.body)
    copy: dict[str, Number] = dict.fromkeys(history.objects)
    for item in listing["items"]:
        copy[item["metadata"]["name"]] = int(item["data"]["number"])
        history.record(int(item["metadata"]["resourceVersion"]), item["metadata"]["name"], int(item["data"]["number"]))
    return int(listing["metadata"]["resourceVersion"]), copy


async def life(process: Process, history: History, watcher: Watcher, generator: random.Random) -> None:
    """One life of the server: recovery, writes, and its end."""
    transport = HttpTransport(process.endpoint)
    writing = HttpTransport(process.endpoint)  # separate, so that reads never wait for writes
    try:
        revision, numbers = await listed(transport, history)
        assert revision >= history.newest, "a change that somebody has seen is lost"
        for name, known in history.objects.items():
            assert known.may_be(numbers[name]), f"{name} is {numbers[name]}, and {known} was acknowledged"
            known.number, known.in_flight = numbers[name], []

        writers = [
            Writer(writing, history, generator, [f"client-{client}-{number}" for number in range(3)])
            for client in range(CLIENTS)
        ]
        tasks = [asyncio.create_task(work) for work in (watcher.run(transport), *(writer.run() for writer in writers))]
        end = history.written + generator.randrange(20, 150)
        while history.written < end:
            await asyncio.sleep(0)
            for task in tasks:
                if task.done():
                    task.result()
                    raise AssertionError("the server ended by itself")
        process.kill()
        await asyncio.gather(*tasks)
    finally:
        await closed(transport, writing)


async def closed(*transports: HttpTransport) -> None:
    """Closes every socket: a connection that was being established during the kill has no owner yet."""
    for transport in transports:
        await transport.close()
    sockets = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]
    while left := [transport_ for transport_ in sockets.values() if transport_._sock is not None]:
        for transport_ in left:
            transport_.abort()
        await asyncio.sleep(0)


async def settled(endpoint: Endpoint, history: History, watcher: Watcher) -> None:
    """Once the writers have stopped, the watcher's copy equals the list."""
    transport = HttpTransport(endpoint)
    watching = asyncio.create_task(watcher.run(transport))
    try:
        revision, numbers = await listed(transport, history)
        expected = {name: number for name, number in numbers.items() if number}
        async with asyncio.timeout(30):
            while True:
                if {name: number for name, number in watcher.copy.items() if number} == expected:
                    break
                await asyncio.sleep(0.01)
        assert watcher.revision <= revision
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await closed(transport)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "retained", [10_000, 100], ids=["with all history", "with a log that is compacted all the time"]
)
@pytest.mark.parametrize("seed", range(count(1, 20)))
def test_no_acknowledged_write_is_lost_and_no_revision_used_twice(tmp_path: Path, seed: int, retained: int) -> None:
    generator, history = random.Random(seed), History()
    watcher = Watcher(history)
    for _ in range(LIVES):
        with Process(tmp_path, retained=retained) as process:
            asyncio.run(life(process, history, watcher, generator))
    with Process(tmp_path, retained=retained) as process:
        asyncio.run(settled(process.endpoint, history, watcher))
    assert history.written > 100
    if retained > history.newest:
        assert watcher.expired <= 1, "with all history there is nothing to list again for"


@pytest.mark.timeout(120)
def test_a_full_disk_refuses_writes_serves_reads_and_loses_nothing(tmp_path: Path) -> None:
    acknowledged: dict[str, str] = {}

    async def write(transport: HttpTransport, number: int) -> bool:
        name, text = f"large-{number}", str(number) * 20_000
        body = encode(_config_map(name, 1) | {"data": {"text": text}})
        answer = await transport.call(Call("POST", CONFIG_MAPS, {}, body))
        if answer.code == 201:
            acknowledged[name] = text
            return True
        assert answer.code == 500
        assert "the change could not be stored: " in msgspec.json.decode(answer.body)["message"]
        return False

    async def texts(transport: HttpTransport) -> dict[str, str]:
        items = msgspec.json.decode((await transport.call(Call("GET", CONFIG_MAPS))).body)["items"]
        return {item["metadata"]["name"]: item["data"]["text"] for item in items}

    async def until_full(process: Process) -> None:
        transport = HttpTransport(process.endpoint)
        assert await write(transport, 0)
        process.limit_files(1_000_000)
        refused = 0
        for number in range(1, 200):
            refused += not await write(transport, number)
            if refused == 5:
                break
        assert refused == 5
        assert await texts(transport) == acknowledged
        process.limit_files(-1)
        assert await write(transport, 1000)
        process.limit_files(1_000_000)
        await write(transport, 1001)
        await closed(transport)

    async def is_all_there(endpoint: Endpoint) -> None:
        transport = HttpTransport(endpoint)
        assert await texts(transport) == acknowledged
        assert await write(transport, 2000)
        await closed(transport)

    with Process(tmp_path) as process:
        asyncio.run(until_full(process))
    with Process(tmp_path) as process:
        asyncio.run(is_all_there(process.endpoint))


def _config_map(name: str, number: int) -> Json:
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"number": str(number)}}
