"""Stops or removes the containers of a federation that does not run. Entry point: `main`.

A process of its own, started by `local.daemon`, so that the command need not load a client of engines. It holds the
lock of the directory, so that no federation starts the containers again meanwhile.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from datum_compute.local import containers
from datum_compute.local.containers import Record
from datum_compute.local.daemon import STOP, Outcome
from datum_compute.local.state import LocalError, Paths, hold
from datum_compute.providers.containers.removal import remove_all, stop_all
from datum_compute.providers.containers.shape import Owner
from datum_compute.providers.engine.client import EngineClient
from datum_compute.providers.engine.interface import EngineError


def main(arguments: list[str]) -> int:
    action, paths = arguments[0], Paths(Path(arguments[1]))
    try:
        hold(paths.lock)  # until this process ends
        outcome = asyncio.run(_clean(action, containers.recall(paths).record))
    except BlockingIOError:
        outcome = Outcome(error="a federation has been started here meanwhile")
    except (EngineError, LocalError) as error:
        outcome = Outcome(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))
    return 0


async def _clean(action: str, record: Record) -> Outcome:
    if not record.address:
        return Outcome()  # the record is of another place, or no engine has anything of ours
    owner = Owner(record.id, record.directory)
    try:
        engine = await EngineClient.connect(record.address.removeprefix("unix://"))
    except EngineError as error:
        return Outcome(error=f"{record.address}: {error}")
    try:
        if action == STOP:
            return Outcome(await stop_all(engine, owner))
        removal = await remove_all(engine, owner)
        return Outcome(removal.containers, removal.networks, removal.images)
    finally:
        await engine.close()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
