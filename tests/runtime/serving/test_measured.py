"""Requests to known paths are counted and timed; strangers cannot make series."""

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.runtime.serving.measured import Measured
from datum_compute.runtime.testing.simulation import Simulation
from tests.metrics import samples

PATHS = ("/check", "/check-loaf")


class Application:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.code = 200
        self.seen: list[str] = []

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        self.seen.append(scope["path"])
        await self.simulation.advance(2)
        if not self.code:
            raise RuntimeError
        await send({"type": "http.response.start", "status": self.code, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def application(simulation: Simulation) -> Application:
    return Application(simulation)


async def ask(measured: Measured, path: str) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    await measured({"type": "http", "method": "POST", "path": path}, receive, send)
    return sent


async def test_requests_are_counted_by_path_and_code(application: Application, registry: CollectorRegistry) -> None:
    measured = Measured(application, PATHS, registry)
    assert (await ask(measured, "/check"))[0]["status"] == 200
    await ask(measured, "/check/of/bakery")
    application.code = 413
    await ask(measured, "/check-loaf")

    def requests(webhook: str, code: str) -> float | None:
        return registry.get_sample_value(
            "controller_runtime_webhook_requests_total", {"webhook": webhook, "code": code}
        )

    assert (requests("/check", "200"), requests("/check-loaf", "413"), requests("/check-loaf", "200")) == (2, 1, 0)
    assert registry.get_sample_value("controller_runtime_webhook_latency_seconds_sum", {"webhook": "/check"}) == 4
    assert registry.get_sample_value("controller_runtime_webhook_requests_in_flight", {"webhook": "/check"}) == 0


async def test_a_crash_is_counted_as_a_failure(application: Application, registry: CollectorRegistry) -> None:
    application.code = 0
    with pytest.raises(RuntimeError):
        await ask(Measured(application, PATHS, registry), "/check")
    labels = {"webhook": "/check", "code": "500"}
    assert registry.get_sample_value("controller_runtime_webhook_requests_total", labels) == 1


async def test_paths_that_nobody_registered_make_no_series(
    application: Application, registry: CollectorRegistry
) -> None:
    measured = Measured(application, PATHS, registry)
    before = set(samples(registry))
    for number in range(100):
        await ask(measured, f"/guess-{number}")
    assert set(samples(registry)) == before
    assert len(application.seen) == 100
