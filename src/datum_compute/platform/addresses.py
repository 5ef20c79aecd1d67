"""Which Instance of a cell has which addresses, and which is next. Entry point: `AddressBook`."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from datum_compute.api.addresses import Addresses, addresses_of, annotation
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import NETWORK_ADDRESSES
from datum_compute.platform.subnets import IPNetwork, assignable, first_free, usable
from datum_compute.runtime import Plane

BY_NETWORK = "by-network"
BY_ADDRESS = "by-address"
WAITING = "waiting-for-addresses"


class Pool(Struct, frozen=True):
    """A subnet that an interface may take one address from."""

    network: str
    subnet: str
    prefix: IPNetwork


class Full(Exception):
    """No address is left; the text says where."""


class _Promise(Struct, frozen=True):
    instance: str
    uid: str
    text: str


class AddressBook:
    """An address is in use until the Instance that has it is gone, and is never given to a second one before.

    What counts is written on the Instances. In memory is only what was promised in a write that nobody has seen the
    end of, and where the search for a free address may begin.
    """

    def __init__(self) -> None:
        self._promised: dict[tuple[str, str], _Promise] = {}  # by plane, and namespace/network/address
        self._search_at: dict[tuple[str, str], dict[IPNetwork, int]] = {}  # by plane, and namespace/network

    def choose(self, plane: Plane, instance: Instance, interfaces: Sequence[Sequence[Pool]]) -> Addresses:
        """One address from each pool of each interface; those that it has already and may keep stay. Raises `Full`."""
        known = addresses_of(instance) or ()
        chosen: list[tuple[str, ...]] = []
        taken_now: set[str] = set()
        for index, pools in enumerate(interfaces):
            entry: list[str] = []
            for pool in pools:
                candidates = known[index] if index < len(known) else ()
                address = self._one(plane, instance, pool, candidates, taken_now)
                taken_now.add(_key(instance.namespace, pool.network, address))
                entry.append(address)
            chosen.append(tuple(entry))
        self._promise(plane, instance, interfaces, tuple(chosen))
        return tuple(chosen)

    def written(self, plane: Plane, instance: Instance) -> None:
        """The addresses stand on the Instance, where the cache has them; the promise is kept."""
        for key in _keys(instance):
            self._promised.pop((plane.name, key), None)

    def released(self, plane: Plane, instance: Instance) -> None:
        """The Instance is gone, or has other addresses: the search begins anew."""
        for network in networks_of(instance):
            self._search_at.pop((plane.name, _place(instance.namespace, network)), None)

    def forget(self, plane: str) -> None:
        """The plane left; what was promised there is read from its Instances when it comes again."""
        for memory in (self._promised, self._search_at):
            for key in [key for key in memory if key[0] == plane]:
                del memory[key]

    def _one(self, plane: Plane, instance: Instance, pool: Pool, candidates: Iterable[str], taken_now: set[str]) -> str:
        def is_taken(address: str) -> bool:
            key = _key(instance.namespace, pool.network, address)
            return key in taken_now or self._is_held(plane, instance, key)

        for address in (*candidates, *self._promised_to(plane, instance, pool)):
            if assignable(pool.prefix, address) and not is_taken(address):
                return address
        search_at = self._search_at.setdefault((plane.name, _place(instance.namespace, pool.network)), {})
        free = first_free(pool.prefix, is_taken, search_at.get(pool.prefix, 0)) or first_free(pool.prefix, is_taken)
        if free is None:
            raise Full(
                f'Subnet {pool.subnet} ({pool.prefix}) of network "{pool.network}" is full: '
                f"all of its {usable(pool.prefix)} addresses are in use. Run fewer instances in this network here."
            )
        search_at[pool.prefix] = int(type(pool.prefix.network_address)(free))  # all below are taken
        return free

    def _is_held(self, plane: Plane, instance: Instance, key: str) -> bool:
        """By somebody with a better right: whoever came first keeps what two of them claim to have."""
        mine, uid = key in _keys(instance), instance.metadata.uid
        others = [one for one in plane.informer(INSTANCE).by(BY_ADDRESS, key) if one.metadata.uid != uid]
        if any(not mine or _came_before(one, instance) for one in others):
            return True
        promise = self._promised.get((plane.name, key))
        if promise is None or promise.uid == instance.metadata.uid:
            return False
        holder = plane.informer(INSTANCE).get(instance.namespace, promise.instance)
        stands = (
            holder is not None
            and holder.metadata.uid == promise.uid
            and holder.metadata.annotations.get(NETWORK_ADDRESSES) != promise.text
        )
        if not stands:
            del self._promised[plane.name, key]
        return stands

    def _promised_to(self, plane: Plane, instance: Instance, pool: Pool) -> Iterator[str]:
        start = _key(instance.namespace, pool.network, "")
        for (on, key), promise in self._promised.items():
            if on == plane.name and promise.uid == instance.metadata.uid and key.startswith(start):
                yield key.removeprefix(start)

    def _promise(
        self, plane: Plane, instance: Instance, interfaces: Sequence[Sequence[Pool]], chosen: Addresses
    ) -> None:
        text = annotation(chosen)
        for pools, entry in zip(interfaces, chosen, strict=True):
            for pool, address in zip(pools, entry, strict=True):
                key = _key(instance.namespace, pool.network, address)
                self._promised[plane.name, key] = _Promise(instance.name, instance.metadata.uid, text)


def networks_of(instance: Instance) -> list[str]:
    return list(dict.fromkeys(interface.network.name for interface in instance.spec.network_interfaces))


def by_network(instance: Instance) -> Iterator[str]:
    for network in networks_of(instance):
        yield _place(instance.namespace, network)


def by_address(instance: Instance) -> Iterator[str]:
    yield from _keys(instance)


def waiting(instance: Instance) -> Iterator[str]:
    if not instance.metadata.deleting and addresses_of(instance) is None:
        yield from by_network(instance)


def _keys(instance: Instance) -> list[str]:
    return [
        _key(instance.namespace, interface.network.name, address)
        for interface, entry in zip(instance.spec.network_interfaces, addresses_of(instance) or (), strict=False)
        for address in entry
    ]


def _place(namespace: str, network: str) -> str:
    return f"{namespace}/{network}"


def _key(namespace: str, network: str, address: str) -> str:
    return f"{namespace}/{network}/{address}"


def _came_before(one: Instance, other: Instance) -> bool:
    """Or at the same second: then neither keeps what both have."""
    first, second = one.metadata.creation_timestamp, other.metadata.creation_timestamp
    return first is None or second is None or first <= second
