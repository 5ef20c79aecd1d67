"""Admission webhook for workloads and deployments. Entry point: `Webhook`."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

import msgspec
import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry

from datum_compute.admission.deployments import refused
from datum_compute.admission.networks import networks_of, reviewed
from datum_compute.admission.workloads import facts_of, facts_of_locations
from datum_compute.api.accounts import Accounts
from datum_compute.api.networking import LOCATION, LOCATION_BINDING
from datum_compute.api.services import PARENT_NAME as PARENT
from datum_compute.api.validation import Facts, workload_violations
from datum_compute.api.validation.deployments import deployment_refusal
from datum_compute.api.workload import WORKLOAD
from datum_compute.federation.metrics import ALLOWED, FAILED, REFUSED, REVIEWED, UNAVAILABLE
from datum_compute.federation.roles import CELL, PROJECT
from datum_compute.federation.scope import is_in_cell
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, BadRequest, Cause, Invalid, NotFound, Subject
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.reviews import Caller, own_name
from datum_compute.runtime import Fleet, Plane
from datum_compute.runtime.serving.bodies import Bodies

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MUTATE = "/mutate-compute-datumapis-com-v1alpha-workload"
VALIDATE = "/validate-compute-datumapis-com-v1alpha-workload"
VALIDATE_DEPLOYMENT = "/validate-compute-datumapis-com-v1alpha-workloaddeployment"
PATHS = (MUTATE, VALIDATE, VALIDATE_DEPLOYMENT)
OF_PROJECT = "/projects/"  # suffix with the project's name, for API servers whose requests do not name it
API_VERSION = "admission.k8s.io/v1"

_BODY_BYTES = 7 * 1024 * 1024  # two objects of the largest size that API servers accept, and what surrounds them
_BODY_BYTES_TOGETHER = 32 * 1024 * 1024
_BODY_SECONDS = 30.0  # API servers do not wait longer for an answer

_log = structlog.get_logger(__name__)


class _Request(Struct, frozen=True, rename="camel"):
    uid: str
    operation: str = ""
    sub_resource: str = ""
    namespace: str = ""
    name: str = ""
    user_info: Caller = Caller()
    object: Json | None = None
    old_object: Json | None = None


class _Review(Struct, frozen=True, rename="camel"):
    request: _Request
    api_version: str = ""
    kind: str = ""


class Projects(Protocol):
    """Clients of projects, on every replica, leading or not."""

    def client(self, name: str) -> Client:
        """Raises `KeyError` for a project that is not known."""
        ...


class Webhook:
    """`project_of` returns the project of a caller where the URL does not name it.

    Requests for a project that is not engaged are refused, never admitted unchecked. `accounts` may write deployments,
    and so may the account of this process in the project.
    """

    def __init__(
        self,
        fleet: Fleet,
        projects: Projects,
        project_of: Callable[[Caller], str],
        accounts: Accounts = Accounts(),  # noqa: B008, frozen
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._reviewed = REVIEWED.counter(registry)
        self._fleet = fleet
        self._projects = projects
        self._project_of = project_of
        self._accounts = accounts
        self._own_names: dict[str, str] = {}  # by project, the user name of this process
        self._bodies = Bodies(_BODY_BYTES, seconds=_BODY_SECONDS, together=_BODY_BYTES_TOGETHER)
        fleet.join(self)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            code, body = 200, await self._answer(scope, receive)
        except ApiError as error:
            code, body = error.code, encode(error.status())
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Mapping[str, Any], receive: Receive) -> bytes:
        path, _, project = scope["path"].partition(OF_PROJECT)
        if path not in PATHS:
            raise NotFound(f"there is nothing at {scope['path']}")
        if scope["method"] != "POST":
            raise BadRequest("an AdmissionReview comes with POST")
        request = _decoded(await self._bodies.read(scope, receive))
        refusal: ApiError | None = None
        result = ALLOWED
        if path != MUTATE:  # mutation changes nothing: defaults are in the schema
            project = project or self._project_of(request.user_info)
            try:
                if path == VALIDATE:
                    refusal = await self._refusal(request, project)
                else:
                    refusal = await self._deployment_refusal(request, project)
                if refusal is not None:
                    result = UNAVAILABLE if isinstance(refusal, _NotConnected) else REFUSED
            except Exception as error:
                _log.error("admission crashed", exc_info=error)
                result = FAILED
                refusal = ApiError("the request could not be checked; try again")
        self._reviewed.labels(path, result).inc()
        response: Json = {"uid": request.uid, "allowed": refusal is None}
        if refusal is not None:
            response["status"] = refusal.status()
        return encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})

    async def _refusal(self, request: _Request, project: str) -> ApiError | None:
        if request.operation not in ("CREATE", "UPDATE"):
            return None
        after, before = request.object, request.old_object
        if after is None:
            return BadRequest("the review has no object to look at")
        try:
            plane = self._fleet.plane(project)
            if PROJECT not in plane.roles:
                return _not_connected(project)
            facts = _facts(plane)
            networks = networks_of(after) if _has_spec_change(before, after) else []
            client = self._projects.client(project)
        except (ApiError, KeyError):
            return _not_connected(project)
        facts = await reviewed(facts, client, request.user_info, request.namespace, networks)
        causes = workload_violations(after, facts, before)
        return _invalid(request.name, causes) if causes else None

    async def _deployment_refusal(self, request: _Request, project: str) -> ApiError | None:
        caller = request.user_info
        if self._accounts.include(caller.username, caller.groups) or self._is_delivered(project, request.namespace):
            return None
        sentence = deployment_refusal(request.operation, request.sub_resource, request.old_object, request.object)
        if not sentence or caller.username == await self._own_name(project):
            return None
        return refused(request.name, sentence)

    def _is_delivered(self, project: str, namespace: str) -> bool:
        """Whether the namespace is a cell's on a server that is a project as well, so that Karmada writes there."""
        try:
            plane = self._fleet.plane(project)
        except ApiError:
            return False
        return CELL in plane.roles and is_in_cell(plane, namespace)

    async def _own_name(self, project: str) -> str:
        """Empty without an answer; then only the configured accounts are ours."""
        if project not in self._own_names:
            try:
                self._own_names[project] = await own_name(self._projects.client(project))
            except (ApiError, KeyError):
                return ""
        return self._own_names[project]

    # As a member of the fleet: caches the offered cities before the first request

    def prepare(self, plane: Plane) -> None:
        if PROJECT in plane.roles:
            plane.declare(LOCATION_BINDING, optional=True)
            plane.declare(LOCATION, optional=True)
            if CELL in plane.roles:
                plane.declare(NAMESPACE)

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None:
        self._own_names.pop(plane.name, None)


