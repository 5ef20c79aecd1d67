"""Deletes old Events, like a kube-apiserver. Entry point: `delete_expired_events`."""

from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from datum_compute.embedded.kinds.builtin import EVENTS
from datum_compute.embedded.plane import registry
from datum_compute.embedded.plane.server import Submit
from datum_compute.embedded.storage.records import Key, Record
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import EVENT


async def delete_expired_events(plane: str, store: Store, submit: Submit, now: datetime, ttl: timedelta) -> None:
    """Deletes the Events of a plane that last occurred `ttl` ago; watchers see ordinary deletions."""
    for (namespace, name), record in store.records(plane, EVENTS.resource).items():
        if _is_expired(record, now - ttl):
            key = Key(plane, EVENTS.resource, namespace, name)
            uid, revision = record.metadata.uid, record.metadata.resource_version
            with suppress(ApiError):  # it changed meanwhile, or the disk is full; the next sweep tries again
                await submit(registry.delete(EVENTS, key, now=now, uid=uid, revision=revision))


def _is_expired(record: Record, before: datetime) -> bool:
    created = record.metadata.creation_timestamp
    if created is None or created > before or record.metadata.deleting:
        return False
    try:
        last = EVENT.decode(record.value).last_timestamp
    except msgspec.MsgspecError:  # of a client with fields of other types
        return True
    return last is None or last <= before
