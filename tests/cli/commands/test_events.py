"""What happened to a workload, as a user of the project sees it."""

import json
from datetime import timedelta

from datum_compute.kube.kinds import EVENT
from datum_compute.kube.meta import timestamp
from tests.cli.conftest import NOW, Compute, FakeClock, World
from tests.cli.server import ApiServer


def event(api: ApiServer, kind: str, name: str, message: str, minutes: int = 0) -> None:
    body = EVENT.body(f"{name}.{message.lower().replace(' ', '-')}", "default")
    at = timestamp(NOW - timedelta(minutes=minutes))
    about = {"kind": kind, "name": name, "namespace": "default"}
    api.create(EVENT, body | {"involvedObject": about, "reason": "X", "message": message, "lastTimestamp": at})


def test_events_are_listed_in_order_with_their_cities(
    api: ApiServer, compute: Compute, world: World, clock: FakeClock
) -> None:
    world.settled(("DFW",), 1)
    event(api, "Instance", "shop-default-dfw-0", "second", 5)
    event(api, "Workload", "shop", "first", 10)
    event(api, "Workload", "blog", "other", 1)
    event(api, "Workload", "shop", "long ago", 90)
    rows = json.loads(compute("events", "shop", "-o", "json").out)["events"]
    texts = [(row["city"], row["text"]) for row in rows if row["reason"] == "X"]
    assert texts == [(None, "first"), ("DFW", "second")]
    longer = compute("events", "shop", "--since=2h").out
    assert "X: long ago" in longer
    assert "second" not in compute("events", "shop", "--city=AMS").out


def test_nothing_is_said_plainly(compute: Compute, world: World, clock: FakeClock) -> None:
    world.settled(("DFW",), 1)
    clock.turn(7200)
    result = compute("events", "shop")
    assert result.lines == ["Nothing happened.", "Complete for the last 1h."]


def test_a_workload_that_does_not_exist_has_no_events(compute: Compute, world: World) -> None:
    assert compute("events", "nope").code == 3
