"""What somebody could see of a workload on all planes, and what they could not. Entry points: `Seen`, `Gap`.

Only a server that answered proves absence: a part that was denied, did not answer or was never asked for says nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import TypeVar

from msgspec import Struct

from datum_compute.api.deployment import WorkloadDeployment
from datum_compute.api.instance import Instance
from datum_compute.api.karmada import Cluster, PropagationPolicy, ResourceBinding
from datum_compute.api.networking import LocationBinding, Network
from datum_compute.api.quota import ResourceClaim
from datum_compute.api.services import ServiceEntitlement
from datum_compute.api.workload import Workload
from datum_compute.kube.kinds import Event, Lease, Namespace

T = TypeVar("T")


class Gap(Enum):
    """Why there is no value."""

    ABSENT = "absent"  # the server says that it does not exist, or that it does not serve the kind
    DENIED = "denied"
    AWAY = "away"
    NOT_ASKED = "not-asked"

    @property
    def is_unread(self) -> bool:
        return self is not Gap.ABSENT


NOT_ASKED = Gap.NOT_ASKED


class Hub(Struct, frozen=True):
    """The hub, as far as it concerns the project: everything in the hub namespace, and the clusters."""

    namespace: Namespace | Gap = NOT_ASKED
    deployments: tuple[WorkloadDeployment, ...] | Gap = NOT_ASKED
    policies: tuple[PropagationPolicy, ...] | Gap = NOT_ASKED
    clusters: tuple[Cluster, ...] | Gap = NOT_ASKED
    bindings: tuple[ResourceBinding, ...] | Gap = NOT_ASKED
    instances: tuple[Instance, ...] | Gap = NOT_ASKED


class Site(Struct, frozen=True):
    """The cell of one city, as far as it concerns the project."""

    deployments: tuple[WorkloadDeployment, ...] | Gap = NOT_ASKED
    instances: tuple[Instance, ...] | Gap = NOT_ASKED


class Seen(Struct, frozen=True):
    """Everything that is known about one workload.

    `changed` is when its spec last changed. `server_time` is the time of the project's server when it was asked.
    `operator` says whether the reader has other planes too, `has_catalog` whether compute has to be enabled.
    """

    project: str
    workload: Workload
    deployments: tuple[WorkloadDeployment, ...] | Gap = NOT_ASKED
    instances: tuple[Instance, ...] | Gap = NOT_ASKED
    entitlements: tuple[ServiceEntitlement, ...] | Gap = NOT_ASKED
    networks: tuple[Network, ...] | Gap = NOT_ASKED
    offers: tuple[LocationBinding, ...] | Gap = NOT_ASKED
    claims: tuple[ResourceClaim, ...] | Gap = NOT_ASKED
    events: tuple[Event, ...] | Gap = NOT_ASKED
    lease: Lease | Gap = NOT_ASKED
    hub: Hub = Hub()
    sites: Mapping[str, Site] = {}  # by city
    changed: datetime | None = None
    server_time: datetime | None = None
    revision: int = 0  # of the workload's history; 0 if it is not known
    operator: bool = False
    has_catalog: bool = False

    def site(self, city: str) -> Site:
        return self.sites.get(city, Site())


def items(part: tuple[T, ...] | Gap) -> tuple[T, ...]:
    """The objects of a list; none where it could not be read."""
    return () if isinstance(part, Gap) else part
