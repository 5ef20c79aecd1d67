"""Milo's quota kinds, typed as far as they are used here. Entry points: `RESOURCE_CLAIM`, `RESOURCE_GRANT` and others.

A claim requests amounts, grants allow them, and a bucket shows what is left of one resource type.
"""

from datetime import datetime
from hashlib import sha256
from typing import Annotated

from msgspec import Struct

from datum_compute.api import GROUP, reasons
from datum_compute.api.initial import initial
from datum_compute.api.labels import CONSUMER_KIND as CONSUMER_KIND
from datum_compute.api.labels import CONSUMER_NAME as CONSUMER_NAME
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Condition, Json, KubeObject, optional_part, part, schema

QUOTA_GROUP = "quota.miloapis.com"
QUOTA_NAMESPACE = "milo-system"

INSTANCES = f"{GROUP}/instances"
VCPUS = f"{GROUP}/vcpus"  # in millicores
MEMORY = f"{GROUP}/memory"  # in MiB
WORKLOADS = f"{GROUP}/workloads"

GRANTED = "Granted"
ACTIVE = "Active"

_Amount = Annotated[int, schema(format="int64", minimum=0)]


class ConsumerRef(Struct, frozen=True, rename="camel"):
    kind: str
    name: str
    api_group: str = ""
    namespace: str = ""


class ClaimRequest(Struct, frozen=True, rename="camel"):
    resource_type: str
    amount: _Amount


class ResourceClaimSpec(Struct, frozen=True, rename="camel"):
    consumer_ref: ConsumerRef
    requests: Annotated[tuple[ClaimRequest, ...], schema(minItems=1, maxItems=20)]
    resource_ref: ConsumerRef | None = None


class Allocation(Struct, frozen=True, rename="camel"):
    resource_type: str
    status: Annotated[str, schema(enum=["Granted", "Denied", "Pending"])]
    last_transition_time: datetime
    reason: str = ""
    message: str = ""
    allocated_amount: _Amount = 0
    allocating_bucket: str = ""


class ResourceClaimStatus(Struct, frozen=True, rename="camel"):
    observed_generation: Annotated[int, schema(format="int64")] = 0
    allocations: Annotated[tuple[Allocation, ...], schema(list_type="map", list_map_keys=["resourceType"])] = ()
    conditions: Annotated[tuple[Condition, ...], schema(list_type="map", list_map_keys=["type"])] = ()


class ResourceClaim(KubeObject, frozen=True):
    """ResourceClaim requests quota for a consumer. It is decided once, and released by deleting it."""

    spec = part("spec_json", ResourceClaimSpec)
    status = optional_part("status_json", ResourceClaimStatus)


INITIAL_CLAIM_STATUS: Json = {
    "conditions": [initial(GRANTED, "False", reasons.PENDING_EVALUATION, "Waiting for quota evaluation")]
}
"""The schema default."""


class GrantBucket(Struct, frozen=True, rename="camel"):
    amount: _Amount


class Allowance(Struct, frozen=True, rename="camel"):
    resource_type: str
    buckets: Annotated[tuple[GrantBucket, ...], schema(minItems=1)]


class ResourceGrantSpec(Struct, frozen=True, rename="camel"):
    consumer_ref: ConsumerRef
    allowances: Annotated[tuple[Allowance, ...], schema(minItems=1)]


class ConditionsStatus(Struct, frozen=True, rename="camel"):
    observed_generation: Annotated[int, schema(format="int64")] = 0
    conditions: Annotated[tuple[Condition, ...], schema(list_type="map", list_map_keys=["type"])] = ()


class ResourceGrant(KubeObject, frozen=True):
    """ResourceGrant allows a consumer to use amounts of resource types."""

    spec = part("spec_json", ResourceGrantSpec)
    status = optional_part("status_json", ConditionsStatus)


class KindReference(Struct, frozen=True, rename="camel"):
    kind: str
    api_group: str = ""


class ResourceRegistrationSpec(Struct, frozen=True, rename="camel"):
    consumer_type: KindReference
    type: Annotated[str, schema(enum=["Entity", "Allocation", "Feature"])]
    resource_type: str
    base_unit: str
    display_unit: str
    unit_conversion_factor: Annotated[int, schema(format="int64", minimum=1)]
    claiming_resources: tuple[KindReference, ...] = ()
    description: str = ""


class ResourceRegistration(KubeObject, frozen=True):
    """ResourceRegistration defines a resource type that can be granted and claimed."""

    spec = part("spec_json", ResourceRegistrationSpec)
    status = optional_part("status_json", ConditionsStatus)


class AllowanceBucketSpec(Struct, frozen=True, rename="camel"):
    consumer_ref: ConsumerRef
    resource_type: str


class ContributingGrant(Struct, frozen=True, rename="camel"):
    name: str
    last_observed_generation: Annotated[int, schema(format="int64")]
    amount: _Amount


class AllowanceBucketStatus(Struct, frozen=True, rename="camel"):
    limit: _Amount = 0
    allocated: _Amount = 0
    available: _Amount = 0
    claim_count: int = 0
    grant_count: int = 0
    observed_generation: Annotated[int, schema(format="int64")] = 0
    contributing_grant_refs: tuple[ContributingGrant, ...] = ()
    last_reconciliation: datetime | None = None


class AllowanceBucket(KubeObject, frozen=True):
    """AllowanceBucket shows how much of one resource type a consumer may use, uses, and has left."""

    spec = part("spec_json", AllowanceBucketSpec)
    status = optional_part("status_json", AllowanceBucketStatus)


RESOURCE_CLAIM = Kind(QUOTA_GROUP, "v1alpha1", "ResourceClaim", "resourceclaims", ResourceClaim)
RESOURCE_GRANT = Kind(QUOTA_GROUP, "v1alpha1", "ResourceGrant", "resourcegrants", ResourceGrant)
RESOURCE_REGISTRATION = Kind(
    QUOTA_GROUP, "v1alpha1", "ResourceRegistration", "resourceregistrations", ResourceRegistration, namespaced=False
)
ALLOWANCE_BUCKET = Kind(QUOTA_GROUP, "v1alpha1", "AllowanceBucket", "allowancebuckets", AllowanceBucket)


def bucket_name(resource_type: str, consumer: ConsumerRef) -> str:
    """The name that Milo uses: a digest of resource type, kind and name, without separators."""
    return "bucket-" + sha256(f"{resource_type}{consumer.kind}{consumer.name}".encode()).hexdigest()
