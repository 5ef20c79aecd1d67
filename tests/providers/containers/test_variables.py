"""References to variables, as Kubernetes expands them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.providers.containers.variables import expanded

VARIABLES = {"A": "a", "B": "$(A)", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "a"),
        ("x$(A)y$(A)", "xaya"),
        ("$(B)", "$(A)"),
        ("$(EMPTY)", ""),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$a"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        ("$", "$"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$($(A))", "$($(A))"),
        ("$(A)$", "a$"),
    ],
)
def test_references(text: str, expected: str) -> None:
    assert expanded(text, VARIABLES) == expected


@given(st.text(alphabet="$()Ax"))
def test_a_text_whose_dollars_are_doubled_comes_back(text: str) -> None:
    assert expanded(text.replace("$", "$$"), VARIABLES) == text
