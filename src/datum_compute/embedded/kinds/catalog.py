"""The kinds that a plane serves from the start. Entry point: `plane_kinds`."""

from collections.abc import Iterable
from functools import cache

import msgspec

from datum_compute.embedded.kinds.builtin import BUILT_IN
from datum_compute.embedded.kinds.definitions import DEFINITIONS
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.kube.meta import Json


def plane_kinds(definitions: Iterable[Json]) -> tuple[ServedKind, ...]:
    """The built-in kinds, and those of the given CustomResourceDefinitions."""
    defined = (_compile(msgspec.json.encode(definition)) for definition in definitions)
    return (*BUILT_IN, *defined, DEFINITIONS)


@cache
def _compile(definition: bytes) -> ServedKind:
    return ServedKind.of(msgspec.json.decode(definition))
