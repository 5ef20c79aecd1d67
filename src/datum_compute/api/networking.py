"""The network operator's kinds, typed as far as they are used here. Entry points: `LOCATION`, `NETWORK` and others.

A deployment requests a binding for each of its networks at its location. The binding refers to a context, which is that
network at that location, and a claim on the context to a subnet. Instances start when all of them are Ready.
"""

from typing import Annotated

from msgspec import Raw, Struct, field

from datum_compute.api.initial import initial
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, Json, KubeObject, optional_part, part, schema

NETWORKING_GROUP = "networking.datumapis.com"
_VERSION = "v1alpha"

READY = "Ready"
ALLOCATED = "Allocated"
PROGRAMMED = "Programmed"
AVAILABLE = "Available"

LOCATION_LABEL = f"{NETWORKING_GROUP}/location"
LOCATION_CLASS_LABEL = f"{NETWORKING_GROUP}/class"
MANAGED_CLASS = "datum-managed"

PRIVATE = "private"
IPV4 = "IPv4"
IPV6 = "IPv6"

_Family = Annotated[str, schema(enum=[IPV4, IPV6])]


class ConditionsStatus(Struct, frozen=True, rename="camel"):
    conditions: tuple[Condition, ...] = ()


class LocationRef(Struct, frozen=True, rename="camel"):
    """Reference to a Location. The namespace is empty, and kept for servers that still require one."""

    name: str = ""
    namespace: str = ""


# Where things can run


class LocationSpec(Struct, frozen=True, rename="camel"):
    location_class_name: str = ""  # datum-managed, self-managed
    topology: dict[str, str] = {}
    provider: Raw = field(default_factory=Raw)


class Location(KubeObject, frozen=True):
    """Location is a place where instances can run."""

    spec = part("spec_json", LocationSpec)
    status = optional_part("status_json", ConditionsStatus)


class LocationBindingSpec(Struct, frozen=True, rename="camel"):
    location_ref: LocationRef = LocationRef()
    location_class_name: str = ""
    display_name: str = ""
    topology: dict[str, str] = {}


class LocationBinding(KubeObject, frozen=True):
    """LocationBinding offers a Location to the project."""

    spec = part("spec_json", LocationBindingSpec)
    status = optional_part("status_json", ConditionsStatus)


# Networks


class NetworkIPAM(Struct, frozen=True, rename="camel"):
    mode: Annotated[str, schema(enum=["Auto", "Policy"])] = "Auto"
    ipv4_range: str = field(default="", name="ipv4Range")
    ipv6_range: str = field(default="", name="ipv6Range")


class NetworkSpec(Struct, frozen=True, rename="camel"):
    ipam: NetworkIPAM = NetworkIPAM()
    ip_families: Annotated[tuple[_Family, ...], schema(default=[IPV4])] = (IPV4,)
    mtu: Annotated[int, schema(default=1460, minimum=1300, maximum=8856)] = 1460


class Network(KubeObject, frozen=True):
    """Network is a network that instances attach to."""

    spec = part("spec_json", NetworkSpec)
    status = optional_part("status_json", ConditionsStatus)


class NetworkRef(Struct, frozen=True, rename="camel"):
    name: str
    namespace: str = ""  # the namespace of the referring object if empty


class NetworkBindingSpec(Struct, frozen=True, rename="camel"):
    network: NetworkRef
    location: LocationRef


class NetworkContextRef(Struct, frozen=True, rename="camel"):
    name: str
    namespace: str = ""


class NetworkBindingStatus(Struct, frozen=True, rename="camel"):
    network_context_ref: NetworkContextRef | None = None
    conditions: tuple[Condition, ...] = ()


class NetworkBinding(KubeObject, frozen=True):
    """NetworkBinding requests a Network at a Location, for one interface of a deployment."""

    spec = part("spec_json", NetworkBindingSpec)
    status = optional_part("status_json", NetworkBindingStatus)


class LocalRef(Struct, frozen=True, rename="camel"):
    name: str


class NetworkContextSpec(Struct, frozen=True, rename="camel"):
    network: LocalRef
    location: LocationRef = LocationRef()


class NetworkContext(KubeObject, frozen=True):
    """NetworkContext is one Network at one Location."""

    spec = part("spec_json", NetworkContextSpec)
    status = optional_part("status_json", ConditionsStatus)


class SubnetClaimSpec(Struct, frozen=True, rename="camel"):
    subnet_class: str
    network_context: LocalRef
    location: LocationRef
    ip_family: _Family
    start_address: str = ""
    prefix_length: int = 0


class SubnetClaimStatus(Struct, frozen=True, rename="camel"):
    subnet_ref: LocalRef | None = None
    start_address: str = ""
    prefix_length: int = 0
    conditions: tuple[Condition, ...] = ()


class SubnetClaim(KubeObject, frozen=True):
    """SubnetClaim requests a range of addresses in a NetworkContext."""

    spec = part("spec_json", SubnetClaimSpec)
    status = optional_part("status_json", SubnetClaimStatus)


class SubnetSpec(Struct, frozen=True, rename="camel"):
    subnet_class: str
    network_context: LocalRef
    location: LocationRef
    ip_family: _Family
    start_address: str
    prefix_length: int


class SubnetStatus(Struct, frozen=True, rename="camel"):
    start_address: str = ""
    prefix_length: int = 0
    conditions: tuple[Condition, ...] = ()


class Subnet(KubeObject, frozen=True):
    """Subnet is a range of addresses in a NetworkContext."""

    spec = part("spec_json", SubnetSpec)
    status = optional_part("status_json", SubnetStatus)


LOCATION = Kind(NETWORKING_GROUP, _VERSION, "Location", "locations", Location, namespaced=False)
LOCATION_BINDING = Kind(
    NETWORKING_GROUP, _VERSION, "LocationBinding", "locationbindings", LocationBinding, namespaced=False
)
NETWORK = Kind(NETWORKING_GROUP, _VERSION, "Network", "networks", Network)
NETWORK_BINDING = Kind(NETWORKING_GROUP, _VERSION, "NetworkBinding", "networkbindings", NetworkBinding)
NETWORK_CONTEXT = Kind(NETWORKING_GROUP, _VERSION, "NetworkContext", "networkcontexts", NetworkContext)
SUBNET_CLAIM = Kind(NETWORKING_GROUP, _VERSION, "SubnetClaim", "subnetclaims", SubnetClaim)
SUBNET = Kind(NETWORKING_GROUP, _VERSION, "Subnet", "subnets", Subnet)


def _waiting(*types: str) -> Json:
    return {"conditions": [initial(type_, "Unknown", "Pending", "Waiting for controller") for type_ in types]}


INITIAL_BINDING_STATUS = _waiting(READY)
INITIAL_SUBNET_STATUS = _waiting(ALLOCATED, PROGRAMMED, READY)  # also of a SubnetClaim
