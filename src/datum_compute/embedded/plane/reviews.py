"""Questions about who is asking and what they may do, which are answered and not stored. Entry points: `REVIEWS`,
`review_at`, `answered`.

There are no roles here: whoever is let in may do everything, and administrators always may.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from datum_compute.embedded.kinds.served import Served
from datum_compute.kube.admission import ADMINISTRATORS, User
from datum_compute.kube.errors import BadRequest, Cause, Invalid, Subject
from datum_compute.kube.meta import Json, timestamp

_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"


def _object(description: str, **properties: Json) -> Json:
    return {"type": "object", "description": description, "properties": properties}


def _texts(description: str) -> Json:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


_RESOURCE = _object(
    "An action on objects.",
    namespace=_text("The namespace; empty for all, or for kinds without."),
    verb=_text("What is to be done, such as get, list, create or delete."),
    group=_text("The API group of the kind."),
    version=_text("The version of the kind."),
    resource=_text("The kind, as it stands in paths."),
    subresource=_text("The part of the object, such as status."),
    name=_text("The object; empty for all."),
)
_PATH = _object(
    "An action on a path that is no object's.",
    path=_text("The path."),
    verb=_text("What is to be done, such as get."),
)
_ACCESS = {"resourceAttributes": _RESOURCE, "nonResourceAttributes": _PATH}
_SUBJECT = {
    "user": _text("Who would do it."),
    "groups": _texts("The groups they are in."),
    "uid": _text("What tells them from another of their name."),
    "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "description": "What else is known."},
}
_ALLOWED = _object(
    "The answer.",
    allowed={"type": "boolean", "description": "Whether it is allowed."},
    denied={"type": "boolean", "description": "Whether it is forbidden expressly."},
    reason=_text("Why."),
    evaluationError=_text("What went wrong on the way to the answer."),
)
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "description": "The answer."}


def _review(group: str, kind: str, description: str, **properties: Json) -> Served:
    return Served(
        group,
        "v1",
        {"kind": kind, "plural": f"{kind.lower()}s"},
        namespaced=False,
        schema=_object(description, **properties),
        status=False,
        builtin=True,
        verbs=("create",),
    )


WHO_AM_I = _review(_AUTHENTICATION, "SelfSubjectReview", "Who is asking.", status=_OPEN)
MAY_I = _review(
    _AUTHORIZATION,
    "SelfSubjectAccessReview",
    "Whether whoever asks may do something.",
    spec=_object("What they would do.", **_ACCESS),
    status=_ALLOWED,
)
MAY_THEY = _review(
    _AUTHORIZATION,
    "SubjectAccessReview",
    "Whether somebody may do something.",
    spec=_object("Who would do what.", **_ACCESS, **_SUBJECT),
    status=_ALLOWED,
)
WHAT_MAY_I = _review(
    _AUTHORIZATION,
    "SelfSubjectRulesReview",
    "What whoever asks may do.",
    spec=_object("Where.", namespace=_text("The namespace.")),
    status=_OPEN,
)

REVIEWS = (WHO_AM_I, MAY_I, MAY_THEY, WHAT_MAY_I)

_BY_PATH = {f"/apis/{review.api_version}/{review.plural}": review for review in REVIEWS}
_EVERYTHING: Json = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


def review_at(path: str) -> Served | None:
    """The question that is asked at a path; None where objects are."""
    return _BY_PATH.get(path.rstrip("/")) if path.startswith("/apis/auth") else None


def answered(review: Served, body: Json, user: User, now: datetime) -> Json:
    """The question with its answer. Raises when it cannot be understood."""
    head = {"kind": review.kind, "apiVersion": review.api_version}
    given = review.shaped(head | body)
    if {"kind": given["kind"], "apiVersion": given["apiVersion"]} != head:
        raise BadRequest(f'{given["kind"]} in version "{review.version}" cannot be handled as a {review.kind}')
    if causes := review.violations(given):
        told = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
        about = f'{review.kind} in version "{review.version}" cannot be handled as a {review.kind}'
        raise BadRequest(f"{about}: {told}")
    spec = given.get("spec") or {}
    if review is WHO_AM_I:
        who = {"username": user.name, "groups": list(user.groups)}
        return head | {"metadata": {"creationTimestamp": timestamp(now)}, "status": {"userInfo": who}}
    if review is WHAT_MAY_I:
        if not spec.get("namespace"):
            raise BadRequest("no namespace on request")
        return head | {"metadata": {}, "spec": {}, "status": _EVERYTHING}
    if causes := _wrong(review, given.get("metadata") or {}, spec):
        sentences = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise Invalid(f'.{review.group} "" is invalid: {sentences}', causes=causes, about=Subject("", review.group, ""))
    allowed = review is MAY_I or _is_let_in(user, spec)
    return head | {"metadata": {}, "spec": _without_empty(spec), "status": {"allowed": allowed}}


def _wrong(review: Served, metadata: Mapping[str, Any], spec: Json) -> list[Cause]:
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
    if review is MAY_THEY and not spec.get("user") and not spec.get("groups"):
        message = 'Invalid value: "": at least one of user or group must be specified'
        causes.append(Cause("FieldValueInvalid", message, "spec.user"))
    return causes


def _is_let_in(user: User, spec: Json) -> bool:
    return ADMINISTRATORS in (spec.get("groups") or ()) or spec.get("user") == user.name


def _without_empty(value: Mapping[str, Any]) -> Json:
    """The same without what says nothing, as a server prints it."""
    kept = {key: _without_empty(item) if isinstance(item, dict) else item for key, item in value.items()}
    return {key: item for key, item in kept.items() if item not in ("", None, [])}
