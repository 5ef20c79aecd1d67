"""The user in the claims of a token."""

import base64
import json

import pytest

from datum_compute.cli.talk.actor import claimed


def token(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"Bearer head.{body}.signature"


@pytest.mark.parametrize(
    ("authorization", "name"),
    [
        (token({"email": "ada@example.com", "sub": "7"}), "ada@example.com"),
        (token({"preferred_username": "ada", "sub": "7"}), "ada"),
        (token({"sub": "7"}), "7"),
        (token({}), ""),
        (token(["a"]), ""),
        ("Bearer opaque", ""),
        ("Bearer a.%%%.c", ""),
        ("", ""),
    ],
)
def test_the_most_readable_claim_counts(authorization: str, name: str) -> None:
    assert claimed(authorization) == name
