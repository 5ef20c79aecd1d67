"""Which claims fit into what was granted."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.quota import INSTANCES, MEMORY, RESOURCE_CLAIM, VCPUS, ResourceClaim
from datum_compute.kube.meta import Json, decode, encode, timestamp
from datum_compute.platform.allocation import decide

START = datetime(2026, 6, 1, tzinfo=UTC)


def claim(name: str, requests: dict[str, int], *, age: int = 0, granted: bool = False) -> ResourceClaim:
    body: Json = RESOURCE_CLAIM.body(name, "default")
    body["metadata"] |= {"creationTimestamp": timestamp(START - timedelta(seconds=age)), "resourceVersion": "1"}
    body["spec"] = {
        "consumerRef": {"kind": "Project", "name": "demo"},
        "requests": [{"resourceType": type_, "amount": amount} for type_, amount in requests.items()],
    }
    if granted:
        body["status"] = {
            "allocations": [
                {"resourceType": type_, "status": "Granted", "lastTransitionTime": timestamp(START)}
                for type_ in requests
            ]
        }
    return decode(encode(body), ResourceClaim)


def outcomes(claims: list[ResourceClaim], limits: dict[str, int]) -> dict[str, bool]:
    return {decision.claim.name: decision.granted for decision in decide(claims, limits)[0]}


def test_the_oldest_gets_the_last_unit() -> None:
    waiting = [claim("young", {INSTANCES: 1}), claim("old", {INSTANCES: 1}, age=60)]
    assert outcomes(waiting, {INSTANCES: 1}) == {"old": True, "young": False}


def test_what_was_granted_stays_granted_when_the_limit_falls() -> None:
    held = [claim("a", {INSTANCES: 1}, granted=True), claim("b", {INSTANCES: 1}, granted=True)]
    assert outcomes(held, {INSTANCES: 1}) == {"a": True, "b": True}


def test_a_claim_is_granted_whole_or_not_at_all() -> None:
    decisions, allocated = decide([claim("a", {INSTANCES: 1, VCPUS: 2000})], {INSTANCES: 5, VCPUS: 1000})
    assert [decision.granted for decision in decisions] == [False]
    assert allocated == {INSTANCES: 0, VCPUS: 0}
    assert decisions[0].message == "Requested 2 vCPU, 1 available."


def test_one_that_does_not_fit_holds_nobody_else_up() -> None:
    waiting = [claim("big", {MEMORY: 4096}, age=60), claim("small", {MEMORY: 1024})]
    assert outcomes(waiting, {MEMORY: 2048}) == {"big": False, "small": True}


def test_a_type_that_nobody_granted_is_denied() -> None:
    decisions, _ = decide([claim("a", {INSTANCES: 1})], {})
    assert decisions[0].message == "Requested 1 instance, 0 available."


amounts = st.dictionaries(st.sampled_from([INSTANCES, VCPUS, MEMORY]), st.integers(1, 5), min_size=1)


@given(
    asked=st.lists(st.tuples(amounts, st.integers(0, 100)), max_size=12),
    limits=st.dictionaries(st.sampled_from([INSTANCES, VCPUS, MEMORY]), st.integers(0, 12)),
)
def test_no_more_is_given_than_was_granted_and_nothing_that_fits_is_refused(
    asked: list[tuple[dict[str, int], int]], limits: dict[str, int]
) -> None:
    claims = [claim(f"c{number}", requests, age=age) for number, (requests, age) in enumerate(asked)]
    decisions, allocated = decide(claims, limits)
    assert len(decisions) == len(claims)
    for type_, amount in allocated.items():
        assert amount <= limits.get(type_, 0)
    for decision in decisions:
        if not decision.granted:
            left = {type_: limits.get(type_, 0) - allocated.get(type_, 0) for type_ in (INSTANCES, VCPUS, MEMORY)}
            assert any(request.amount > left[request.resource_type] for request in decision.claim.spec.requests)
