"""Every state of an entitlement, without a terminal."""

from functools import partial

import pytest

from datum_compute.api.services import SERVICE_ENTITLEMENT
from tests.cli.conftest import Compute, FakeClock, condition, entitle, nothing
from tests.cli.server import ApiServer


def test_without_a_terminal_access_is_not_requested(bare_api: ApiServer, compute: Compute) -> None:
    result = compute("workloads", "-o", "json")
    assert (result.code, result.out) == (10, "")
    assert result.err == (
        'Error: compute is not enabled for project "demo".\n\nRequest access with: compute access request\n'
    )
    assert bare_api.writes() == []


def test_yes_is_not_consent_to_request_access(bare_api: ApiServer, compute: Compute) -> None:
    assert compute("deploy", "shop", "--image=x", "--city=DFW", "-y").code == 10
    assert bare_api.writes() == []


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_after_a_no_the_request_command_is_suggested(bare_api: ApiServer, compute: Compute, answer: str) -> None:
    result = compute("workloads", tty=True, stdin=answer)
    assert result.code == 9
    assert 'Compute is not enabled for project "demo".\n' in result.err
    assert result.err.endswith("No request was made.\n\ncompute access request\n")
    assert bare_api.writes() == []


def activate(api: ApiServer) -> None:
    ready = condition("Ready", "True", "EntitlementActive")
    api.set_status(SERVICE_ENTITLEMENT, "compute", {"phase": "Active", "conditions": [ready]})


def test_the_command_continues_when_a_request_is_granted_at_once(bare_api: ApiServer, compute: Compute) -> None:
    bare_api.before("GET", "/serviceentitlements", nothing)
    bare_api.before("GET", "/serviceentitlements", partial(activate, bare_api))
    result = compute("workloads", tty=True, stdin="y\n")
    assert result.code == 0
    assert 'Requesting access to compute for project "demo"...\n' in result.err
    assert 'Compute is now enabled for project "demo".\n' in result.err
    assert "No workloads found in project demo." in result.out
    assert len(bare_api.all(SERVICE_ENTITLEMENT)) == 1


def test_activation_that_takes_minutes_never_asks_twice(
    bare_api: ApiServer, compute: Compute, clock: FakeClock
) -> None:
    first = compute("workloads", tty=True, stdin="y\n")
    assert first.code == 12
    assert first.err.endswith(
        'Compute is being enabled for project "demo". This can take a few minutes.\n\n'
        "Run your command again shortly, or wait with: compute access request --wait\n"
    )
    clock.turn(180)
    second = compute("workloads", tty=True, stdin="y\n")
    assert second.code == 12
    assert "was requested 3m ago and is still being activated." in second.err
    assert "409" not in first.err + second.err
    assert "serviceentitlement" not in (first.err + second.err).lower()
    assert len(bare_api.all(SERVICE_ENTITLEMENT)) == 1


def test_a_concurrent_request_counts_as_ours(bare_api: ApiServer, compute: Compute) -> None:
    bare_api.before("POST", "/serviceentitlements", partial(entitle, bare_api))
    result = compute("workloads", tty=True, stdin="y\n")
    assert result.code == 0
    assert len(bare_api.all(SERVICE_ENTITLEMENT)) == 1


@pytest.mark.parametrize(
    ("code", "reason", "exit_code", "error"),
    [
        (422, "Invalid", 13, "Error: the compute service is not available on this platform.\n"),
        (403, "Forbidden", 7, 'Error: you do not have permission to request compute access for project "demo"\n'),
        (500, "InternalError", 1, "Error: requesting compute access: boom\n"),
    ],
)
def test_a_refused_request_is_reported(
    bare_api: ApiServer, compute: Compute, code: int, reason: str, exit_code: int, error: str
) -> None:
    bare_api.answer("POST", "/serviceentitlements", code, "boom", reason=reason)
    result = compute("workloads", tty=True, stdin="y\n")
    assert (result.code, result.err.endswith(error)) == (exit_code, True)


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
def test_states_that_are_reported_at_once(
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
        "Run your command again shortly, or wait with: compute access request --wait\n"
    )
    assert clock.slept == []
    assert bare_api.writes() == []


def test_a_recent_request_is_waited_for_up_to_thirty_seconds(
    bare_api: ApiServer, compute: Compute, clock: FakeClock
) -> None:
    entitle(bare_api, phase="")
    result = compute("workloads")
    assert result.code == 12
    assert sum(clock.slept) == 30
    assert "was requested 30s ago and is still being activated" in result.err


def test_the_command_continues_when_access_becomes_active(bare_api: ApiServer, compute: Compute) -> None:
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


def test_an_entitlement_of_another_service_does_not_count(bare_api: ApiServer, compute: Compute) -> None:
    body = SERVICE_ENTITLEMENT.body("dns") | {"spec": {"serviceRef": {"name": "dns"}}}
    bare_api.create(SERVICE_ENTITLEMENT, body)
    assert compute("workloads").code == 10


def test_an_entitlement_is_recognised_by_the_name_of_the_service_first(bare_api: ApiServer, compute: Compute) -> None:
    body = SERVICE_ENTITLEMENT.body("odd") | {"spec": {"serviceRef": {"name": "svc-17"}}}
    bare_api.create(SERVICE_ENTITLEMENT, body)
    ready = condition("Ready", "True", "EntitlementActive")
    status = {"phase": "Active", "serviceName": "compute.datumapis.com", "conditions": [ready]}
    bare_api.set_status(SERVICE_ENTITLEMENT, "odd", status)
    assert compute("workloads").code == 0


def test_without_permission_to_read_entitlements_the_command_runs(bare_api: ApiServer, compute: Compute) -> None:
    bare_api.answer("GET", "serviceentitlements", 403, reason="Forbidden")
    assert compute("workloads").code == 0


def test_the_gate_can_be_switched_off(bare_api: ApiServer, compute: Compute) -> None:
    assert compute("workloads", environ={"DATUM_COMPUTE_SKIP_ACCESS_CHECK": "1"}).code == 0
    assert not any("serviceentitlements" in seen.path for seen in bare_api.requests)


@pytest.mark.parametrize("words", [["version"], ["--help"], ["deploy", "--help"], ["local", "status"]])
def test_commands_without_a_project_pass_no_gate(bare_api: ApiServer, compute: Compute, words: list[str]) -> None:
    compute(*words)
    assert bare_api.requests == []


def test_usage_errors_are_reported_before_the_access_check(bare_api: ApiServer, compute: Compute) -> None:
    assert compute("scale", "shop").code == 2
    assert bare_api.requests == []
