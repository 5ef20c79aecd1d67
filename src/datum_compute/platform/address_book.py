"""Which Instance of a cell has which addresses, and which are free. Entry point: `AddressBook`."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from datum_compute.api.addresses import Addresses, addresses_of, annotation
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import NETWORK_ADDRESSES
from datum_compute.platform.network_indexes import instances_by_network, key, networks_of
from datum_compute.platform.subnets import IPNetwork, assignable, first_free, usable
from datum_compute.runtime import Plane

BY_ADDRESS = "by-address"
WAITING = "waiting-for-addresses"


class Pool(Struct, frozen=True):
    """A subnet from which an interface may take one address."""

    network: str
    subnet: str
    prefix: IPNetwork


class Full(Exception):
    """No address is left in the subnet that the text names."""


class _Promise(Struct, frozen=True):
    instance: str
    uid: str
    text: str


class AddressBook:
    """Never gives an address to a second Instance before the first one is gone.

    The Instances themselves say which addresses they have. Memory holds only addresses promised in a write whose
    outcome is not known yet, and where the search for a free address may begin.
    """

    def __init__(self) -> None:
        self._promised: dict[tuple[str, str], _Promise] = {}  # by plane and namespace/network/address
        self._search_at: dict[tuple[str, str], dict[IPNetwork, int]] = {}  # by plane and namespace/network

    def choose(self, plane: Plane, instance: Instance, interfaces: Sequence[Sequence[Pool]]) -> Addresses:
        """One address from each pool of each interface. Addresses that the Instance may keep stay. Raises `Full`."""
        known = addresses_of(instance) or ()
        chosen: list[tuple[str, ...]] = []
        taken_now: set[str] = set()
        for index, pools in enumerate(interfaces):
            entry: list[str] = []
            for pool in pools:
                candidates = known[index] if index < len(known) else ()
                address = self._address(plane, instance, pool, candidates, taken_now)
                taken_now.add(_address_key(instance.namespace, pool.network, address))
                entry.append(address)
            chosen.append(tuple(entry))
        self._promise(plane, instance, interfaces, tuple(chosen))
        return tuple(chosen)

    def written(self, plane: Plane, instance: Instance) -> None:
        """Drops promises that the cached Instance now fulfils."""
        for address_key in by_address(instance):
            self._promised.pop((plane.name, address_key), None)

    def released(self, plane: Plane, instance: Instance) -> None:
        """Restarts the search, because the Instance is gone or has other addresses."""
        for network in networks_of(instance):
            self._search_at.pop((plane.name, key(instance.namespace, network)), None)

    def forget(self, plane: str) -> None:
        """Forgets a plane that left; if it returns, its Instances say what they have."""
        for memory in (self._promised, self._search_at):
            for entry in [entry for entry in memory if entry[0] == plane]:
                del memory[entry]

    def _address(
        self, plane: Plane, instance: Instance, pool: Pool, candidates: Iterable[str], taken_now: set[str]
    ) -> str:
        def is_taken(address: str) -> bool:
            address_key = _address_key(instance.namespace, pool.network, address)
            return address_key in taken_now or self._is_held(plane, instance, address_key)

        for address in (*candidates, *self._promised_to(plane, instance, pool)):
            if assignable(pool.prefix, address) and not is_taken(address):
                return address
        search_at = self._search_at.setdefault((plane.name, key(instance.namespace, pool.network)), {})
        free = first_free(pool.prefix, is_taken, search_at.get(pool.prefix, 0)) or first_free(pool.prefix, is_taken)
        if free is None:
            raise Full(
                f'Subnet {pool.subnet} ({pool.prefix}) of network "{pool.network}" is full: '
                f"all of its {usable(pool.prefix)} addresses are in use. Run fewer instances in this network here."
            )
        search_at[pool.prefix] = int(type(pool.prefix.network_address)(free))  # all below it are taken
        return free

    def _is_held(self, plane: Plane, instance: Instance, address_key: str) -> bool:
        """Whether another Instance has a better right to an address; of two that claim to have it, the older does."""
        is_own, uid = address_key in by_address(instance), instance.metadata.uid
        others = [other for other in plane.informer(INSTANCE).by(BY_ADDRESS, address_key) if other.metadata.uid != uid]
        if any(not is_own or _came_before(other, instance) for other in others):
            return True
        promise = self._promised.get((plane.name, address_key))
        if promise is None or promise.uid == instance.metadata.uid:
            return False
        holder = plane.informer(INSTANCE).get(instance.namespace, promise.instance)
        is_pending = (
            holder is not None
            and holder.metadata.uid == promise.uid
            and holder.metadata.annotations.get(NETWORK_ADDRESSES) != promise.text
        )
        if not is_pending:
            del self._promised[plane.name, address_key]
        return is_pending

    def _promised_to(self, plane: Plane, instance: Instance, pool: Pool) -> Iterator[str]:
        prefix = _address_key(instance.namespace, pool.network, "")
        for (plane_name, address_key), promise in self._promised.items():
            if plane_name == plane.name and promise.uid == instance.metadata.uid and address_key.startswith(prefix):
                yield address_key.removeprefix(prefix)

    def _promise(
        self, plane: Plane, instance: Instance, interfaces: Sequence[Sequence[Pool]], chosen: Addresses
    ) -> None:
        text = annotation(chosen)
        for pools, entry in zip(interfaces, chosen, strict=True):
            for pool, address in zip(pools, entry, strict=True):
                address_key = _address_key(instance.namespace, pool.network, address)
                self._promised[plane.name, address_key] = _Promise(instance.name, instance.metadata.uid, text)


def by_address(instance: Instance) -> list[str]:
    """Index values for the addresses that an Instance has."""
    return [
        _address_key(instance.namespace, interface.network.name, address)
        for interface, entry in zip(instance.spec.network_interfaces, addresses_of(instance) or (), strict=False)
        for address in entry
    ]


def waiting(instance: Instance) -> Iterator[str]:
    """Index values for the networks in which an Instance still needs addresses."""
    if not instance.metadata.deleting and addresses_of(instance) is None:
        yield from instances_by_network(instance)


def _address_key(namespace: str, network: str, address: str) -> str:
    return f"{namespace}/{network}/{address}"


def _came_before(one: Instance, other: Instance) -> bool:
    """Also when both were created in the same second: then neither keeps an address that both have."""
    first, second = one.metadata.creation_timestamp, other.metadata.creation_timestamp
    return first is None or second is None or first <= second
