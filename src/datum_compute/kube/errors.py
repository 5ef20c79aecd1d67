"""Errors of API calls, named by what failed. Entry points: `ApiError` and `from_status`.

The client and the server in this process raise the same classes, so a `Status` body is built and read in one place.
`retryable` says whether the same call can succeed later without being changed.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

NAMESPACE_TERMINATING = "NamespaceTerminating"  # a cause: nothing can be created in a namespace that is being deleted


class Cause(Struct, frozen=True):
    """One violation: the Kubernetes cause type, the message, and the path of the field."""

    reason: str = ""  # servers omit empty fields
    message: str = ""
    field: str = ""


class Subject(Struct, frozen=True):
    """The object that an error is about; `kind` is its kind or, where the resource was not found, its plural."""

    name: str
    group: str
    kind: str


class StatusDetails(Struct, frozen=True, rename="camel"):
    name: str = ""
    group: str = ""
    kind: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ApiError(Exception):
    """An API call that did not succeed."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        causes: Sequence[Cause] = (),
        plane: str = "",
        retry_after: float = 0,
        about: Subject | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.causes = tuple(causes)
        self.about = about
        self.plane = plane
        self.retry_after = retry_after  # seconds for which the server asked for no calls; 0 when it did not
        self.answered = False  # whether a server answered, or a gateway in its place

    def caused_by(self, reason: str) -> bool:
        return any(cause.reason == reason for cause in self.causes)

    def status(self) -> dict[str, Any]:
        about = msgspec.to_builtins(self.about) if self.about else {}
        details: dict[str, Any] = {key: value for key, value in about.items() if value}
        if self.causes:
            details["causes"] = [msgspec.to_builtins(cause) for cause in self.causes]
        if self.retry_after:
            details["retryAfterSeconds"] = ceil(self.retry_after)
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            "code": self.code,
        } | ({"details": details} if details else {})


class BadRequest(ApiError):
    """The server does not understand the request."""

    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    """The caller could not be authenticated; rotated credentials may help."""

    code, reason, retryable = 401, "Unauthorized", True


class Forbidden(ApiError):
    """The caller is not allowed to do this; a role may still be granted."""

    code, reason, retryable = 403, "Forbidden", True


class NamespaceTerminating(Forbidden):
    """The namespace is being deleted with everything in it: nothing new can be created there."""


class NotFound(ApiError):
    """The object, its namespace or its kind does not exist."""

    code, reason = 404, "NotFound"


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(ApiError):
    """The server cannot answer in any format that the client accepts."""

    code, reason = 406, "NotAcceptable"


class AlreadyExists(ApiError):
    """The name is taken."""

    code, reason = 409, "AlreadyExists"


class Conflict(ApiError):
    """The object changed since it was read."""

    code, reason, retryable = 409, "Conflict", True


class Gone(ApiError):
    """The server no longer has the requested history; list again."""

    code, reason, retryable = 410, "Expired", True


class TooLarge(ApiError):
    """The request is larger than the server accepts."""

    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    """The object violates a rule of its kind; the causes say which."""

    code, reason = 422, "Invalid"


class TooManyRequests(ApiError):
    """The server is overloaded and asks to be called later."""

    code, reason, retryable = 429, "TooManyRequests", True


class ServerError(ApiError):
    """The server failed and does not say why."""

    code, reason, retryable = 500, "InternalError", True


class Unsupported(ApiError):
    """The server cannot do this, whatever the request."""

    code, reason = 501, "NotImplemented"


class Unavailable(ApiError):
    """The plane could not be reached."""

    code, reason, retryable = 503, "ServiceUnavailable", True


class Timeout(ApiError):
    """No answer in time; the call may or may not have happened."""

    code, reason, retryable = 504, "Timeout", True


_BY_REASON: dict[str, type[ApiError]] = {
    kind.reason: kind
    for kind in (
        BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, NotAcceptable, AlreadyExists, Conflict, Gone,
        TooLarge, UnsupportedMediaType, Invalid, TooManyRequests, ServerError, Unsupported, Unavailable, Timeout,
    )
}  # fmt: skip
_BY_CODE: dict[int, type[ApiError]] = {kind.code: kind for kind in _BY_REASON.values() if kind is not AlreadyExists}
_BY_CODE[502] = Unavailable  # a gateway answers in place of the server


def from_status(code: int, body: bytes, plane: str, retry_after: int = 0) -> ApiError:
    """The error for an answer that is not a success. A body that is not a `Status` still gives a useful message.

    `retry_after` comes from the header; of the header and the body the longer one counts.
    """
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = Status(message=body[:200].decode(errors="replace"))
    kind = _BY_REASON.get(status.reason) or _BY_CODE.get(code) or (ServerError if code >= 500 else ApiError)
    details = status.details or StatusDetails()
    if kind is Forbidden and any(cause.reason == NAMESPACE_TERMINATING for cause in details.causes):
        kind = NamespaceTerminating
    message = status.message or f"the server answered {code}"
    error = kind(
        message,
        causes=details.causes,
        plane=plane,
        retry_after=max(details.retry_after_seconds, retry_after),
        about=Subject(details.name, details.group, details.kind) if details.name else None,
    )
    error.answered = True
    return error
