"""Who may read the metrics."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from datum_compute.kube.client import Client
from datum_compute.kube.errors import Unavailable
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator.serving import Guarded


class Host:
    """A cluster that knows one token, and lets its bearer read figures, or does not answer at all."""

    def __init__(self, *, allowed: bool = True, away: bool = False) -> None:
        self.reviews: list[Any] = []
        self._allowed = allowed
        self._away = away

    async def call(self, call: Call) -> Answer:
        if self._away:
            raise Unavailable("the host is away")
        spec = msgspec.json.decode(call.body)["spec"]
        self.reviews.append(spec)
        if call.path.endswith("/tokenreviews"):
            known = spec["token"] == "good"
            user = {"username": "prometheus", "groups": ["watchers"], "extra": {"a": ["b"]}}
            return Answer(201, msgspec.json.encode({"status": {"authenticated": known, "user": user if known else {}}}))
        return Answer(201, msgspec.json.encode({"status": {"allowed": self._allowed}}))

    def stream(self, call: Call) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError


async def _figures(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"figures"})


async def _get(host: Host, authorization: str) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", authorization.encode())] if authorization else []
    scope = {"method": "GET", "path": "/metrics", "headers": headers}
    await Guarded(_figures, Client("host", host))(scope, None, send)  # type: ignore[arg-type]
    code: int = sent[0]["status"]
    return code


@pytest.mark.parametrize(
    ("host", "authorization", "code"),
    [
        (Host(), "Bearer good", 200),
        (Host(), "bearer good", 200),
        (Host(), "", 401),
        (Host(), "Bearer ", 401),
        (Host(), "Basic good", 401),
        (Host(), "Bearer bad", 401),
        (Host(allowed=False), "Bearer good", 403),
        (Host(away=True), "Bearer good", 503),
    ],
)
async def test_metrics_are_served_only_to_callers_who_may_get_the_path(
    host: Host, authorization: str, code: int
) -> None:
    assert await _get(host, authorization) == code


async def test_the_access_review_names_the_caller_as_the_cluster_knows_them() -> None:
    host = Host()
    await _get(host, "Bearer good")
    assert host.reviews[1] == {
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        "user": "prometheus",
        "uid": "",
        "groups": ["watchers"],
        "extra": {"a": ["b"]},
    }
