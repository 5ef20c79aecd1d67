import asyncio
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, ServerError, Unauthorized, Unavailable
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.runtime.caches.failures import REPEAT_SECONDS
from datum_compute.runtime.caches.informer import STALL_SECONDS
from datum_compute.runtime.plane import Plane
from datum_compute.runtime.testing.faults import Faults
from datum_compute.runtime.testing.server import GADGET, WIDGET, Server, background
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.runtime.writes import Writes
from tests.https import Background


class Setup:
    """One plane with two caches."""

    def __init__(self) -> None:
        self.server = Server()
        self.faults = Faults(InProcess(self.server), random.Random(1))
        self.plane = Plane("p", "east", self.faults, writes=Writes(), generator=random.Random(1))
        self.plane.informer(WIDGET)
        self.plane.informer(GADGET)


@pytest.fixture
def setup() -> Setup:
    return Setup()


def lines(logs: list[Any], level: str) -> list[Any]:
    return [line for line in logs if line["log_level"] == level]


def ends(logs: list[Any]) -> list[Any]:
    return [line for line in lines(logs, "warning") if line["event"] == "plane is followed again"]


async def test_an_outage_is_one_warning_when_it_begins_and_one_when_it_ends(
    setup: Setup, simulation: Simulation
) -> None:
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await simulation.settle()
            assert lines(logs, "warning") == []
            setup.faults.take_away()
            await asyncio.sleep(60)
            (warning,) = lines(logs, "warning")
            assert (warning["plane"], warning["phase"]) == ("p", "connect")
            assert warning["check"].startswith("check ")
            setup.faults.bring_back()
            await asyncio.sleep(60)
            (end,) = ends(logs)
            assert end["plane"] == "p"
            assert len(lines(logs, "warning")) == 2
            assert 60 <= end["after_seconds"] <= 67


async def test_during_an_outage_the_warning_is_repeated_every_few_minutes(setup: Setup, simulation: Simulation) -> None:
    setup.faults.take_away()
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await asyncio.sleep(12 * REPEAT_SECONDS)
    assert 10 <= len(lines(logs, "warning")) <= 12


async def test_a_plane_that_comes_and_goes_is_not_logged_each_time(setup: Setup, simulation: Simulation) -> None:
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            for _ in range(10):
                setup.faults.take_away()
                await asyncio.sleep(10)
                setup.faults.bring_back()
                await asyncio.sleep(10)
    assert len(lines(logs, "warning")) == 2


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (Unauthorized("the token has expired"), "authentication"),
        (Forbidden("widgets is forbidden"), "authorization"),
        (NotFound("404 page not found"), "list"),
        (ServerError("etcd is sad"), "list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_refusal_from_the_start_is_one_warning_that_names_the_phase(
    setup: Setup, simulation: Simulation, error: ApiError, phase: str
) -> None:
    setup.server.refuse = [error] * 1000
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await asyncio.sleep(REPEAT_SECONDS - 10)
    (warning,) = lines(logs, "warning")
    assert (warning["plane"], warning["phase"], warning["error"]) == ("p", phase, str(error))
    assert setup.plane.failures.phase is not None
    assert setup.plane.failures.phase.value == phase


# Over HTTPS


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    background = Background(tmp_path_factory.mktemp("https"))
    yield background
    background.close()


def another_authority(endpoint: Endpoint, directory: Path) -> Endpoint:
    return structs.replace(endpoint, ca_pem=Credentials.ensure(directory, datetime.now(UTC)).authority_pem)


