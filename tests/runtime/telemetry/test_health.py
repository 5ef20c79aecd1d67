import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from structlog.testing import capture_logs

from datum_compute.kube.errors import Forbidden
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.transport import Answer, Call
from datum_compute.runtime.caches.informer import Informer
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.telemetry.health import (
    CHECK_SECONDS,
    LATE_SECONDS,
    STALLED_SECONDS,
    Check,
    Heartbeat,
    Probes,
    Unhealthy,
    all_tried,
    away,
    caches_follow,
    engaged,
    latched,
)
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.server import WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes

OK: dict[str, Check] = {}


async def ask(probes: Probes, path: str, method: str = "GET", accept: str = "") -> tuple[int, str, dict[str, str]]:
    sent: list[Mapping[str, Any]] = []

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    route, _, query = path.partition("?")
    headers = [(b"accept", accept.encode())] if accept else []
    scope = {"type": "http", "method": method, "path": route, "query_string": query.encode(), "headers": headers}
    await probes(scope, None, send)
    start, body = sent
    return start["status"], body["body"].decode(), {key.decode(): value.decode() for key, value in start["headers"]}


def unwell() -> bool:
    raise Unhealthy("the oven is cold")


def defective() -> bool:
    raise RuntimeError("password=hunter2")


async def never() -> bool:
    await asyncio.get_running_loop().create_future()
    return True


async def slowly() -> bool:
    await asyncio.sleep(CHECK_SECONDS / 2)
    return True


# Answers


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/healthz/", "/readyz/ping"])
async def test_a_probe_answers_ok_when_all_checks_pass(simulation: Simulation, path: str) -> None:
    code, text, headers = await ask(Probes(OK, OK), path)
    assert (code, text) == (200, "ok")
    assert headers["content-length"] == "2"


async def test_a_note_appears_in_the_verbose_answer_and_fails_nothing(simulation: Simulation) -> None:
    notes = {"name": lambda: "somebody else has it", "calm": lambda: ""}
    probes = Probes({}, {}, notes=notes)
    code, text, _ = await ask(probes, "/readyz?verbose")
    assert (code, text) == (200, "[+]ping ok\n[!]name: somebody else has it\nreadyz check passed\n")
    assert (await ask(probes, "/readyz"))[:2] == (200, "ok")
    assert "[!]" not in (await ask(probes, "/healthz?verbose"))[1]


async def test_verbose_lists_every_check(simulation: Simulation) -> None:
    probes = Probes(OK, {"projects": slowly, "caches": lambda: True})
    code, text, _ = await ask(probes, "/readyz?verbose")
    assert (code, text) == (200, "[+]ping ok\n[+]projects ok\n[+]caches ok\nreadyz check passed\n")


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (unwell, "[-]oven failed: the oven is cold"),
        (lambda: False, "[-]oven failed: the check did not pass"),
        (never, "[-]oven failed: no answer within 2 s"),
        (defective, "[-]oven failed: the check failed (RuntimeError)"),
    ],
)
async def test_a_failing_check_says_why_and_does_not_affect_others(
    simulation: Simulation, check: Check, line: str
) -> None:
    code, text, _ = await ask(Probes(OK, {"oven": check, "last": slowly}), "/readyz")
    assert (code, text) == (500, f"[+]ping ok\n{line}\n[+]last ok\nreadyz check failed\n")


async def test_checks_run_concurrently_under_one_deadline(simulation: Simulation) -> None:
    await ask(Probes(OK, {f"check-{number}": never for number in range(10)}), "/readyz")
    assert simulation.time() == CHECK_SECONDS


async def test_liveness_and_readiness_have_separate_checks(simulation: Simulation) -> None:
    probes = Probes(OK, {"oven": unwell})
    assert (await ask(probes, "/healthz"))[0] == 200
    assert (await ask(probes, "/readyz"))[0] == 500


async def test_a_check_can_be_excluded_or_run_alone(simulation: Simulation) -> None:
    probes = Probes(OK, {"oven": unwell, "caches": lambda: True})
    assert (await ask(probes, "/readyz?exclude=oven"))[0] == 200
    assert (await ask(probes, "/readyz/caches"))[0] == 200
    assert (await ask(probes, "/readyz/oven"))[0] == 500