def parent_of(caller: Caller) -> str:
    """The project whose API the caller used, according to Milo; empty when nothing says it."""
    return next(iter(caller.extra.get(PARENT, ())), "")


def _facts(plane: Plane) -> Facts:
    if plane.serves(LOCATION_BINDING):
        return facts_of(plane.informer(LOCATION_BINDING).all())
    return facts_of_locations(plane.informer(LOCATION).all())


def _has_spec_change(before: Json | None, after: Json) -> bool:
    try:
        return before is None or bool(before.get("spec") != after.get("spec"))
    except RecursionError:
        return True


class _NotConnected(ApiError):
    code, reason, retryable = 503, "ServiceUnavailable", True


def _not_connected(project: str) -> ApiError:
    if not project:
        return BadRequest(
            f"nothing says which project the request is for: the user's extra lacks {PARENT}; "
            f"let the webhook's URL end with {OF_PROJECT}<name>"
        )
    return _NotConnected(f'project "{project}" is not connected to compute; try again in a moment')


def _invalid(name: str, causes: list[Cause]) -> Invalid:
    listed = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    listed = f"[{listed}]" if len(causes) > 1 else listed
    about = Subject(name, WORKLOAD.group, WORKLOAD.name)
    return Invalid(f'{WORKLOAD.name}.{WORKLOAD.group} "{name}" is invalid: {listed}', causes=causes, about=about)


def _decoded(body: bytes) -> _Request:
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no AdmissionReview: {error}") from None
    if (review.api_version, review.kind) != (API_VERSION, "AdmissionReview"):
        raise BadRequest(f"the body is no AdmissionReview of {API_VERSION}")
    return review.request
