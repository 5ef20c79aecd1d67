"""compute-manager gives every malformed review a proper answer, and lives on."""

import http.client
import json
import random
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from datum_compute.admission.webhook import VALIDATE
from datum_compute.api.networking import LOCATION_BINDING
from tests.flood import GRANTED_BYTES, resident
from tests.operator.malformed import Sent, malformed, review
from tests.operator.processes import CITY, PROJECT_NAME, Manager, Site, until

pytestmark = pytest.mark.timeout(300)

REVIEWS = 5_000
WARM_UP = 500  # after these, what is loaded on first use is loaded


@contextmanager
def _connected(manager: Manager) -> Iterator[http.client.HTTPSConnection]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", manager.port("webhook"), timeout=60, context=context)
    try:
        yield connection
    finally:
        connection.close()


def _answer(connection: http.client.HTTPSConnection, path: str, body: bytes) -> tuple[int, Any]:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def _is_proper(code: int, answer: Any) -> bool:
    """A review with a decision, or a Status that says what is wrong with the request."""
    if code != 200:
        return code in (400, 404) and (answer["kind"], answer["code"]) == ("Status", code) and bool(answer["message"])
    response = answer["response"]
    if (answer["kind"], answer["apiVersion"]) != ("AdmissionReview", "admission.k8s.io/v1"):
        return False
    status = response.get("status", {})
    return isinstance(response["uid"], str) and (response["allowed"] is True or bool(status["message"]))


def test_thousands_of_malformed_reviews_are_answered_and_cost_little(site: Site, start: Callable[..., Manager]) -> None:
    manager = start(
        "management",
        f"""
discovery:
  mode: milo
  discoveryKubeconfigPath: {site.directory}/root.kubeconfig
  projectKubeconfigPath: {site.directory}/root.kubeconfig
webhookServer: {{host: 127.0.0.1, port: 0, tls: {{selfSigned: {{}}}}}}
""",
        f"--kubeconfig={site.directory}/root.kubeconfig",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--leader-elect-namespace=compute-system",
        "--enable-management-controllers",
        "--builtins=entitlement,locations",
    )
    manager.until_ready()
    site.entitle()

    async def is_offered() -> bool:
        return bool((await site.client(PROJECT_NAME).list(LOCATION_BINDING)).items)

    site.until(is_offered, "the city is offered")
    generator = random.Random(1)
    improper: list[tuple[int, Sent, int, Any]] = []
    codes: dict[int, int] = {}
    before = 0
    with _connected(manager) as connection:
        good = json.dumps(review(PROJECT_NAME, CITY)).encode()
        usual = _answer(connection, VALIDATE, good)
        for number in range(REVIEWS):
            if number == WARM_UP:
                before = resident(manager.process.pid)
            sent = malformed(generator, PROJECT_NAME, CITY)
            code, answer = _answer(connection, sent.path, sent.body)
            codes[code] = codes.get(code, 0) + 1
            if not _is_proper(code, answer):
                improper.append((number, sent, code, answer))
        assert improper == []
        assert _answer(connection, VALIDATE, good) == usual, "it decides as before"
    grown = resident(manager.process.pid) - before
    print(f"answers by code: {codes}, grown by {grown / 1e6:.1f} MB")
    assert codes[200] > REVIEWS / 10
    assert codes[400] > REVIEWS / 10
    assert grown < GRANTED_BYTES
    assert [line.get("exception") for line in manager.lines() if line.get("level") == "error"] == []
    assert manager.terminate() == 0
    until(lambda: manager.process.poll() is not None, "it has ended")
