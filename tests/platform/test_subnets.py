"""Arithmetic on address ranges and the addresses in them."""

from ipaddress import IPv4Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api.networking import IPV4, IPV6, NetworkIPAM, NetworkSpec
from datum_compute.platform.subnets import BadRange, assignable, carve, first_free, range_of, usable

AUTO = NetworkSpec()
TEN = ip_network("10.128.0.0/9")


def test_a_network_without_ranges_has_the_documented_ones() -> None:
    assert range_of(AUTO, "uid", IPV4) == TEN
    ipv6 = range_of(AUTO, "uid", IPV6)
    assert ipv6.prefixlen == 48
    assert ipv6.network_address in ip_network("fd20::/20")
    assert range_of(AUTO, "uid", IPV6) == ipv6
    assert range_of(AUTO, "another", IPV6) != ipv6


def test_the_ranges_of_a_network_are_used() -> None:
    spec = NetworkSpec(NetworkIPAM(ipv4_range="192.0.2.0/24", ipv6_range="2001:db8::/32"))
    assert str(range_of(spec, "uid", IPV4)) == "192.0.2.0/24"
    assert str(range_of(spec, "uid", IPV6)) == "2001:db8::/32"


@pytest.mark.parametrize("text", ["banana", "10.0.0.1/8", "10.0.0.0/33", "2001:db8::/32"])
def test_an_invalid_range_is_reported_with_its_field(text: str) -> None:
    with pytest.raises(BadRange, match=r"spec\.ipam\.ipv4Range is .* no range of IPv4 addresses"):
        range_of(NetworkSpec(NetworkIPAM(ipv4_range=text)), "uid", IPV4)


def test_a_subnet_is_a_20_by_default_unless_the_range_is_smaller() -> None:
    assert carve(TEN, [], family=IPV4).prefixlen == 20
    assert carve(TEN, [], family=IPV4, length=28).prefixlen == 28
    assert carve(ip_network("192.0.2.0/24"), [], family=IPV4) == ip_network("192.0.2.0/24")
    assert carve(ip_network("fd20::/48"), [], family=IPV6).prefixlen == 64


def test_a_requested_start_is_used_if_it_is_free() -> None:
    wanted = carve(TEN, [], family=IPV4, length=24, start="10.200.7.0")
    assert str(wanted) == "10.200.7.0/24"
    with pytest.raises(BadRange, match=r"10\.200\.7\.0/24 is taken"):
        carve(TEN, [wanted], family=IPV4, length=24, start="10.200.7.0")


@pytest.mark.parametrize(
    ("length", "start", "cause"),
    [
        (8, "", "does not fit"),
        (33, "", "does not fit"),
        (24, "192.0.2.0", "lies outside"),
        (24, "10.200.7.1", "No subnet of /24 starts at"),
        (24, "fd20::", "lies outside"),
        (24, "here", "No subnet of /24 starts at"),
    ],
)
def test_impossible_requests_are_refused_with_the_cause(length: int, start: str, cause: str) -> None:
    with pytest.raises(BadRange, match=cause):
        carve(TEN, [], family=IPV4, length=length, start=start)


def test_sites_that_cannot_see_each_other_choose_different_subnets() -> None:
    cities = ["dfw", "ord", "ams", "lhr", "sin", "fra", "nrt", "gru"]
    assert len({carve(TEN, [], family=IPV4, near=city) for city in cities}) == len(cities)


ranges = st.integers(16, 24).map(lambda length: ip_network((0x0A800000, length)))
lengths = st.lists(st.integers(20, 30), min_size=1, max_size=20)


@given(range_=ranges, lengths=lengths, near=st.text(max_size=3))
def test_subnets_never_overlap_and_the_whole_range_can_be_used(
    range_: IPv4Network, lengths: list[int], near: str
) -> None:
    taken: list[IPv4Network] = []
    for length in lengths:
        try:
            fresh = carve(range_, taken, family=IPV4, length=length, near=near)
        except BadRange:
            free = [
                prefix
                for prefix in (range_.subnets(new_prefix=length) if length >= range_.prefixlen else ())
                if not any(prefix.overlaps(other) for other in taken)
            ]
            assert free == []
            continue
        assert isinstance(fresh, IPv4Network)
        assert fresh.subnet_of(range_)
        assert fresh.prefixlen == length
        assert not any(fresh.overlaps(other) for other in taken)
        taken.append(fresh)


@pytest.mark.parametrize(
    ("subnet", "first", "last", "count"),
    [
        ("10.128.0.0/20", "10.128.0.2", "10.128.15.254", 4093),
        ("10.128.0.0/29", "10.128.0.2", "10.128.0.6", 5),
        ("10.128.0.0/30", "10.128.0.2", "10.128.0.2", 1),
        ("fd20::/125", "fd20::2", "fd20::7", 6),
    ],
)
def test_addresses_start_after_the_gateway(subnet: str, first: str, last: str, count: int) -> None:
    prefix = ip_network(subnet)
    assert usable(prefix) == count
    assert first_free(prefix, lambda address: False) == first
    assert first_free(prefix, lambda address: address != last) == last
    assert first_free(prefix, lambda address: True) is None


@pytest.mark.parametrize("subnet", ["10.128.0.0/31", "10.128.0.0/32", "fd20::/127"])
def test_a_subnet_can_be_too_small_for_instances(subnet: str) -> None:
    assert usable(ip_network(subnet)) == 0
    assert first_free(ip_network(subnet), lambda address: False) is None


@pytest.mark.parametrize("address", ["10.128.0.0", "10.128.0.1", "10.128.0.7", "10.128.0.8", "fd20::2", "x", ""])
def test_some_addresses_are_not_for_instances(address: str) -> None:
    assert not assignable(ip_network("10.128.0.0/29"), address)


@given(length=st.integers(24, 30), taken=st.sets(st.integers(0, 255)))
def test_the_lowest_free_address_is_found_if_there_is_one(length: int, taken: set[int]) -> None:
    prefix = ip_network((0x0A800000, length))
    held = {str(ip_address(0x0A800000 + number)) for number in taken}
    free = first_free(prefix, held.__contains__)
    expected = [str(address) for address in list(prefix.hosts())[1:] if str(address) not in held]
    assert free == (expected[0] if expected else None)
    assert free is None or assignable(prefix, free)
