"""Who may read which logs, decided by the plane of their project. Entry point: `ProjectAccess`."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from datum_compute.api import GROUP
from datum_compute.api.instance import INSTANCE
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, Forbidden, Unauthorized, Unavailable
from datum_compute.kube.meta import Json
from datum_compute.kube.reviews import Caller, authenticate, may
from datum_compute.runtime import Clock
from datum_compute.telemetry.callers.front_proxy import FrontProxy
from datum_compute.telemetry.callers.identity import Rules, bearer, of_headers, of_token
from datum_compute.telemetry.sources import Reader

REMEMBERED_SECONDS = 10.0
_REMEMBERED = 4096
_REVIEWS_AT_ONCE = 8

T = TypeVar("T")
Scope = Mapping[str, Any]

_log = structlog.get_logger(__name__)


class Projects(Protocol):
    """The projects that this process knows."""

    def client(self, name: str) -> Client:
        """Raises `KeyError` for a project that is not known."""
        ...

    def namespaces(self, name: str) -> Collection[str]:
        """The namespaces of a project in which there is something to read, or any of them if there is nothing."""
        ...


class ProjectAccess:
    """Recognizes callers, and asks the project what they may do; what cannot be decided is refused.

    An `Access`. What it raises is `Unauthorized`, `Forbidden`, or `Unavailable` when the project does not answer.

    With `everywhere`, it is also asked whether a caller may read in all namespaces, also in those that are gone.
    """

    def __init__(
        self,
        rules: Rules,
        projects: Projects,
        clock: Clock,
        front_proxy: Callable[[], FrontProxy | None] = lambda: None,
        *,
        everywhere: bool = False,
    ) -> None:
        self._rules = rules
        self._projects = projects
        self._clock = clock
        self._front_proxy = front_proxy
        self._everywhere = everywhere
        self._callers: _Memory[Caller] = _Memory()
        self._strangers: _Memory[bool] = _Memory()  # apart, so that guesses displace no caller
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by project
        self._reviews: _Memory[bool] = _Memory()

    async def __call__(self, plane: str, scope: Scope, /) -> Reader:
        """`plane` is the project that the path names, if it does."""
        project, caller = await self.identify(plane, scope)
        if self._everywhere and await self._may(project, caller, _reading("")):
            return Reader(project)
        namespaces = sorted(self._projects.namespaces(project))
        allowed = await self._allowed(project, caller, namespaces)
        if not allowed:
            raise Forbidden(
                f'"{caller.username}" may not read logs in project {project}: '
                f'ask for the right to "get" {INSTANCE.plural}/log of {GROUP}'
            )
        return Reader(project, frozenset(allowed))

    async def may_run(self, project: str, caller: Caller, namespace: str, instance: str) -> bool:
        """Whether a caller may run commands in an Instance; raises `Unavailable` without an answer."""
        attributes = _attributes("create", "exec", namespace) | {"name": instance}
        return await self._may(project, caller, attributes)

    async def identify(self, plane: str, scope: Scope) -> tuple[str, Caller]:
        """The project that a request is for, and its caller."""
        if not plane and (caller := self._passed_on(scope)) is not None:
            project = of_headers(caller, self._rules)
            self._client(project)
            return project, caller
        token = bearer(scope["headers"])
        project = plane or self._rules.only
        if not project:
            raise Unauthorized("the request names no project; call /projects/NAME/control-plane/apis/...")
        return project, of_token(await self._authenticate(project, token), project, self._rules)

    def _passed_on(self, scope: Scope) -> Caller | None:
        """The caller named by the front proxy, if it sent the request."""
        proxy = self._front_proxy() if self._rules.passed_on else None
        chain = scope.get("extensions", {}).get("tls", {}).get("client_cert_chain") or ()
        if proxy is None or not chain or not proxy.sent(chain[0], self._clock.now()):
            return None
        return proxy.caller(scope["headers"])

    async def _authenticate(self, project: str, token: str) -> Caller:
        try:
            client = self._client(project)
        except Unavailable:  # so that nobody learns by guessing which projects there are
            raise Unauthorized("the token is not valid") from None
        key = (project, sha256(token.encode("utf-8", "surrogatepass")).digest())
        caller = self._callers.get(key)
        if caller is None and not self._strangers.get(key):
            caller = await self._recognized(project, client, token, key)
        if caller is None:
            raise Unauthorized("the token is not valid")
        return caller

    async def _recognized(self, project: str, client: Client, token: str, key: tuple[str, bytes]) -> Caller | None:
        """Asks the project. Anybody can send tokens, so only a few at once are reviewed, and each once in a while."""
        places = self._places.setdefault(project, asyncio.Semaphore(_REVIEWS_AT_ONCE))
        async with places:
            if (caller := self._callers.get(key)) is not None or self._strangers.get(key):
                return caller  # reviewed meanwhile
            caller = await self._answer(project, authenticate(client, token))
            if caller is None or not caller.username:
                self._strangers.put(key, True)
                return None
            self._callers.put(key, caller)
            return caller

    async def _allowed(self, project: str, caller: Caller, namespaces: Sequence[str]) -> list[str]:
        places = asyncio.Semaphore(_REVIEWS_AT_ONCE)

        async def review(namespace: str) -> bool:
            async with places:
                return await self._may(project, caller, _reading(namespace))

        answers = await asyncio.gather(*map(review, namespaces))
        return [namespace for namespace, allowed in zip(namespaces, answers, strict=True) if allowed]

    async def _may(self, project: str, caller: Caller, attributes: Json) -> bool:
        key = (project, msgspec.json.encode((caller, attributes), order="sorted"))
        allowed = self._reviews.get(key)
        if allowed is None:
            review = may(self._client(project), caller, {"resourceAttributes": attributes})
            allowed = await self._answer(project, review)
            self._reviews.put(key, allowed)
        return allowed

    def _client(self, project: str) -> Client:
        try:
            return self._projects.client(project)
        except KeyError:
            raise Unavailable("the project is not connected to compute; try again in a moment") from None

    async def _answer(self, project: str, question: Awaitable[T]) -> T:
        """Whatever keeps a project from answering, this process's own rights included, allows nothing."""
        try:
            return await question
        except ApiError as error:
            _log.warning("access to logs cannot be reviewed", project=project, error=str(error))
            raise Unavailable("the project cannot be asked who may read its logs; try again in a moment") from None


class _Memory(Generic[T]):
    """Answers for a few seconds of loop time, a bounded number of them."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bytes], tuple[float, T]] = {}

    def get(self, key: tuple[str, bytes]) -> T | None:
        expiry, answer = self._answers.get(key, (0.0, None))
        return answer if asyncio.get_running_loop().time() < expiry else None

    def put(self, key: tuple[str, bytes], answer: T) -> None:
        self._answers.pop(key, None)
        while len(self._answers) >= _REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (asyncio.get_running_loop().time() + REMEMBERED_SECONDS, answer)


def _reading(namespace: str) -> Json:
    return _attributes("get", "log", namespace)


def _attributes(verb: str, subresource: str, namespace: str) -> Json:
    return {
        "namespace": namespace,
        "verb": verb,
        "group": GROUP,
        "version": INSTANCE.version,
        "resource": INSTANCE.plural,
        "subresource": subresource,
    }
