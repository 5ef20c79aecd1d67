"""Requests to a workload go on being answered while it rolls, and while a city fails."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CITY_CODE
from datum_compute.local.endpoints import Endpoints
from datum_compute.local.proxy import Proxy
from datum_compute.providers.simulated import CRASHING, Behaviour, Failure
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.embedded import EmbeddedFederation
from tests.scenarios.federation import Federation

A_SECOND = 20  # requests
SLOW = Behaviour(start_seconds=2, stop_seconds=1)


async def get(proxy: Proxy, host: str) -> tuple[int, dict[str, str], str]:
    """One GET request, as the server hands it to the application."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode())]
    scope = {"type": "http", "method": "GET", "raw_path": b"/", "query_string": b"", "headers": headers}
    await proxy(scope, receive, send)
    fields = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], fields, b"".join(message["body"] for message in sent[1:]).decode()


@pytest.mark.parametrize("seed", range(1, 4))
async def test_no_request_fails_while_a_workload_rolls(simulation: Simulation, seed: int) -> None:
    engine = EmbeddedFederation(simulation, SLOW)
    await engine.start()
    project = Federation(engine).project()
    await project.deploy("web", ["DFW", "ORD"], replicas=2)
    await engine.until(partial(project.is_ready, "web", 4), 60, "web is ready")

    endpoints = Endpoints(engine.local.manager.fleet, "demo")
    proxy = Proxy(endpoints)
    before = await _uids(engine)
    await project.set_image("web", "registry.example/web:2")
    answers: Counter[str] = Counter()
    while before & await _uids(engine) or not await project.is_ready("web", 4):
        assert simulation.time() < 120, "the roll does not end"
        status, fields, text = await get(proxy, "web.localhost:8088")
        assert status == 200, text
        assert text == f"hello from {fields['x-datum-instance']} in {fields['x-datum-city']} (simulated)\n"
        answers[fields["x-datum-instance"]] += 1
        await simulation.advance(1 / A_SECOND)
    assert answers.total() > 5 * A_SECOND
    assert set(answers) >= {"web-main-dfw-0", "web-main-dfw-1"}
    await engine.stop()


async def test_another_city_answers_while_the_first_one_has_no_instance(simulation: Simulation) -> None:
    def fails(instance: Instance) -> Failure | None:
        return CRASHING if instance.metadata.labels[CITY_CODE] == "DFW" else None

    engine = EmbeddedFederation(simulation, Behaviour(fails=fails))
    await engine.start()
    await Federation(engine).project().deploy("web", ["DFW", "ORD"], replicas=1)
    proxy = Proxy(Endpoints(engine.local.manager.fleet, "demo"))
    texts: list[str] = []

    async def answers() -> bool:
        status, _, text = await get(proxy, "web.localhost")
        texts.append(text)
        return status == 200

    await engine.until(answers, 60, "ORD answers")
    assert texts[-1] == "hello from web-main-ord-0 in ORD (simulated)\n"
    assert (await get(proxy, "dfw.web.localhost"))[2] == texts[-1], "the city is where it begins, not where it ends"
    assert (await get(proxy, "nope.localhost"))[0] == 421
    await engine.stop()


async def _uids(engine: EmbeddedFederation) -> set[str]:
    return {item.metadata.uid for cell in engine.cells.values() for item in (await cell.list(INSTANCE)).items}
