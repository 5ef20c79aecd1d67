"""Arithmetic on address ranges and the addresses in them. Entry points: `range_of`, `carve`, `first_free`."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from datum_compute.api.networking import IPV4, IPV6, NetworkSpec, SubnetSpec

IPNetwork = IPv4Network | IPv6Network
IPAddress = IPv4Address | IPv6Address

DEFAULT_IPV4_RANGE = "10.128.0.0/9"
_DEFAULT_IPV6_RANGE = IPv6Network("fd20::/20")
_NETWORK_IPV6_LENGTH = 48
_USUAL_LENGTH = {IPV4: 20, IPV6: 64}
_FIRST = 2  # after the subnet's own address and its gateway


class BadRange(ValueError):
    """A requested range is not valid or not available; the text says which and why."""


def range_of(network: NetworkSpec, uid: str, family: str) -> IPNetwork:
    """All addresses of a network. Without an IPv6 range in its spec, that one is derived from its uid."""
    if family == IPV4:
        return _parsed(network.ipam.ipv4_range or DEFAULT_IPV4_RANGE, "spec.ipam.ipv4Range", 4)
    if network.ipam.ipv6_range:
        return _parsed(network.ipam.ipv6_range, "spec.ipam.ipv6Range", 6)
    return _at(_DEFAULT_IPV6_RANGE, _NETWORK_IPV6_LENGTH, _number(uid))


def _parsed(text: str, field: str, version: int) -> IPNetwork:
    try:
        parsed = ip_network(text)
    except ValueError:
        raise BadRange(f"{field} is {text!r}, which is no range of IPv{version} addresses.") from None
    if parsed.version != version:
        raise BadRange(f"{field} is {text!r}, which is no range of IPv{version} addresses.")
    return parsed


def carve(
    range_: IPNetwork, taken: Iterable[IPNetwork], *, family: str, length: int = 0, start: str = "", near: str = ""
) -> IPNetwork:
    """A prefix within the range that overlaps none of `taken`. Raises `BadRange`.

    Without `start`, the search begins at a point derived from `near`, so that sites which cannot see each other's
    subnets hardly ever choose the same one.
    """
    length = length or max(_USUAL_LENGTH[family], range_.prefixlen)
    if not range_.prefixlen <= length <= range_.max_prefixlen:
        raise BadRange(f"A subnet of /{length} does not fit into {range_}.")
    others = list(taken)
    if start:
        wanted = _parsed_subnet(start, length, range_)
        if any(wanted.overlaps(other) for other in others):
            raise BadRange(f"The subnet {wanted} is taken, in whole or in part.")
        return wanted
    count = 1 << (length - range_.prefixlen)
    first = _number(near) % count
    for low, high in ((first, count), (0, first)):
        index = low
        while index < high:
            candidate = _at(range_, length, index)
            hit = next((other for other in others if candidate.overlaps(other)), None)
            if hit is None:
                return candidate
            beyond = (int(hit.broadcast_address) - int(range_.network_address)) // candidate.num_addresses
            index = max(index, beyond) + 1
    raise BadRange(f"No subnet of /{length} is left in {range_}; all of it is in use.")


def _parsed_subnet(start: str, length: int, range_: IPNetwork) -> IPNetwork:
    try:
        wanted = ip_network(f"{start}/{length}")
    except ValueError:
        raise BadRange(f"No subnet of /{length} starts at {start!r}.") from None
    if wanted.version != range_.version or not _within(wanted, range_):
        raise BadRange(f"The subnet {wanted} lies outside {range_}.")
    return wanted


def prefix_of(subnet: SubnetSpec) -> IPNetwork | None:
    """Address range of a subnet; None if whoever created it has not allocated one yet."""
    try:
        return ip_network(f"{subnet.start_address}/{subnet.prefix_length}")
    except ValueError:
        return None


def _within(inner: IPNetwork, outer: IPNetwork) -> bool:
    return inner.network_address in outer and inner.broadcast_address in outer


def _at(range_: IPNetwork, length: int, index: int) -> IPNetwork:
    """The prefix of a length at an index, modulo the number of such prefixes."""
    index %= 1 << (length - range_.prefixlen)
    size = 1 << (range_.max_prefixlen - length)
    return ip_network((int(range_.network_address) + index * size, length))


def _number(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:8])


def usable(subnet: IPNetwork) -> int:
    """Number of addresses that instances can have."""
    return max(0, _end(subnet) - _FIRST)


def assignable(subnet: IPNetwork, address: str) -> bool:
    """Whether an instance in the subnet can have the address, which must be in canonical notation."""
    try:
        parsed = type(subnet.network_address)(address)
    except ValueError:
        return False
    return str(parsed) == address and _FIRST <= int(parsed) - int(subnet.network_address) < _end(subnet)


def first_free(subnet: IPNetwork, is_taken: Callable[[str], bool], lowest: int = 0) -> str | None:
    """The lowest address, from `lowest` on, that an instance can have and that is not taken; None if there is none."""
    base = int(subnet.network_address)
    for number in range(max(_FIRST, lowest - base), _end(subnet)):
        address = str(subnet.network_address + number)
        if not is_taken(address):
            return address
    return None


def _end(subnet: IPNetwork) -> int:
    """Index after the last address that an instance can have; the last one of an IPv4 subnet is for broadcasts."""
    return subnet.num_addresses - (1 if subnet.version == 4 else 0)
