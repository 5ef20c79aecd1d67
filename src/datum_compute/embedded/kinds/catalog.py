"""The kinds that a plane serves from the start. Entry point: `served`."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from datum_compute.embedded.kinds.builtin import BUILT_IN
from datum_compute.embedded.kinds.served import Served
from datum_compute.kube.meta import Json


def served(definitions: Iterable[Json]) -> tuple[Served, ...]:
    """The built-in kinds, and those of some CustomResourceDefinitions."""
    return (*BUILT_IN, *(_compiled(msgspec.json.encode(definition)) for definition in definitions))


@cache
def _compiled(definition: bytes) -> Served:
    value: dict[str, Any] = msgspec.json.decode(definition)
    return Served.of(value)
