"""A plane's API in plain calls, for set-up and for tests of the engine. Entry points: `Api`, `until`.

Objects are dictionaries here: most of them are of kinds that the project itself knows nothing of.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.errors import ApiError, Conflict, NotFound, from_status
from datum_compute.kube.meta import Json, decode, encode
from datum_compute.kube.transport import Call
from engine import EngineError

T = TypeVar("T")

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"
_POLL_SECONDS = 0.05
MANAGER = "engine"


class Api:
    """Raises the errors of `datum_compute.kube`; only `find` accepts that an object does not exist."""

    def __init__(self, plane: str, endpoint: Endpoint) -> None:
        self.plane = plane
        self._transport = BlockingTransport(endpoint, agent=MANAGER)

    def find(self, api_version: str, kind: str, name: str, namespace: str = "") -> Json | None:
        try:
            return self.get(api_version, kind, name, namespace)
        except NotFound:
            return None

    def get(self, api_version: str, kind: str, name: str, namespace: str = "") -> Json:
        return self._call("GET", path(api_version, kind, namespace, name))

    def items(self, api_version: str, kind: str, namespace: str = "", **query: str) -> list[Json]:
        answer = self._call("GET", path(api_version, kind, namespace), query=query)
        items: list[Json] = answer["items"]
        return items

    def create(self, body: Json) -> Json:
        return self._call("POST", path_of(body, whole=False), body)

    def apply(self, body: Json) -> Json:
        """Creates it or changes what differs; calling it again writes nothing."""
        query = {"fieldManager": MANAGER, "force": "true"}
        return self._call("PATCH", path_of(body), body, query=query, content_type=_APPLY)

    def replace(self, body: Json, subresource: str = "") -> Json:
        return self._call("PUT", path_of(body, subresource), body)

    def merge(self, body: Json, patch: Json, subresource: str = "") -> Json:
        """Changes the object that `body` names; its content does not matter."""
        return self._call("PATCH", path_of(body, subresource), patch, content_type=_MERGE)

    def delete(self, body: Json) -> None:
        try:
            self._call("DELETE", path_of(body))
        except NotFound:
            return

    def token(self, service_account: str, namespace: str, seconds: int) -> str:
        """A bearer token of a service account."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self._call(
            "POST",
            path("v1", "ServiceAccount", namespace, service_account, "token"),
            request | {"spec": {"expirationSeconds": seconds}},
        )
        token: str = answer["status"]["token"]
        return token

    def close(self) -> None:
        self._transport.close()

    def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        data = encode(body) if body is not None else b""
        answer = self._transport.call(Call(method, path, query or {}, data, content_type))
        if answer.code >= 300:
            raise from_status(answer.code, answer.body, self.plane)
        return decode(answer.body, dict[str, Any])


def until(what: str, check: Callable[[], T | None], seconds: float = 60.0) -> T:
    """The first truthy result of `check`. A failed call that may succeed later counts as no result."""
    deadline = time.monotonic() + seconds
    failure = ""
    while True:
        try:
            found = check()
            if found:
                return found
            failure = ""
        except ApiError as error:
            if not error.retryable and not isinstance(error, NotFound | Conflict):
                raise
            failure = f" ({error})"
        if time.monotonic() > deadline:
            raise EngineError(f"{what} did not happen within {seconds:.0f} s{failure}")
        time.sleep(_POLL_SECONDS)


def condition(body: Json, type_: str) -> str:
    """The status of a condition: True, False, Unknown, or empty when there is none."""
    conditions = body.get("status", {}).get("conditions") or ()
    return next((str(found["status"]) for found in conditions if found["type"] == type_), "")


def path_of(body: Json, subresource: str = "", *, whole: bool = True) -> str:
    """The path of an object, or, unless `whole`, of the collection in which it is created."""
    metadata = body["metadata"]
    name = metadata["name"] if whole else ""
    return path(body["apiVersion"], body["kind"], metadata.get("namespace", ""), name, subresource)


def path(api_version: str, kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    tail = "".join(f"/{part}" for part in (name, subresource) if part)
    return f"{root}{scope}/{_plural(kind)}{tail}"


def _plural(kind: str) -> str:
    """The plural of a kind as API servers guess it; correct for every kind used here."""
    singular = kind.lower()
    if singular.endswith("y"):
        return f"{singular[:-1]}ies"
    return f"{singular}es" if singular.endswith("s") else f"{singular}s"
