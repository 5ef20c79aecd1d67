"""Derived names: their form, their length, and that they do not collide."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.names import (
    binding_name,
    claim_name,
    deployment_name,
    hub_namespace,
    instance_name,
    ordinal_of,
    policy_name,
    subnet_claim_name,
)

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

labels = st.text("abz019-", max_size=61).map(lambda middle: f"a{middle}9")
long_labels = st.text("abz019-", min_size=55, max_size=61).map(lambda middle: f"a{middle}9")
uids = st.uuids().map(str)
codes = st.from_regex(r"[A-Za-z]{3,5}", fullmatch=True)
cities = st.one_of(codes, st.text(max_size=80))


@pytest.mark.parametrize(
    ("city", "expected"),
    [("DFW", "hello-main-dfw"), ("lhr", "hello-main-lhr"), ("New York", "hello-main-new-york")],
)
def test_a_short_deployment_name_has_the_full_form(city: str, expected: str) -> None:
    assert deployment_name("hello", "any-uid", "main", city) == expected


def test_the_full_form_has_at_most_57_characters() -> None:
    fits = "w" * 48
    assert len(deployment_name(fits, "uid", "main", "DFW")) == 57
    assert deployment_name(fits, "uid", "main", "DFW") == f"{fits}-main-dfw"
    # printf 'uid\0main\0dfw' | sha256sum
    assert deployment_name(fits + "w", "uid", "main", "DFW") == "w" * 30 + "-84433a94b4"


def test_hyphens_at_the_cut_are_trimmed() -> None:
    workload = "w" * 28 + "--" + "v" * 30
    assert re.fullmatch(r"w{28}-[0-9a-f]{10}", deployment_name(workload, "uid", "main", "DFW"))


@pytest.mark.parametrize("city", ["new_york", "São Paulo", "trailing ", "Washington, D.C."])
def test_a_city_with_invalid_characters_leads_to_the_bounded_form(city: str) -> None:
    assert re.fullmatch(r"web-[0-9a-f]{10}", deployment_name("web", "uid", "main", city))


@given(st.one_of(labels, long_labels), uids, labels, cities, st.integers(0, 999))
def test_names_are_dns_labels_with_room_for_suffixes(
    workload: str, uid: str, placement: str, city: str, number: int
) -> None:
    deployment = deployment_name(workload, uid, placement, city)
    assert len(deployment) <= 57
    for name in (deployment, instance_name(deployment, number), binding_name(deployment, number % 10)):
        assert len(name) <= 63
        assert DNS_LABEL.fullmatch(name)


@given(labels, uids, st.tuples(labels, codes), st.tuples(labels, codes))
def test_placements_and_cities_of_a_workload_never_share_a_name(
    workload: str, uid: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    same = (first[0], first[1].lower()) == (second[0], second[1].lower())
    assert (deployment_name(workload, uid, *first) == deployment_name(workload, uid, *second)) == same


@given(long_labels, uids, uids, labels, codes)
def test_a_bounded_name_is_not_reused_by_a_recreated_workload(
    workload: str, uid: str, later: str, placement: str, city: str
) -> None:
    names = {deployment_name(workload, uid, placement, city), deployment_name(workload, later, placement, city)}
    assert len(names) == (1 if uid == later else 2)


anything = st.tuples(labels, uids, labels, cities)


@given(anything, anything)
def test_names_are_equal_only_for_equal_input_or_an_equal_full_form(
    first: tuple[str, str, str, str], second: tuple[str, str, str, str]
) -> None:
    """The full form joins with hyphens, so a-b/c and a/b-c share a name; a controller reports that."""

    def full(workload: str, uid: str, placement: str, city: str) -> str:
        return f"{workload}-{placement}-{city.lower().replace(' ', '-')}"

    if deployment_name(*first) == deployment_name(*second):
        bounded = deployment_name(*first) != full(*first)
        same = (*first[:3], first[3].lower()) == (*second[:3], second[3].lower())
        assert same if bounded else full(*first) == full(*second)


@given(st.tuples(uids, labels, cities), st.tuples(uids, labels, cities))
def test_bounded_names_differ_whenever_their_input_does(
    first: tuple[str, str, str], second: tuple[str, str, str]
) -> None:
    workload = "w" * 63
    same = (*first[:2], first[2].lower()) == (*second[:2], second[2].lower())
    assert (deployment_name(workload, *first) == deployment_name(workload, *second)) == same


@given(labels, st.lists(st.integers(0, 999), min_size=2, max_size=2, unique=True))
def test_names_of_a_deployments_objects_never_collide(deployment: str, numbers: list[int]) -> None:
    derived = [derive(deployment, number) for derive in (instance_name, binding_name) for number in numbers]
    claims = [claim_name(instance_name(deployment, number)) for number in numbers]
    assert len({*derived, *claims}) == 6


@given(labels, st.integers(0, 10**6))
def test_an_ordinal_is_parsed_from_the_name(deployment: str, ordinal: int) -> None:
    assert ordinal_of(instance_name(deployment, ordinal)) == ordinal


@pytest.mark.parametrize("name", ["", "web", "7", "web-", "web-x", "web-01", "web-1x", "web-1\n", "web-²", "web-1.0"])
def test_a_name_without_an_ordinal_has_none(name: str) -> None:
    assert ordinal_of(name) is None


def test_derived_names() -> None:
    assert policy_name("LAX") == "city-lax"
    assert policy_name("New York") == "city-new-york"
    assert hub_namespace("11111111-2222-3333-4444-555555555555") == "ns-11111111-2222-3333-4444-555555555555"
    assert instance_name("hello-main-dfw", 0) == "hello-main-dfw-0"
    assert claim_name("hello-main-dfw-0") == "instance-hello-main-dfw-0"
    assert binding_name("hello-main-dfw", 1) == "hello-main-dfw-net-1"
    assert subnet_claim_name("default--dfw-1") == "default--dfw-1-0"
