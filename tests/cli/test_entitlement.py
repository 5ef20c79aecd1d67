"""Every state of the contract, section 5, without anybody being asked."""

import pytest

from datum_compute.api.services import SERVICE_ENTITLEMENT
from tests.cli.conftest import Compute, FakeClock, condition, entitle
from tests.cli.server import ApiServer


def test_not_requested(bare_api: ApiServer, compute: Compute) -> None:
    result = compute("workloads", tty=True, stdin="y\n")
    assert result.code == 10
    assert result.err.startswith('Error: compute is not enabled for project "demo".\n')
    assert bare_api.writes() == []


@pytest.mark.parametrize(
    ("phase", "reason", "status", "code", "text"),
    [
        (
            "PendingApproval",
            "EntitlementPendingApproval",
            {},
            12,
            'Compute access for project "demo" is waiting for approval (requested 2h ago).',
        ),
        ("Rejected", "EntitlementRejected", {}, 11, 'Error: compute access for project "demo" was denied.'),
        (
            "Rejected",
            "EntitlementRejected",
            {"entitledAt": "2026-01-01T00:00:00Z"},
            11,
            'Error: compute access for project "demo" was revoked.',
        ),
        ("Rejected", "ServiceNotPublished", {}, 13, "Error: the compute service is not available on this platform."),
    ],
)
def test_states_that_are_told_at_once(
    bare_api: ApiServer,
    compute: Compute,
    clock: FakeClock,
    phase: str,
    reason: str,
    status: dict[str, str],
    code: int,
    text: str,
) -> None:
    entitle(bare_api, phase, reason, **status)
    clock.turn(7200)
    result = compute("workloads")
    assert (result.code, result.err.splitlines()[0]) == (code, text)
    assert ("  as the platform says" in result.err) == (code != 13)
    assert clock.slept == []


def test_a_request_that_is_old_and_still_empty_is_being_activated(
    bare_api: ApiServer, compute: Compute, clock: FakeClock
) -> None:
    entitle(bare_api, phase="")
    clock.turn(180)
    result = compute("workloads")
    assert result.code == 12
    assert result.err == (
        'Compute access for project "demo" was requested 3m ago and is still being activated.\n\n'
        "Run your command again shortly.\n"
    )
    assert clock.slept == []
    assert bare_api.writes() == []


def test_a_young_request_is_waited_for_up_to_thirty_seconds(
    bare_api: ApiServer, compute: Compute, clock: FakeClock
) -> None:
    entitle(bare_api, phase="")
    result = compute("workloads")
    assert result.code == 12
    assert sum(clock.slept) == 30
    assert "was requested 30s ago and is still being activated" in result.err


def test_when_it_becomes_active_the_command_goes_on(bare_api: ApiServer, compute: Compute) -> None:
    entitle(bare_api, phase="")
    ready = condition("Ready", "True", "EntitlementActive")

    def activate() -> None:
        bare_api.set_status(SERVICE_ENTITLEMENT, "compute", {"phase": "Active", "conditions": [ready]})

    bare_api.before("GET", "serviceentitlements", lambda: None, times=2)
    bare_api.before("GET", "serviceentitlements", activate)
    result = compute("workloads")
    assert result.code == 0
    assert 'Compute is now enabled for project "demo".' in result.err
    assert result.out.startswith("No workloads found in project demo.")


def test_one_of_another_service_is_not_ours(bare_api: ApiServer, compute: Compute) -> None:
    body = SERVICE_ENTITLEMENT.body("dns") | {"spec": {"serviceRef": {"name": "dns"}}}
    bare_api.create(SERVICE_ENTITLEMENT, body)
    assert compute("workloads").code == 10


def test_it_is_recognised_by_the_name_of_the_service_first(bare_api: ApiServer, compute: Compute) -> None:
    body = SERVICE_ENTITLEMENT.body("odd") | {"spec": {"serviceRef": {"name": "svc-17"}}}
    bare_api.create(SERVICE_ENTITLEMENT, body)
    ready = condition("Ready", "True", "EntitlementActive")
    status = {"phase": "Active", "serviceName": "compute.datumapis.com", "conditions": [ready]}
    bare_api.set_status(SERVICE_ENTITLEMENT, "odd", status)
    assert compute("workloads").code == 0


def test_who_may_not_look_is_let_through_to_what_they_may(bare_api: ApiServer, compute: Compute) -> None:
    bare_api.answer("GET", "serviceentitlements", 403, reason="Forbidden")
    assert compute("workloads").code == 0


def test_the_gate_can_be_switched_off(bare_api: ApiServer, compute: Compute) -> None:
    assert compute("workloads", environ={"DATUM_COMPUTE_SKIP_ACCESS_CHECK": "1"}).code == 0
    assert not any("serviceentitlements" in seen.path for seen in bare_api.requests)


@pytest.mark.parametrize("words", [["version"], ["--help"], ["deploy", "--help"], ["local", "status"]])
def test_what_needs_no_project_passes_no_gate(bare_api: ApiServer, compute: Compute, words: list[str]) -> None:
    compute(*words)
    assert bare_api.requests == []


def test_wrong_flags_are_told_before_the_gate(bare_api: ApiServer, compute: Compute) -> None:
    assert compute("scale", "shop").code == 2
    assert bare_api.requests == []
