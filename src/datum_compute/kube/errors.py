"""What can go wrong with an API call, named by what failed. Entry points: `ApiError` and `from_status`.

The same classes are raised by the client and by the server inside this process, so a `Status` body is built and read
in one place. `retryable` says whether the same call can succeed later without anybody changing it.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

NAMESPACE_TERMINATING = "NamespaceTerminating"  # a cause: nothing can be made in a namespace that is being deleted


class Cause(Struct, frozen=True):
    """One violation: the Kubernetes cause type, the sentence, and the path of the field."""

    reason: str = ""  # servers leave out what is empty
    message: str = ""
    field: str = ""


class Subject(Struct, frozen=True):
    """What an error is about; `kind` is the kind or, where a resource was not found, its plural."""

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
        self.retry_after = retry_after  # seconds to leave the server alone; 0 when it did not say
        self.answered = False  # whether it came as an answer, be it a gateway's

    def caused_by(self, reason: str) -> bool:
        return any(cause.reason == reason for cause in self.causes)

    def status(self) -> dict[str, Any]:
        told = msgspec.to_builtins(self.about) if self.about else {}
        details: dict[str, Any] = {key: value for key, value in told.items() if value}
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
    """The request itself makes no sense to the server."""

    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    """Who is asking could not be established; rotated credentials mend it."""

    code, reason, retryable = 401, "Unauthorized", True


class Forbidden(ApiError):
    """Not allowed; a role may still be granted."""

    code, reason, retryable = 403, "Forbidden", True


class NamespaceTerminating(Forbidden):
    """The namespace is being deleted: nothing new can be made in it, and what is in it goes."""


class NotFound(ApiError):
    """The object, its namespace or its kind does not exist there."""

    code, reason = 404, "NotFound"


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(ApiError):
    """The server has no answer in any of the forms the client takes."""

    code, reason = 406, "NotAcceptable"


class AlreadyExists(ApiError):
    """The name is taken."""

    code, reason = 409, "AlreadyExists"


class Conflict(ApiError):
    """The object changed since it was read."""

    code, reason, retryable = 409, "Conflict", True


class Gone(ApiError):
    """The server no longer holds the history that was asked for; list again."""

    code, reason, retryable = 410, "Expired", True


class TooLarge(ApiError):
    """The request is larger than the server reads."""

    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    """The object breaks a rule of its kind; the causes say which."""

    code, reason = 422, "Invalid"


class TooManyRequests(ApiError):
    """The server asks for patience."""

    code, reason, retryable = 429, "TooManyRequests", True


class ServerError(ApiError):
    """The server failed in a way it does not explain."""

    code, reason, retryable = 500, "InternalError", True


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
        TooLarge, UnsupportedMediaType, Invalid, TooManyRequests, ServerError, Unavailable, Timeout,
    )
}  # fmt: skip
_BY_CODE: dict[int, type[ApiError]] = {kind.code: kind for kind in _BY_REASON.values() if kind is not AlreadyExists}
_BY_CODE[502] = Unavailable  # a gateway speaks, since the server does not


def from_status(code: int, body: bytes, plane: str, retry_after: int = 0) -> ApiError:
    """The error for an answer that is not a success. A body that is no `Status` still gives a useful sentence.

    `retry_after` is what the answer said beside its body; the longer of the two wishes counts.
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
