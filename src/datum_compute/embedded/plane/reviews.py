"""Reviews of who a user is and what they may do, which are answered and not stored. Entry points: `REVIEWS`,
`review_at`, `evaluate`.

There are no roles here: every authenticated user may do everything, and so may administrators.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from datum_compute.embedded.kinds.served import ServedKind, listed
from datum_compute.embedded.schemas.fragments import OPEN, object_of, string, strings
from datum_compute.kube.admission import ADMINISTRATORS, User
from datum_compute.kube.errors import BadRequest, Cause, Invalid, Subject
from datum_compute.kube.meta import Json, timestamp

_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"


_RESOURCE = object_of(
    "An action on objects.",
    namespace=string("The namespace; empty for all namespaces, or for cluster-scoped kinds."),
    verb=string("The verb, such as get, list, create or delete."),
    group=string("The API group of the kind."),
    version=string("The version of the kind."),
    resource=string("The plural name of the kind, as in paths."),
    subresource=string("The subresource, such as status."),
    name=string("The name of the object; empty for all."),
)
_PATH = object_of(
    "An action on a path that is not a resource.",
    path=string("The path."),
    verb=string("The verb, such as get."),
)
_ACCESS = {"resourceAttributes": _RESOURCE, "nonResourceAttributes": _PATH}
_SUBJECT = {
    "user": string("The user."),
    "groups": strings("The groups of the user."),
    "uid": string("The unique identifier of the user."),
    "extra": OPEN | {"description": "More about the user."},
}
_ALLOWED = object_of(
    "The answer.",
    allowed={"type": "boolean", "description": "Whether the action is allowed."},
    denied={"type": "boolean", "description": "Whether it is explicitly denied."},
    reason=string("Why it is allowed or denied."),
    evaluationError=string("Why the answer may be incomplete."),
)
_ANSWER = OPEN | {"description": "The answer."}


def _review(group: str, kind: str, description: str, **properties: Json) -> ServedKind:
    return ServedKind(
        group,
        "v1",
        {"kind": kind, "plural": f"{kind.lower()}s"},
        namespaced=False,
        schema=object_of(description, **properties),
        status=False,
        builtin=True,
        verbs=("create",),
    )


SELF_SUBJECT = _review(_AUTHENTICATION, "SelfSubjectReview", "The user who sends the request.", status=_ANSWER)
SELF_SUBJECT_ACCESS = _review(
    _AUTHORIZATION,
    "SelfSubjectAccessReview",
    "Whether the current user may perform an action.",
    spec=object_of("The action.", **_ACCESS),
    status=_ALLOWED,
)
SUBJECT_ACCESS = _review(
    _AUTHORIZATION,
    "SubjectAccessReview",
    "Whether a user may perform an action.",
    spec=object_of("The user and the action.", **_ACCESS, **_SUBJECT),
    status=_ALLOWED,
)
SELF_SUBJECT_RULES = _review(
    _AUTHORIZATION,
    "SelfSubjectRulesReview",
    "The actions that the current user may perform.",
    spec=object_of("The scope of the actions.", namespace=string("The namespace.")),
    status=_ANSWER,
)

REVIEWS = (SELF_SUBJECT, SELF_SUBJECT_ACCESS, SUBJECT_ACCESS, SELF_SUBJECT_RULES)

_BY_PATH = {f"/apis/{review.api_version}/{review.plural}": review for review in REVIEWS}
_EVERYTHING: Json = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


def review_at(path: str) -> ServedKind | None:
    """The kind of review that is created at a path; None for the path of a resource."""
    return _BY_PATH.get(path.rstrip("/")) if path.startswith("/apis/auth") else None


def evaluate(review: ServedKind, body: Json, user: User, now: datetime) -> Json:
    """The review with its status filled in. Raises `BadRequest` or `Invalid`."""
    head = {"kind": review.kind, "apiVersion": review.api_version}
    request = review.shaped(head | body)
    if {"kind": request["kind"], "apiVersion": request["apiVersion"]} != head:
        raise review.mismatch(request["kind"])
    if causes := review.violations(request):
        raise review.undecodable(listed(causes))
    spec = request.get("spec") or {}
    if review is SELF_SUBJECT:
        who = {"username": user.name, "groups": list(user.groups)}
        return head | {"metadata": {"creationTimestamp": timestamp(now)}, "status": {"userInfo": who}}
    if review is SELF_SUBJECT_RULES:
        if not spec.get("namespace"):
            raise BadRequest("no namespace on request")
        return head | {"metadata": {}, "spec": {}, "status": _EVERYTHING}
    if causes := _problems(review, request.get("metadata") or {}, spec):
        about = Subject("", review.group, "")
        raise Invalid(f'.{review.group} "" is invalid: {listed(causes)}', causes=causes, about=about)
    allowed = review is SELF_SUBJECT_ACCESS or _may(user, spec)
    return head | {"metadata": {}, "spec": _without_empty(spec), "status": {"allowed": allowed}}


def _problems(review: ServedKind, metadata: Mapping[str, Any], spec: Json) -> list[Cause]:
    causes = []
    if _without_empty(metadata):
        causes.append(Cause("FieldValueInvalid", "Invalid value: must be empty", "metadata"))
    resource, path = "resourceAttributes" in spec, "nonResourceAttributes" in spec
    if resource and path:
        message = "Invalid value: cannot be specified in combination with resourceAttributes"
        causes.append(Cause("FieldValueInvalid", message, "spec.nonResourceAttributes"))
    elif not resource and not path:
        message = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
        causes.append(Cause("FieldValueInvalid", message, "spec.resourceAttributes"))
    if review is SUBJECT_ACCESS and not spec.get("user") and not spec.get("groups"):
        message = 'Invalid value: "": at least one of user or group must be specified'
        causes.append(Cause("FieldValueInvalid", message, "spec.user"))
    return causes


def _may(user: User, spec: Json) -> bool:
    return ADMINISTRATORS in (spec.get("groups") or ()) or spec.get("user") == user.name


def _without_empty(value: Mapping[str, Any]) -> Json:
    """The value without empty fields, as a server prints it."""
    items = {key: _without_empty(item) if isinstance(item, dict) else item for key, item in value.items()}
    return {key: item for key, item in items.items() if item not in ("", None, [])}