@pytest.mark.parametrize(
    ("path", "method", "code"),
    [("/", "GET", 404), ("/readyz/unknown", "GET", 404), ("/metrics", "GET", 404), ("/healthz", "POST", 405)],
)
async def test_an_unknown_path_is_not_found(simulation: Simulation, path: str, method: str, code: int) -> None:
    assert (await ask(Probes(OK, OK), path, method))[0] == code


async def test_a_head_request_gets_headers_and_no_body(simulation: Simulation) -> None:
    code, text, headers = await ask(Probes(OK, OK), "/healthz", "HEAD")
    assert (code, text, headers["content-length"]) == (200, "", "2")


async def test_metrics_have_the_format_that_the_client_accepts(simulation: Simulation) -> None:
    registry = CollectorRegistry()
    Gauge("ovens", "Ovens.", registry=registry).set(3)
    probes = Probes(OK, OK, registry)
    code, text, headers = await ask(probes, "/metrics")
    assert (code, headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert "ovens 3.0" in text.splitlines()
    _, text, headers = await ask(probes, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


# The loop


class Late(Simulation):
    """A loop whose time can pass without it noticing, as when something computes for long."""

    def block(self, seconds: float) -> None:
        self._time += seconds


async def test_a_loop_that_keeps_up_is_not_late(simulation: Simulation) -> None:
    heartbeat = Heartbeat()
    assert heartbeat.check()
    async with background(heartbeat.run()):
        await simulation.advance(10)
        assert heartbeat.lag == 0.0


def test_a_blocked_loop_is_reported_until_it_keeps_up_again() -> None:
    async def blocked(loop: Late) -> None:
        heartbeat = Heartbeat()
        async with background(heartbeat.run()):
            await loop.advance(0.5)
            loop.block(LATE_SECONDS + 3)
            with pytest.raises(Unhealthy, match="the event loop is 8 s late"):  # before the beat that comes too late
                heartbeat.check()
            await loop.settle()
            await loop.advance(0.1)
            with pytest.raises(Unhealthy, match="the event loop is"):  # and after it
                heartbeat.check()
            await loop.advance(2)
            assert heartbeat.check()

    with asyncio.Runner(loop_factory=lambda: Late.seeded(1)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Late)
        runner.run(blocked(loop))


# The caches


class World:
    def __init__(self, simulation: Simulation) -> None:
        self.fleet = Fleet()
        self.faults = Faults(InProcess(Server()), simulation.random)
        self.plane = Plane("a", "east", self.faults, writes=Writes(), generator=simulation.random)
        self.plane.informer(WIDGET)
        self.fleet.add(self.plane)


async def test_caches_that_follow_their_servers_stay_healthy(simulation: Simulation) -> None:
    world = World(simulation)
    async with background(world.fleet.run()):
        await simulation.settle()
        check = caches_follow(world.fleet)
        for _ in range(24):
            await simulation.advance(3600)
            assert check()


async def test_a_cache_that_hangs_while_its_plane_answers_is_unhealthy(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(self: Informer[Any]) -> None:
        await asyncio.get_running_loop().create_future()

    world = World(simulation)
    async with background(world.fleet.run()):
        await simulation.settle()
        monkeypatch.setattr(Informer, "_round", hang)
        await simulation.advance(STALLED_SECONDS * 2)
        with pytest.raises(Unhealthy, match=r"the cache of widgets.example.test on a heard nothing for \d+ s"):
            caches_follow(world.fleet)()


async def test_a_plane_that_is_away_is_no_reason_to_restart(simulation: Simulation) -> None:
    world = World(simulation)
    async with background(world.fleet.run()):
        await simulation.settle()
        world.faults.take_away()
        await simulation.advance(STALLED_SECONDS * 2)
        assert caches_follow(world.fleet)()


async def test_planes_are_engaged_when_their_caches_are_filled(simulation: Simulation) -> None:
    world = World(simulation)
    check = engaged(world.fleet, "a", "b")
    with pytest.raises(Unhealthy, match="not engaged yet: a, b"):
        check()
    async with background(world.fleet.run()):
        await simulation.settle()
        with pytest.raises(Unhealthy, match=r"not engaged yet: b$"):
            check()
        assert engaged(world.fleet, "a")()


# Planes


class Cached:
    """A fleet of planes with one cache each."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.servers: dict[str, Server] = {}
        self.faults: dict[str, Faults] = {}

    def add(self, name: str) -> None:
        self.servers[name] = Server()
        self.faults[name] = Faults(InProcess(self.servers[name]), random.Random(1))
        plane = Plane(name, "east", self.faults[name], writes=Writes(), generator=random.Random(1))
        plane.informer(WIDGET)
        self.fleet.add(plane)


async def test_every_plane_was_tried_when_each_is_engaged_or_has_failed_once(simulation: Simulation) -> None:
    cached = Cached()
    for name in ("well", "away", "slow"):
        cached.add(name)
    cached.faults["away"].take_away()
    cached.servers["slow"].answering.clear()
    probes = Probes({}, {"planes-tried": all_tried(cached.fleet)})
    async with background(cached.fleet.run()):
        await simulation.settle()
        code, text, _ = await ask(probes, "/readyz")
        assert (code, "not tried yet: slow\n" in text) == (500, True)
        cached.servers["slow"].answering.set()
        await simulation.settle()
        assert (await ask(probes, "/readyz"))[:2] == (200, "ok")


async def test_a_plane_that_hangs_delays_others_only_briefly(simulation: Simulation) -> None:
    cached = Cached()
    cached.add("hung")
    cached.servers["hung"].answering.clear()
    probes = Probes({}, {"planes-tried": all_tried(cached.fleet)})
    async with background(cached.fleet.run()):
        await simulation.settle()
        assert (await ask(probes, "/readyz"))[0] == 500
        await asyncio.sleep(30)
        assert (await ask(probes, "/readyz"))[0] == 200


async def test_a_latched_check_passes_for_good_once_it_has_passed(simulation: Simulation) -> None:
    answers: list[bool] = [False, True, False]

    async def later() -> bool:
        return answers.pop(0)

    probes = Probes({}, {"now": latched(lambda: answers.pop(0)), "later": latched(later)})
    codes = [(await ask(probes, "/readyz/now"))[0] for _ in range(5)]
    assert codes == [500, 200, 200, 200, 200]
    answers[:] = [False, True, False]
    codes = [(await ask(probes, "/readyz/later"))[0] for _ in range(5)]
    assert codes == [500, 200, 200, 200, 200]


async def test_planes_that_are_away_are_listed_in_the_verbose_answer(simulation: Simulation) -> None:
    cached = Cached()
    for name in ("a", "b", "c"):
        cached.add(name)
    probes = Probes({}, {}, notes={"planes": away(cached.fleet)})
    async with background(cached.fleet.run()):
        await simulation.settle()
        assert "planes" not in (await ask(probes, "/readyz?verbose"))[1]
        cached.faults["a"].take_away()
        cached.servers["b"].refuse_watches = Forbidden("no")
        cached.servers["b"].end_watches()
        await asyncio.sleep(10)
        code, text, _ = await ask(probes, "/readyz?verbose")
        assert (code, text.splitlines()[1]) == (200, "[!]planes: 2 of 3 are away: a (connect), b (authorization)")
        cached.fleet.remove("b")
        cached.faults["a"].bring_back()
        await asyncio.sleep(10)
        assert "planes" not in (await ask(probes, "/readyz?verbose"))[1]


async def test_a_line_names_only_a_few_planes(simulation: Simulation) -> None:
    cached = Cached()
    for number in range(12):
        cached.add(f"plane-{number:02}")
    text = away(cached.fleet)()
    assert text.startswith("12 of 12 are away: plane-00, ")
    assert text.endswith(", plane-09 and 2 more")


async def test_a_defect_in_a_cache_is_no_reason_to_restart(simulation: Simulation) -> None:
    class Defective(InProcess):
        defective = False

        async def call(self, call: Call) -> Answer:
            if self.defective:
                raise KeyError("nobody foresaw this")
            return await super().call(call)

    fleet, server = Fleet(), Server()
    transport = Defective(server)
    plane = Plane("p", "east", transport, writes=Writes(), generator=random.Random(1))
    plane.informer(WIDGET)
    fleet.add(plane)
    with capture_logs():
        async with background(fleet.run()):
            await simulation.settle()
            transport.defective = True
            server.forget_history()
            server.end_watches()
            await asyncio.sleep(2 * STALLED_SECONDS)
            assert plane.failures.defects["Widget", "list"] > 100
            assert caches_follow(fleet)()