@pytest.mark.parametrize(
    ("changed", "phase"),
    [
        (lambda endpoint, _: structs.replace(endpoint, server="https://127.0.0.1:1"), "connect"),
        (another_authority, "TLS"),
        (lambda endpoint, _: structs.replace(endpoint, server=endpoint.server.replace("https:", "http:")), "connect"),
        (lambda endpoint, _: structs.replace(endpoint, token="wrong"), "authentication"),
        (lambda endpoint, _: structs.replace(endpoint, token="", token_file="/nowhere/token"), "authentication"),
        (lambda endpoint, _: structs.replace(endpoint, server=f"{endpoint.server}/elsewhere"), "list"),
        (lambda endpoint, _: structs.replace(endpoint, server=f"{endpoint.server}/version?"), "list"),
    ],
    ids=["nobody listens", "wrong authority", "plain HTTP", "wrong token", "no token file", "wrong path", "no API"],
)
def test_an_endpoint_that_is_wrong_from_the_start_is_one_warning_that_names_the_phase(
    api: Background, tmp_path: Path, changed: Callable[[Endpoint, Path], Endpoint], phase: str
) -> None:
    async def scenario() -> None:
        endpoint = changed(api.server.endpoint("demo"), tmp_path)
        transport = HttpTransport(endpoint)
        plane = Plane("hub", "hub", transport, writes=Writes(), generator=random.Random(1))
        informer = plane.informer(NAMESPACE)
        async with background(plane.run()), asyncio.timeout(60):
            while sum(plane.failures.by_phase.values()) < 3:  # noqa: ASYNC110 (a look now and then)
                await asyncio.sleep(0.01)
        assert not informer.synced.is_set()
        await transport.close()

    with capture_logs() as logs:
        asyncio.run(scenario())
    (warning,) = lines(logs, "warning")
    assert (warning["plane"], warning["phase"]) == ("hub", phase)
    assert warning["check"].startswith("check ")
    assert "wrong" not in f"{warning}"


# Watches


async def test_a_refused_watch_has_its_own_warning(setup: Setup, simulation: Simulation) -> None:
    setup.server.refuse_watches = ServerError("no room for watches")
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await simulation.settle()
            (warning,) = lines(logs, "warning")
            assert warning["phase"] == "watch"
            setup.server.refuse_watches = None
            await asyncio.sleep(10)
            assert len(ends(logs)) == 1
            assert setup.plane.failures.phase is None


async def test_a_broken_watch_that_can_be_reopened_is_not_an_outage(setup: Setup, simulation: Simulation) -> None:
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            for _ in range(10):
                setup.faults.cut_watches()
                await asyncio.sleep(10)
    assert lines(logs, "warning") == []


async def test_an_answer_that_cannot_be_read_is_a_warning(setup: Setup, simulation: Simulation) -> None:
    setup.server.garbage = [b"<html>"] * 1000
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await asyncio.sleep(10)
    assert [warning["phase"] for warning in lines(logs, "warning")] == ["decode"]


async def test_a_line_that_cannot_be_read_is_a_warning_even_in_an_open_watch(
    setup: Setup, simulation: Simulation
) -> None:
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await simulation.settle()
            setup.server.send(b"<html>")
            await asyncio.sleep(10)
    assert [warning["phase"] for warning in lines(logs, "warning") if "phase" in warning] == ["decode"]
    assert len(ends(logs)) == 1


async def test_a_plane_is_back_only_when_every_cache_follows(setup: Setup, simulation: Simulation) -> None:
    setup.server.unserved = {"gadgets"}
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await asyncio.sleep(10)
            (warning,) = lines(logs, "warning")
            assert (warning["kind"], warning["phase"]) == ("Gadget", "list")
            assert "gadgets.example.test" in warning["check"]
            setup.faults.take_away()
            await asyncio.sleep(10)
            setup.faults.bring_back()
            await asyncio.sleep(10)
            assert ends(logs) == []
            setup.server.unserved = set()
            await asyncio.sleep(10)
            assert len(ends(logs)) == 1


async def test_a_plane_that_falls_silent_is_noticed(setup: Setup, simulation: Simulation) -> None:
    with capture_logs() as logs:
        async with background(setup.plane.run()):
            await simulation.settle()
            setup.faults.silence_watches()
            setup.server.refuse = [Unavailable("nobody is there")] * 1000
            await asyncio.sleep(STALL_SECONDS + 10)
    assert len(lines(logs, "warning")) == 1


async def test_failures_and_defects_are_counted_by_kind_and_phase(setup: Setup, simulation: Simulation) -> None:
    setup.server.refuse = [Forbidden("no")] * 4
    async with background(setup.plane.run()):
        await asyncio.sleep(60)
    assert sum(setup.plane.failures.by_phase.values()) == 4
    assert set(setup.plane.failures.by_phase) <= {("Widget", "authorization"), ("Gadget", "authorization")}
    assert setup.plane.failures.defects == {}
