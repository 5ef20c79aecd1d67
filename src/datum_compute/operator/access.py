"""Lets only those see figures whom the cluster lets. Entry point: `Guarded`."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import structlog

from datum_compute.admission.reviews import authenticate, may
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

_log = structlog.get_logger(__name__)


class Guarded:
    """An ASGI application behind the cluster's own authentication and authorization, as kubelets and Prometheus expect.

    The question is whether the bearer of the token may `get` the path; the shipped roles have no answer to it, so that
    whoever scrapes is granted it by name.
    """

    def __init__(self, application: Application, client: Client) -> None:
        self._application = application
        self._client = client

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        code = await self._refusal(scope)
        if code is None:
            await self._application(scope, receive, send)
            return
        words = {401: b"Unauthorized", 403: b"Forbidden", 503: b"the cluster cannot be asked who you are"}
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(words[code])).encode())]
        if code == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": words[code]})

    async def _refusal(self, scope: Mapping[str, Any]) -> int | None:
        """The code to refuse with; None for who may come in."""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return 401
        asked = {"path": scope["path"], "verb": scope["method"].lower()}
        try:
            caller = await authenticate(self._client, token.strip())
            if caller is None:
                return 401
            return None if await may(self._client, caller, {"nonResourceAttributes": asked}) else 403
        except ApiError as error:
            _log.warning("access to figures cannot be reviewed", error=str(error))
            return 503
