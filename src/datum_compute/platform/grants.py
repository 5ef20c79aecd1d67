"""The default quota of a project. Entry points: `DEFAULT_LIMITS`, `default_grants`, `LIMITS`."""

from collections.abc import Iterator, Mapping
from hashlib import sha256

from msgspec import Struct

from datum_compute.api.quota import (
    INSTANCES,
    MEMORY,
    QUOTA_NAMESPACE,
    RESOURCE_GRANT,
    RESOURCE_REGISTRATION,
    VCPUS,
)
from datum_compute.api.services import PROJECT, RESOURCE_MANAGER_GROUP, SERVICE_NAME
from datum_compute.kube.meta import Json


class Limit(Struct, frozen=True):
    name: str
    resource_type: str
    default: int


_PROJECT = {"apiGroup": RESOURCE_MANAGER_GROUP, "kind": PROJECT.name}

LIMITS = (
    Limit("compute-instances", INSTANCES, 10),
    Limit("compute-vcpus", VCPUS, 40_000),
    Limit("compute-memory", MEMORY, 81_920),
)
DEFAULT_LIMITS = {limit.resource_type: limit.default for limit in LIMITS}


def registration(limit: Limit) -> Json:
    spec = {
        "consumerType": _PROJECT,
        "type": "Entity",
        "resourceType": limit.resource_type,
        "baseUnit": "1",
        "displayUnit": "1",
        "unitConversionFactor": 1,
        "claimingResources": [_PROJECT],
    }
    return RESOURCE_REGISTRATION.body(limit.name) | {"spec": spec}


def default_grants(project: str, limits: Mapping[str, int], owner: Json) -> Iterator[Json]:
    """One grant per limit, with the names that the service catalog uses."""
    for limit in LIMITS:
        digest = sha256(f"{SERVICE_NAME}/{project}/{limit.name}".encode()).hexdigest()[:16]
        amount = limits.get(limit.resource_type, limit.default)
        spec = {
            "consumerRef": _PROJECT | {"name": project},
            "allowances": [{"resourceType": limit.resource_type, "buckets": [{"amount": amount}]}],
        }
        labels = {"app.kubernetes.io/managed-by": "services.miloapis.com"}
        body = RESOURCE_GRANT.body(f"rg-{digest}", QUOTA_NAMESPACE, labels=labels, ownerReferences=[owner])
        yield body | {"spec": spec}
