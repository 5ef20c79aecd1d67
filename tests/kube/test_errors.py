import inspect

import msgspec
import pytest

from datum_compute.kube import errors
from datum_compute.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NamespaceTerminating,
    NotFound,
    ServerError,
    Timeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    from_status,
)

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ApiError) and kind not in (ApiError, NamespaceTerminating)
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_wire(kind: type[ApiError]) -> None:
    causes = (Cause("FieldValueRequired", "Required value", "spec.name"), Cause("FieldValueInvalid", "Invalid value"))
    sent = kind("it did not work", causes=causes, retry_after=7)
    received = from_status(sent.code, msgspec.json.encode(sent.status()), "hub")

    assert type(received) is kind
    assert received.message == str(received) == "it did not work"
    assert (received.causes, received.retry_after, received.plane) == (causes, 7, "hub")
    assert received.status() == sent.status()


def test_each_error_has_its_own_reason() -> None:
    assert len({kind.reason for kind in KINDS}) == len(KINDS)


def test_a_status_looks_as_kubernetes_writes_it() -> None:
    cause = Cause("FieldValueRequired", "Required value", "spec.name")
    assert Invalid("no good", causes=[cause]).status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "no good",
        "reason": "Invalid",
        "code": 422,
        "details": {
            "causes": [{"reason": "FieldValueRequired", "message": "Required value", "field": "spec.name"}],
        },
    }
    assert "details" not in NotFound("gone").status()
    assert TooManyRequests("slowly", retry_after=3).status()["details"] == {"retryAfterSeconds": 3}


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (409, "", Conflict),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (404, "NotFound", NotFound),
        (404, "SomethingNew", NotFound),
        (403, "", Forbidden),
        (401, "", Unauthorized),
        (400, "", BadRequest),
        (422, "Invalid", Invalid),
        (429, "", TooManyRequests),
        (500, "", ServerError),
        (500, "Timeout", Timeout),
        (503, "", Unavailable),
        (504, "GatewayTimeout", Timeout),
        (502, "", Unavailable),
        (599, "", ServerError),
        (418, "", ApiError),
    ],
)
def test_the_reason_names_the_error_and_the_code_is_the_fallback(code: int, reason: str, kind: type[ApiError]) -> None:
    body = msgspec.json.encode({"kind": "Status", "message": "why", "reason": reason, "code": code})
    error = from_status(code, body, "project")
    assert type(error) is kind
    assert error.message == "why"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the server answered 503"),
        (b"{}", "the server answered 503"),
        (b'{"message": ""}', "the server answered 503"),
        (b"<html>upstream connect error</html>", "<html>upstream connect error</html>"),
        (b"x" * 100_000, "x" * 200),
        (b"\xff\xfe", "��"),
        (b"[1]", "[1]"),
        (b'{"message": 5}', '{"message": 5}'),
        (b'{"message": "why", "details": null}', "why"),
        (b'{"message": "why", "details": {}}', "why"),
        (b'{"message": "why", "unknown": {"any": 1}}', "why"),
    ],
)
def test_any_body_gives_a_useful_message(body: bytes, message: str) -> None:
    error = from_status(503, body, "cell")
    assert type(error) is Unavailable
    assert error.message == message
    assert error.causes == ()


def test_a_cause_without_all_its_parts_is_still_read() -> None:
    body = (
        b'{"message": "why", "reason": "Invalid", "details": {"causes": [{"message": "only this"}, {"field": "spec"}]}}'
    )
    error = from_status(422, body, "project")
    assert type(error) is Invalid
    assert error.causes == (Cause(message="only this"), Cause(field="spec"))


def test_a_terminating_namespace_is_distinguished_from_other_refusals_by_its_cause() -> None:
    cause = Cause("NamespaceTerminating", "namespace team is being terminated", "metadata.namespace")
    body = msgspec.json.encode(Forbidden("unable to create new content", causes=[cause]).status())
    assert type(from_status(403, body, "project")) is NamespaceTerminating
    assert type(from_status(403, msgspec.json.encode(Forbidden("no").status()), "project")) is Forbidden


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_retryable_unless_the_call_itself_is_wrong(kind: type[ApiError]) -> None:
    wrong_itself = {400, 404, 405, 406, 413, 415, 422, 501}
    assert kind.retryable is (kind.code not in wrong_itself and kind is not AlreadyExists)
