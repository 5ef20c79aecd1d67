"""Asks an API server who a caller is, and what they may do. Entry points: `authenticate`, `own_name`, `may`.

`may_self` asks the same about this process.
"""

from typing import Any

from msgspec import Struct

from datum_compute.kube.client import Client
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, ObjectMeta, optional_part


class Caller(Struct, frozen=True):
    """A caller as the API server knows them. All of it counts: without `extra`, an allowed caller may be denied."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _TokenStatus(Struct, frozen=True):
    authenticated: bool = False
    user: Caller = Caller()


class _SelfStatus(Struct, frozen=True, rename="camel"):
    user_info: Caller = Caller()


class _AccessStatus(Struct, frozen=True):
    allowed: bool = False


class _Review(KubeObject, frozen=True):
    """A question that is answered at once and never stored."""

    metadata: ObjectMeta = ObjectMeta()


class _TokenReview(_Review, frozen=True):
    status = optional_part("status_json", _TokenStatus)


class _SelfReview(_Review, frozen=True):
    status = optional_part("status_json", _SelfStatus)


class _AccessReview(_Review, frozen=True):
    status = optional_part("status_json", _AccessStatus)


TOKEN_REVIEW = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", _TokenReview, namespaced=False)
SELF_REVIEW = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", _SelfReview, namespaced=False
)
ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", _AccessReview, namespaced=False
)

SELF_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", _AccessReview, namespaced=False
)


async def authenticate(client: Client, token: str) -> Caller | None:
    """The caller that a bearer token belongs to; None if it is not valid. Raises `ApiError` without an answer."""
    review = await client.create(TOKEN_REVIEW, _body(TOKEN_REVIEW, {"token": token}))
    status = review.status
    return status.user if status is not None and status.authenticated else None


async def own_name(client: Client) -> str:
    """The user name of this process. Raises `ApiError` without an answer."""
    body = {"apiVersion": SELF_REVIEW.api_version, "kind": SELF_REVIEW.name, "metadata": {}}
    review = await client.create(SELF_REVIEW, body)
    return review.status.user_info.username if review.status is not None else ""


async def may(client: Client, caller: Caller, attributes: Json) -> bool:
    """`attributes` is either resourceAttributes or nonResourceAttributes. Raises `ApiError` without an answer."""
    spec = attributes | {
        "user": caller.username,
        "uid": caller.uid,
        "groups": list(caller.groups),
        "extra": {key: list(values) for key, values in caller.extra.items()},
    }
    review = await client.create(ACCESS_REVIEW, _body(ACCESS_REVIEW, spec))
    return review.status is not None and review.status.allowed


async def may_self(client: Client, attributes: Json) -> bool:
    """The same about this process itself."""
    review = await client.create(SELF_ACCESS_REVIEW, _body(SELF_ACCESS_REVIEW, attributes))
    return review.status is not None and review.status.allowed


def _body(kind: Kind[Any], spec: Json) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {}, "spec": spec}
