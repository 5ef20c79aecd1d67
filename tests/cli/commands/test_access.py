"""The state of a project's access, asked for and shown; asking for it is consent."""

import json
from functools import partial

import pytest

from datum_compute.api.services import SERVICE_ENTITLEMENT
from tests.cli.conftest import Compute, FakeClock, condition, entitle, nothing
from tests.cli.server import ApiServer

STATES = [
    (None, "", {}, "NotRequested", "not requested"),
    ("", "", {}, "Processing", "being activated"),
    ("PendingApproval", "EntitlementPendingApproval", {}, "PendingApproval", "waiting for approval"),
    ("Active", "EntitlementActive", {}, "Active", "enabled"),
    ("Rejected", "EntitlementRejected", {}, "Denied", "denied"),
    ("Rejected", "EntitlementRejected", {"entitledAt": "2026-01-01T00:00:00Z"}, "Revoked", "revoked"),
    ("Rejected", "ServiceNotPublished", {}, "Unavailable", "not available on this platform"),
]


def given(api: ApiServer, phase: str | None, reason: str, status: dict[str, str]) -> None:
    if phase is not None:
        entitle(api, phase, reason, **status)


@pytest.mark.parametrize(("phase", "reason", "status", "state", "words"), STATES)
def test_every_state_is_shown_and_none_is_an_error(
    bare_api: ApiServer,
    compute: Compute,
    phase: str | None,
    reason: str,
    status: dict[str, str],
    state: str,
    words: str,
) -> None:
    given(bare_api, phase, reason, status)
    page, document = compute("access"), compute("access", "-o", "json")
    assert (page.code, document.code) == (0, 0)
    assert f"Status       {words}" in page.out
    found = json.loads(document.out)
    assert (found["service"], found["project"], found["state"]) == ("compute.datumapis.com", "demo", state)
    assert bare_api.writes() == []


def test_a_platform_without_a_catalog(bare_api: ApiServer, compute: Compute) -> None:
    bare_api.answer("GET", "/serviceentitlements", 404, "not served", reason="NotFound")
    assert json.loads(compute("access", "-o", "json").out)["state"] == "CatalogUnavailable"


def test_a_request_needs_no_further_question(bare_api: ApiServer, compute: Compute) -> None:
    result = compute("access", "request", "--message=for the shop")
    assert result.code == 0
    assert "being activated" in result.out
    (made,) = bare_api.all(SERVICE_ENTITLEMENT)
    assert b"for the shop" in bytes(made.spec_json)


def test_an_existing_request_is_not_made_again(bare_api: ApiServer, compute: Compute) -> None:
    entitle(bare_api, "PendingApproval", "EntitlementPendingApproval")
    assert compute("access", "request").code == 0
    assert bare_api.writes() == []


def test_waiting_until_it_is_decided(bare_api: ApiServer, compute: Compute) -> None:
    entitle(bare_api, "PendingApproval", "EntitlementPendingApproval")
    ready = condition("Ready", "True", "EntitlementActive")
    active = {"phase": "Active", "conditions": [ready]}
    for _ in range(3):
        bare_api.before("GET", "/serviceentitlements", nothing)
    bare_api.before("GET", "/serviceentitlements", partial(bare_api.set_status, SERVICE_ENTITLEMENT, "compute", active))
    result = compute("access", "request", "--wait")
    assert (result.code, "enabled" in result.out) == (0, True)


def test_waiting_too_long(bare_api: ApiServer, compute: Compute, clock: FakeClock) -> None:
    entitle(bare_api, "PendingApproval", "EntitlementPendingApproval")
    result = compute("access", "request", "--wait", "--timeout=1m")
    assert result.code == 12
    assert sum(clock.slept) >= 60


def test_a_denied_request_is_reported_with_the_next_step(bare_api: ApiServer, compute: Compute) -> None:
    entitle(bare_api, "Rejected", "EntitlementRejected")
    result = compute("access", "request")
    assert result.code == 11
    assert result.err.endswith("compute access request --renew\n")
    assert bare_api.writes() == []


def test_renewing_makes_a_new_request(bare_api: ApiServer, compute: Compute) -> None:
    entitle(bare_api, "Rejected", "EntitlementRejected")
    (old,) = bare_api.all(SERVICE_ENTITLEMENT)
    assert compute("access", "request", "--renew").code == 0
    (new,) = bare_api.all(SERVICE_ENTITLEMENT)
    assert new.metadata.uid != old.metadata.uid


def test_renewing_asks_in_a_terminal(bare_api: ApiServer, compute: Compute) -> None:
    entitle(bare_api, "Rejected", "EntitlementRejected")
    result = compute("access", "request", "--renew", tty=True, stdin="n\n")
    assert result.code == 9
    assert bare_api.writes() == []


def test_an_old_request_that_drains_is_waited_for(bare_api: ApiServer, compute: Compute, clock: FakeClock) -> None:
    entitle(bare_api, "Rejected", "EntitlementRejected")
    bare_api.patch(SERVICE_ENTITLEMENT, "compute", {"metadata": {"finalizers": ["example.com/slow"]}})
    for _ in range(3):
        bare_api.before("POST", "/serviceentitlements", nothing)
    letting_go = partial(bare_api.patch, SERVICE_ENTITLEMENT, "compute", {"metadata": {"finalizers": []}})
    bare_api.before("POST", "/serviceentitlements", letting_go)
    assert compute("access", "request", "--renew").code == 0
    assert len(clock.slept) > 2


@pytest.mark.parametrize("phase", ["", "PendingApproval"])
def test_there_is_one_deadline_for_the_whole_wait(
    bare_api: ApiServer, compute: Compute, clock: FakeClock, phase: str
) -> None:
    entitle(bare_api, phase, "EntitlementPendingApproval")
    assert compute("access", "request", "--wait", "--timeout=5s").code == 12
    assert sum(clock.slept) == 5


def test_the_deadline_holds_while_an_old_request_drains(
    bare_api: ApiServer, compute: Compute, clock: FakeClock
) -> None:
    entitle(bare_api, "Rejected", "EntitlementRejected")
    bare_api.patch(SERVICE_ENTITLEMENT, "compute", {"metadata": {"finalizers": ["example.com/slow"]}})
    result = compute("access", "request", "--renew", "--wait", "--timeout=5s")
    assert (result.code, sum(clock.slept)) == (12, 5)
    assert result.err.startswith("Error: the old request is still being withdrawn after 5s; try again\n")
