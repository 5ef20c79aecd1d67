"""How an Instance is told its addresses. Entry points: `addresses_of`, `annotation`."""

import json

import msgspec

from datum_compute.api.instance import Instance
from datum_compute.api.labels import NETWORK_ADDRESSES

Addresses = tuple[tuple[str, ...], ...]
"""One entry an interface of the spec, in order; in each, one address a family of its network, the first one leading."""

_decode = msgspec.json.Decoder(tuple[str | tuple[str, ...], ...]).decode


def addresses_of(instance: Instance) -> Addresses | None:
    """None as long as they are not known, and when what stands there cannot be read."""
    text = instance.metadata.annotations.get(NETWORK_ADDRESSES)
    if not text:
        return None
    try:
        entries = _decode(text)
    except msgspec.MsgspecError:
        return None
    return tuple((entry,) if isinstance(entry, str) else entry for entry in entries)


def annotation(addresses: Addresses) -> str:
    """A plain string for an interface with one address, a list for one with several."""
    return json.dumps([entry[0] if len(entry) == 1 else list(entry) for entry in addresses])
