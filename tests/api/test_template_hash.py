"""The digest of a template, which may never change."""

import json
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.template_hash import template_hash

SANDBOX = {
    "metadata": {"labels": {"app": "hello"}},
    "spec": {
        "runtime": {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "sandbox": {
                "containers": [
                    {"name": "web", "image": "registry.example/hello:1", "ports": [{"name": "http", "port": 8080}]}
                ]
            },
        },
        "networkInterfaces": [{"network": {"name": "default"}}],
    },
}
MACHINE = {
    "metadata": {"annotations": {"compute.datumapis.com/ssh-keys": "ops:ssh-ed25519 AAAA ops@example", "empty": ""}},
    "spec": {
        "runtime": {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "virtualMachine": {"volumeAttachments": [{"name": "boot"}], "ports": [{"name": "ssh", "port": 22}]},
        },
        "networkInterfaces": [{"network": {"name": "default"}}],
        "volumes": [
            {
                "name": "boot",
                "disk": {
                    "template": {
                        "spec": {
                            "type": "pd-standard",
                            "populator": {"image": {"name": "datumcloud/ubuntu-2204-lts"}},
                            "resources": {"requests": {"storage": "30Gi"}},
                        }
                    }
                },
            }
        ],
    },
}

ENTRY_POINT = {
    "spec": {
        "runtime": {
            "sandbox": {
                "containers": [
                    {"name": "web", "image": "a:1", "command": ["sh"], "args": ["-c", ""], "workingDir": "/srv"}
                ]
            }
        }
    }
}


def hash_of(template: Any) -> str:
    return template_hash(json.dumps(template).encode())


@pytest.mark.parametrize(
    ("template", "golden"),
    [
        (SANDBOX, "a2b846726f"),
        (MACHINE, "d033579244"),
        (ENTRY_POINT, "cd7f4d8a52"),
        ({"metadata": {"labels": {"name": 'Zürich "1"\n\u2028'}}}, "164ea93e06"),
        ({}, "44136fa355"),
    ],
)
def test_golden_values_never_change(template: Any, golden: str) -> None:
    """A change here replaces every Instance of every installation. Add rows; never edit them."""
    assert hash_of(template) == golden


def test_it_is_the_digest_of_canonical_json() -> None:
    text = '{"metadata":{"labels":{"a":"","ü":"1"}},"spec":{"n":[0,false,{}]}}'
    template = {"spec": {"n": [0, False, {"x": None}], "e": []}, "metadata": {"labels": {"ü": "1", "a": ""}}}
    assert hash_of(template) == sha256(text.encode()).hexdigest()[:10]


def test_bytes_and_raw_hash_alike() -> None:
    data = json.dumps(SANDBOX).encode()
    assert template_hash(msgspec.Raw(data)) == template_hash(data)


words = st.text(min_size=1, max_size=6)
values = st.recursive(
    st.one_of(words, st.integers(-(2**63), 2**63 - 1), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=20,
)
templates = st.dictionaries(words, values, max_size=5)


def turned(value: Any) -> Any:
    """The same value with the keys of every object in the opposite order."""
    match value:
        case dict():
            return {key: turned(value[key]) for key in reversed(value)}
        case list():
            return [turned(item) for item in value]
    return value


def padded(value: Any, empty: Any) -> Any:
    """The same value with an empty field in every object."""
    match value:
        case dict():
            return {key: padded(item, empty) for key, item in value.items()} | {"an empty field": empty}
        case list():
            return [padded(item, empty) for item in value]
    return value


@given(templates)
def test_key_order_does_not_matter(template: Any) -> None:
    assert hash_of(turned(template)) == hash_of(template)


@given(templates, st.sampled_from([None, "", {}, [], {"a": {"b": None}}]))
def test_empty_equals_absent(template: Any, empty: Any) -> None:
    assert hash_of(padded(template, empty)) == hash_of(template)


@given(templates, words, words, words)
def test_another_value_leads_to_another_hash(template: Any, key: str, one: str, other: str) -> None:
    assert (hash_of(template | {key: one}) == hash_of(template | {key: other})) == (one == other)


@given(st.lists(words, min_size=1, unique=True))
def test_the_order_of_a_list_matters(items: list[str]) -> None:
    assert (hash_of({"a": items}) == hash_of({"a": items[::-1]})) == (len(items) == 1)


@pytest.mark.parametrize("map_", ["labels", "annotations"])
def test_a_label_with_an_empty_value_is_not_an_absent_label(map_: str) -> None:
    assert hash_of({"metadata": {map_: {"a": ""}}}) != hash_of({"metadata": {map_: {}}}) == hash_of({})


@pytest.mark.parametrize("items", [[""], [None], [{}], [[]]])
def test_an_empty_entry_of_a_list_keeps_its_place(items: list[Any]) -> None:
    assert hash_of({"a": items}) != hash_of({})


def test_a_restart_changes_the_hash() -> None:
    restarted = SANDBOX | {"metadata": {"annotations": {"compute.datumapis.com/restartedAt": "2026-06-10T12:30:00Z"}}}
    assert hash_of(restarted) != hash_of(SANDBOX)
