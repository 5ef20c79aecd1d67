"""The kinds that a plane serves from the start. Entry point: `served_by`."""

from functools import cache
from typing import Any

import msgspec

from datum_compute.api.crd import by_role
from datum_compute.embedded.builtin import BUILT_IN
from datum_compute.embedded.served import Served


@cache
def served_by(role: str) -> tuple[Served, ...]:
    """What every plane of a role serves: the built-ins, and the kinds that the API package defines for it."""
    return (*BUILT_IN, *(_compiled(msgspec.json.encode(definition)) for definition in by_role(role)))


@cache
def _compiled(definition: bytes) -> Served:
    value: dict[str, Any] = msgspec.json.decode(definition)
    return Served.of(value)
