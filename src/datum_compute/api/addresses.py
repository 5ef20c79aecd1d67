"""The annotation that gives an Instance its addresses. Entry points: `addresses_of`, `annotation`."""

import json

import msgspec

from datum_compute.api.instance import Instance
from datum_compute.api.labels import NETWORK_ADDRESSES

Addresses = tuple[tuple[str, ...], ...]
"""One entry per interface, in the order of the spec, with one address per family of its network."""

_decode = msgspec.json.Decoder(tuple[str | tuple[str, ...], ...]).decode


def addresses_of(instance: Instance) -> Addresses | None:
    """The addresses of an Instance; None if it has none yet, or the annotation cannot be read."""
    text = instance.metadata.annotations.get(NETWORK_ADDRESSES)
    if not text:
        return None
    try:
        entries = _decode(text)
    except msgspec.MsgspecError:
        return None
    return tuple((entry,) if isinstance(entry, str) else entry for entry in entries)


def annotation(addresses: Addresses) -> str:
    """The value of the annotation: a string for an interface with one address, a list for one with several."""
    return json.dumps([entry[0] if len(entry) == 1 else list(entry) for entry in addresses])
