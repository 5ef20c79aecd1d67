"""The rules for Workloads never raise, and never quote more of their input than a person reads."""

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.api.names import deployment_name
from datum_compute.api.validation import Facts, workload_violations
from datum_compute.api.validation.ssh import is_public_key
from datum_compute.kube.errors import Cause, Invalid
from tests.api.test_validation import FACTS, KEY, MACHINE, SANDBOX, STORAGE
from tests.conftest import count

WORKLOADS = [SANDBOX, MACHINE, STORAGE]
REASONS = {
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueInvalid",
    "FieldValueNotSupported",
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueNotFound",
    "InternalError",
}
Path = tuple[str | int, ...]

thorough = settings(max_examples=count(100, 5000), deadline=None)


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    if at:
        yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from paths(inner, (*at, key))


def replaced(workload: Any, path: Path, value: Any) -> Any:
    copy = deepcopy(workload)
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


def nested(depth: int, as_list: bool) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if as_list else {"spec": value}
    return value


def check(causes: list[Cause]) -> None:
    """Asserts that every cause names a field and can be sent."""
    for cause in causes:
        assert cause.reason in REASONS
        assert cause.field.startswith(("spec.", "metadata.name")) or cause.field == "spec"
        assert 0 < len(cause.message) < 400
        assert cause.message.isprintable()
    msgspec.json.encode(Invalid("no", causes=causes).status())


EVERY_PLACE = [(workload, path) for workload in WORKLOADS for path in paths(workload)]

hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(
        [10**4000, -(10**40), 2**63, 1e308, "1e999999999", "9" * 100, "\ud800", "\x9b31m", "\u202e", '"\\']
    ),
    st.text(st.characters(), max_size=20),
)
junk = st.recursive(
    hostile,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


@thorough
@given(st.sampled_from(WORKLOADS), st.lists(st.tuples(st.randoms(use_true_random=False), junk), min_size=1, max_size=4))
def test_no_change_of_a_workload_makes_the_rules_raise(
    workload: dict[str, Any], changes: list[tuple[random.Random, Any]]
) -> None:
    after = workload
    for choice, value in changes:
        after = replaced(after, choice.choice(list(paths(after))), value)
    check(workload_violations(after, FACTS))
    check(workload_violations(after, Facts()))
    check(workload_violations(after, FACTS, workload))
    check(workload_violations(workload, FACTS, after))


@thorough
@given(junk, junk)
def test_no_object_makes_the_rules_raise(after: Any, before: Any) -> None:
    check(workload_violations(after, FACTS))
    check(workload_violations(after, FACTS, before))


@thorough
@given(st.sampled_from(WORKLOADS), st.randoms(use_true_random=False), st.data())
def test_the_order_of_fields_does_not_matter(
    workload: dict[str, Any], choice: random.Random, data: st.DataObject
) -> None:
    def shuffled(value: Any) -> Any:
        match value:
            case dict():
                keys = list(value)
                choice.shuffle(keys)
                return {key: shuffled(value[key]) for key in keys}
            case list():
                return [shuffled(inner) for inner in value]
        return value

    assert workload_violations(shuffled(workload), FACTS) == []
    spoiled = replaced(workload, data.draw(st.sampled_from(list(paths(workload)))), data.draw(hostile))
    assert workload_violations(shuffled(spoiled), FACTS) == workload_violations(spoiled, FACTS)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 1.5, float("nan"), float("inf"), 2**31, 10**5000, "", "x", "1e-999999999", [], [[]], {},
        {"": {}}, [None], [0], [{}], ["x", "x"], (), nested(200_000, as_list=True), nested(200_000, as_list=False),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_wrong_types_and_sizes_are_reported_anywhere(value: Any) -> None:
    for workload, path in EVERY_PLACE:
        after = deepcopy(workload)
        at: Any = after
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        check(workload_violations(after, FACTS))
        check(workload_violations(after, FACTS, workload))


@pytest.mark.parametrize("char", ["x", "\x00", "\ud800", "é", "\n", ":", '"'])
def test_a_message_quotes_at_most_100_characters_of_a_value(char: str) -> None:
    long = char * 1_000_000
    for workload, path in EVERY_PLACE:
        causes = workload_violations(replaced(workload, path, long), FACTS)
        assert all(char * 101 not in cause.message for cause in causes)
        check(causes)


def test_specs_too_deep_to_compare_are_assumed_to_differ() -> None:
    after, before = (dict(SANDBOX, spec={"x": nested(200_000, as_list=True)}) for _ in range(2))
    assert {cause.reason for cause in workload_violations(after, Facts(), before)} == {
        "FieldValueRequired",
        "FieldValueNotSupported",
    }


def test_the_number_of_reported_violations_is_limited() -> None:
    after = deepcopy(SANDBOX)
    after["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"] = [{}] * 100_000
    causes = workload_violations(after, FACTS)
    assert len(causes) == 251
    assert causes[-1].field == "spec"
    assert "more than 250 mistakes" in causes[-1].message


@thorough
@given(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True),
    st.lists(
        st.tuples(
            st.from_regex(r"[a-c]([-a-c]{0,3}[a-c])?", fullmatch=True),
            st.lists(st.from_regex(r"[A-Ca-c]([-A-Ca-c]{0,3}[a-c])?", fullmatch=True), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_deployments_of_an_admitted_workload_have_unique_names_that_fit_a_label(
    name: str, places: list[tuple[str, list[str]]]
) -> None:
    placements = [
        {"name": placement, "cityCodes": cities, "scaleSettings": {"minReplicas": 1}} for placement, cities in places
    ]
    after = SANDBOX | {
        "metadata": {"name": name, "uid": "u"},
        "spec": SANDBOX["spec"] | {"placements": placements},
    }
    names = [deployment_name(name, "u", placement, city) for placement, cities in places for city in cities]
    admitted = workload_violations(after, Facts()) == []
    taken = len({placement for placement, _ in places}) < len(places)
    assert admitted == (len(set(names)) == len(names) and not taken)
    assert all(len(derived) <= 63 for derived in names)


@pytest.mark.parametrize(
    "key",
    [
        KEY,
        KEY.removesuffix(" ops@example"),
        f"  {KEY} with a longer comment ",
        "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBMbVUvGSr3EJewTN0NtLD0GETrqEZ3lgps"
        "+scqoLYyIABD6qdJDJGiUGtyvDFisTvY4aEHOxXMwWuTUmB1ykQxk=",
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDQdSzMT7T/BdcZAmke/RZQ3ayedNiIf6SjiN0vylID5wCmfSY56QpK5Qzc1297esX3ETVQ"
        "RCM7rNb9y1RYrVvKCbrR3ZmiVgOqDAZN/dobk6dWSPY9Bm91k0n/6lEVV6QpMYOMWdTto+CifRqm5EmaOFNXN55osmfeQMjVnrLusw== a",
    ],
)
def test_ssh_public_keys_are_accepted(key: str) -> None:
    assert is_public_key(key)


BODY = KEY.split()[1]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ssh-ed25519",
        f"ssh-ed25519{BODY}",
        BODY,
        f"ssh-rsa {BODY}",  # the body is of another type
        f"ssh-foo {BODY}",
        f"ssh-ed25519 {BODY[:-4]}",  # cut off
        f"ssh-ed25519 {BODY}AAAA",
        f"ssh-ed25519 {BODY[:-1]}",
        "ssh-ed25519 AAAA...",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",  # the type alone
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAAA==",  # an empty key
        "ssh-ed25519 " + "A" * 1_000_000,
        "ssh-ed25519 é",
    ],
)
def test_other_texts_are_not_ssh_public_keys(key: str) -> None:
    assert not is_public_key(key)
