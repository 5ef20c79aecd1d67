"""Which claims fit into the granted amounts."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.quota import INSTANCES, MEMORY, RESOURCE_CLAIM, VCPUS, ConsumerRef, ResourceClaim
from datum_compute.kube.meta import Json, decode, encode, timestamp
from datum_compute.platform.allocation import Pool, State, decide, decide_as_milo_does

START = datetime(2026, 6, 1, tzinfo=UTC)


def claim(
    name: str,
    requests: dict[str, int],
    *,
    age: int = 0,
    granted: bool = False,
    decided: dict[str, str] | None = None,
    consumer: dict[str, str] | None = None,
) -> ResourceClaim:
    body: Json = RESOURCE_CLAIM.body(name, "default")
    body["metadata"] |= {"creationTimestamp": timestamp(START - timedelta(seconds=age)), "resourceVersion": "1"}
    body["spec"] = {
        "consumerRef": consumer or {"kind": "Project", "name": "demo"},
        "requests": [{"resourceType": type_, "amount": amount} for type_, amount in requests.items()],
    }
    states = decided or (dict.fromkeys(requests, "Granted") if granted else {})
    if states:
        body["status"] = {
            "allocations": [
                {"resourceType": type_, "status": state, "lastTransitionTime": timestamp(START)}
                | ({"allocatedAmount": requests[type_]} if state == "Granted" else {"message": "denied before"})
                for type_, state in states.items()
            ]
        }
    return decode(encode(body), ResourceClaim)


def outcomes(claims: list[ResourceClaim], limits: dict[str, int]) -> dict[str, bool]:
    return {decision.claim.name: decision.state is State.GRANTED for decision in decide(claims, limits)[0]}


def test_the_oldest_gets_the_last_unit() -> None:
    waiting = [claim("young", {INSTANCES: 1}), claim("old", {INSTANCES: 1}, age=60)]
    assert outcomes(waiting, {INSTANCES: 1}) == {"old": True, "young": False}


def test_a_granted_claim_stays_granted_when_the_limit_falls() -> None:
    held = [claim("a", {INSTANCES: 1}, granted=True), claim("b", {INSTANCES: 1}, granted=True)]
    assert outcomes(held, {INSTANCES: 1}) == {"a": True, "b": True}


def test_a_claim_is_granted_as_a_whole_or_not_at_all() -> None:
    decisions, allocated = decide([claim("a", {INSTANCES: 1, VCPUS: 2000})], {INSTANCES: 5, VCPUS: 1000})
    assert [decision.state for decision in decisions] == [State.DENIED]
    assert {outcome.state for outcome in decisions[0].outcomes} == {State.DENIED}
    assert allocated == {INSTANCES: 0, VCPUS: 0}
    assert decisions[0].message == "Requested 2 vCPU, 1 available."


def test_a_claim_that_does_not_fit_does_not_delay_others() -> None:
    waiting = [claim("big", {MEMORY: 4096}, age=60), claim("small", {MEMORY: 1024})]
    assert outcomes(waiting, {MEMORY: 2048}) == {"big": False, "small": True}


def test_a_type_without_grants_is_denied() -> None:
    decisions, _ = decide([claim("a", {INSTANCES: 1})], {})
    assert decisions[0].message == "Requested 1 instance, 0 available."


amounts = st.dictionaries(st.sampled_from([INSTANCES, VCPUS, MEMORY]), st.integers(1, 5), min_size=1)


@given(
    requested=st.lists(st.tuples(amounts, st.integers(0, 100)), max_size=12),
    limits=st.dictionaries(st.sampled_from([INSTANCES, VCPUS, MEMORY]), st.integers(0, 12)),
)
def test_allocations_never_exceed_limits_and_claims_that_fit_are_granted(
    requested: list[tuple[dict[str, int], int]], limits: dict[str, int]
) -> None:
    claims = [claim(f"c{number}", requests, age=age) for number, (requests, age) in enumerate(requested)]
    decisions, allocated = decide(claims, limits)
    assert len(decisions) == len(claims)
    for type_, amount in allocated.items():
        assert amount <= limits.get(type_, 0)
    for decision in decisions:
        if decision.state is not State.GRANTED:
            left = {type_: limits.get(type_, 0) - allocated.get(type_, 0) for type_ in (INSTANCES, VCPUS, MEMORY)}
            assert any(request.amount > left[request.resource_type] for request in decision.claim.spec.requests)


# As Milo does

DEMO = ConsumerRef("Project", "demo")


def pools(limits: dict[str, int], consumer: ConsumerRef = DEMO) -> list[Pool]:
    return [Pool(consumer, type_, limit) for type_, limit in limits.items()]


def states(claims: list[ResourceClaim], pools: list[Pool]) -> dict[str, list[str]]:
    decisions, _ = decide_as_milo_does(claims, pools)
    return {decision.claim.name: [outcome.state.value for outcome in decision.outcomes] for decision in decisions}


def test_for_milo_a_denial_is_final_even_when_there_is_room() -> None:
    denied = claim("a", {INSTANCES: 1}, decided={INSTANCES: "Denied"})
    assert states([denied], pools({INSTANCES: 10})) == {"a": ["Denied"]}


def test_for_milo_types_are_decided_separately_and_those_that_fit_are_reserved() -> None:
    mixed = claim("a", {INSTANCES: 1, VCPUS: 2000})
    decisions, allocated = decide_as_milo_does([mixed], pools({INSTANCES: 5, VCPUS: 1000}))
    assert [outcome.state for outcome in decisions[0].outcomes] == [State.GRANTED, State.DENIED]
    assert decisions[0].state is State.DENIED
    by_type = {pool.resource_type: allocated[pool.name] for pool in pools({INSTANCES: 5, VCPUS: 1000})}
    assert by_type == {INSTANCES: 1, VCPUS: 0}


def test_for_milo_a_partly_granted_claim_blocks_others_until_it_is_deleted() -> None:
    half = claim("half", {INSTANCES: 1, VCPUS: 2}, age=9, decided={INSTANCES: "Granted", VCPUS: "Denied"})
    other = claim("other", {INSTANCES: 1})
    limits = pools({INSTANCES: 1, VCPUS: 1})
    assert states([half, other], limits)["other"] == ["Denied"]
    assert states([other], limits)["other"] == ["Granted"]


def test_for_milo_only_the_allocations_have_numbers_in_their_messages() -> None:
    decisions, _ = decide_as_milo_does([claim("a", {VCPUS: 2000})], pools({VCPUS: 1000}))
    assert "available" not in decisions[0].message
    assert decisions[0].outcomes[0].message == "Requested 2 vCPU, 1 available."


def test_for_milo_a_lowered_limit_revokes_nothing() -> None:
    held = claim("a", {INSTANCES: 3}, granted=True)
    _, allocated = decide_as_milo_does([held], pools({INSTANCES: 1}))
    assert list(allocated.values()) == [3]


ALMOST = [
    {"kind": "Project", "name": "demo", "apiGroup": "resourcemanager.miloapis.com"},
    {"kind": "Project", "name": "demo", "namespace": "default"},
]


def test_for_milo_a_consumer_that_differs_in_any_field_is_not_decided() -> None:
    for consumer in ALMOST:
        assert states([claim("a", {INSTANCES: 1}, consumer=consumer)], pools({INSTANCES: 5})) == {"a": ["Pending"]}


def test_for_milo_a_claim_without_a_bucket_stays_pending() -> None:
    decisions, allocated = decide_as_milo_does([claim("a", {INSTANCES: 1})], [])
    assert decisions[0].state is State.PENDING
    assert allocated == {}


def test_for_milo_one_denial_outweighs_pending_requests() -> None:
    decisions, _ = decide_as_milo_does([claim("a", {INSTANCES: 9, VCPUS: 1})], pools({INSTANCES: 1}))
    assert [outcome.state for outcome in decisions[0].outcomes] == [State.DENIED, State.PENDING]
    assert decisions[0].state is State.DENIED


known = st.sampled_from(["", "Granted", "Denied"])


@given(
    requested=st.lists(st.tuples(amounts, st.integers(0, 100), known), max_size=12),
    limits=st.dictionaries(st.sampled_from([INSTANCES, VCPUS, MEMORY]), st.integers(0, 12)),
)
def test_for_milo_deciding_again_changes_nothing_and_never_exceeds_the_limit(
    requested: list[tuple[dict[str, int], int, str]], limits: dict[str, int]
) -> None:
    claims = [
        claim(f"c{number}", requests, age=age, decided=dict.fromkeys(requests, state) if state else None)
        for number, (requests, age, state) in enumerate(requested)
    ]
    held = {
        type_: sum(requests.get(type_, 0) for requests, _, state in requested if state == "Granted") for type_ in limits
    }
    decisions, allocated = decide_as_milo_does(claims, pools(limits))
    for pool in pools(limits):
        assert allocated[pool.name] <= max(pool.limit, held[pool.resource_type])
    decided = [
        claim(
            decision.claim.name,
            {outcome.request.resource_type: outcome.request.amount for outcome in decision.outcomes},
            age=(START - decision.claim.metadata.creation_timestamp).seconds
            if decision.claim.metadata.creation_timestamp
            else 0,
            decided={outcome.request.resource_type: outcome.state.value for outcome in decision.outcomes},
        )
        for decision in decisions
    ]
    again, still = decide_as_milo_does(decided, pools(limits))
    assert still == allocated
    assert [[outcome.state for outcome in decision.outcomes] for decision in again] == [
        [outcome.state for outcome in decision.outcomes] for decision in decisions
    ]
