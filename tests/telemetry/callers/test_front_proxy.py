"""Only the front proxy of an API server may name callers in headers."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from datum_compute.kube.authority import CLIENT, SERVER, Pair, issue, new_authority
from datum_compute.kube.reviews import Caller
from datum_compute.telemetry.callers.front_proxy import FrontProxy, front_proxy

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
AUTHORITY = new_authority("front-proxy-ca", NOW, 30)
OTHER = new_authority("front-proxy-ca", NOW, 30)  # of another plane, under the same name
PROXY = FrontProxy(AUTHORITY.certificate_pem.decode(), ("front-proxy-client",))


def certificate(
    authority: Pair = AUTHORITY, name: str = "front-proxy-client", days: int = 1, purpose: object = CLIENT
) -> str:
    return issue(authority, name, NOW, days, purposes=[purpose]).certificate_pem.decode()  # type: ignore[list-item]


def test_a_certificate_of_the_authority_with_an_allowed_name_is_the_front_proxy() -> None:
    assert PROXY.sent(certificate(), NOW)


@pytest.mark.parametrize(
    "presented",
    [
        certificate(OTHER),
        certificate(name="somebody"),
        certificate(purpose=SERVER),
        AUTHORITY.certificate_pem.decode(),
        "",
        "nonsense",
    ],
)
def test_nothing_else_is_the_front_proxy(presented: str) -> None:
    assert not PROXY.sent(presented, NOW)


def test_a_certificate_counts_only_while_it_is_valid() -> None:
    assert not PROXY.sent(certificate(), NOW + timedelta(days=2))
    assert not PROXY.sent(certificate(), NOW - timedelta(days=2))


def test_without_allowed_names_nobody_is_believed() -> None:
    assert not FrontProxy(PROXY.authority, ()).sent(certificate(), NOW)


def test_during_a_rotation_both_authorities_count() -> None:
    both = FrontProxy(PROXY.authority + OTHER.certificate_pem.decode(), PROXY.names)
    assert both.sent(certificate(), NOW)
    assert both.sent(certificate(OTHER), NOW)


def test_the_caller_is_named_in_headers() -> None:
    headers = [
        (b"x-remote-user", b"ada"),
        (b"X-Remote-Uid", b"7"),
        (b"x-remote-group", b"a"),
        (b"x-remote-group", b"b"),
        (b"x-remote-extra-iam.miloapis.com%2fparent-name", b"demo"),
        (b"x-remote-extra-Scopes", b"x"),
        (b"x-remote-extra-scopes", b"y"),
        (b"authorization", b"Bearer secret"),
    ]
    assert PROXY.caller(headers) == Caller(
        "ada", "7", ("a", "b"), {"iam.miloapis.com/parent-name": ("demo",), "scopes": ("x", "y")}
    )
    assert PROXY.caller(headers[1:]) is None


def test_the_headers_have_the_names_that_the_api_server_publishes() -> None:
    def listed(*names: str) -> str:
        return msgspec.json.encode(names).decode()

    found = front_proxy(
        {
            "requestheader-client-ca-file": "PEM",
            "requestheader-allowed-names": listed("one", "two"),
            "requestheader-username-headers": listed("X-Remote-User", "X-User"),
            "requestheader-group-headers": listed("X-Groups"),
            "requestheader-extra-headers-prefix": listed("X-More-"),
        }
    )
    assert found == FrontProxy(
        "PEM", ("one", "two"), ("x-remote-user", "x-user"), ("x-remote-uid",), ("x-groups",), ("x-more-",)
    )
    caller = found.caller([(b"x-user", b"ada"), (b"x-more-a", b"1"), (b"x-more-", b"2")])
    assert caller == Caller("ada", extra={"a": ("1",)})


@pytest.mark.parametrize("data", [{}, {"requestheader-client-ca-file": " \n"}, {"client-ca-file": "PEM"}])
def test_a_server_that_passes_nothing_on_has_no_front_proxy(data: dict[str, str]) -> None:
    assert front_proxy(data) is None


def test_unreadable_names_allow_nobody() -> None:
    found = front_proxy({"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": "front-proxy-client"})
    assert found == FrontProxy("PEM", ())
