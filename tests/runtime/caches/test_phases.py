import pytest

from datum_compute.kube.client import Unreadable
from datum_compute.kube.errors import (
    ApiError,
    Forbidden,
    NotFound,
    ServerError,
    Timeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    from_status,
)
from datum_compute.kube.transport import Broken, NoCredentials, Untrusted
from datum_compute.runtime.caches.phases import Phase, advice, phase_of


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unavailable("refused"), Phase.CONNECT),
        (Untrusted("self-signed"), Phase.TLS),
        (NoCredentials("no token"), Phase.AUTHENTICATION),
        (Unauthorized("expired"), Phase.AUTHENTICATION),
        (Forbidden("no"), Phase.AUTHORIZATION),
        (Unreadable("<html>"), Phase.DECODE),
        (from_status(503, b"no healthy upstream", "p"), None),
        (Broken("cut"), Phase.CONNECT),
        (Timeout("no answer"), None),
        (ServerError("oops"), None),
        (TooManyRequests("later"), None),
        (NotFound("no such kind"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ApiError) else str(value),
)
@pytest.mark.parametrize("doing", [Phase.LIST, Phase.WATCH])
def test_an_error_belongs_to_the_first_phase_that_it_proves(
    error: ApiError, expected: Phase | None, doing: Phase
) -> None:
    assert phase_of(error, doing) is (expected or doing)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_says_what_to_check(phase: Phase) -> None:
    assert advice(ServerError("oops"), phase, "widgets.example.test").startswith("check ")


@pytest.mark.parametrize(
    ("error", "phase", "expected"),
    [
        (Forbidden("no"), Phase.AUTHORIZATION, "list and watch widgets.example.test"),
        (NotFound("no"), Phase.LIST, "widgets.example.test is installed"),
        (NotFound("no"), Phase.WATCH, "widgets.example.test is installed"),
    ],
)
def test_a_failure_of_one_kind_names_it(error: ApiError, phase: Phase, expected: str) -> None:
    assert expected in advice(error, phase, "widgets.example.test")
