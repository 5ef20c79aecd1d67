"""The CustomResourceDefinition of a kind, from its Structs. Entry points: `definition`, `by_role`, `files`."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import yaml
from msgspec import Struct, inspect, json

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT, WorkloadDeploymentSpec, WorkloadDeploymentStatus
from datum_compute.api.instance import INITIAL_STATUS, INSTANCE, InstanceStatus
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, ClusterStatus, PropagationPolicySpec
from datum_compute.api.labels import CITY_CODE, PARENT_CONTEXTS
from datum_compute.api.networking import (
    INITIAL_BINDING_STATUS,
    INITIAL_SUBNET_STATUS,
    LOCATION,
    LOCATION_BINDING,
    NETWORK,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    SUBNET,
    SUBNET_CLAIM,
    LocationBindingSpec,
    LocationSpec,
    NetworkBindingSpec,
    NetworkBindingStatus,
    NetworkContextSpec,
    NetworkSpec,
    SubnetClaimSpec,
    SubnetClaimStatus,
    SubnetSpec,
    SubnetStatus,
)
from datum_compute.api.networking import ConditionsStatus as NetworkingStatus
from datum_compute.api.quota import (
    ALLOWANCE_BUCKET,
    INITIAL_CLAIM_STATUS,
    RESOURCE_CLAIM,
    RESOURCE_GRANT,
    RESOURCE_REGISTRATION,
    AllowanceBucketSpec,
    AllowanceBucketStatus,
    ConditionsStatus,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceGrantSpec,
    ResourceRegistrationSpec,
)
from datum_compute.api.services import (
    INITIAL_CONTROL_PLANE_STATUS,
    INITIAL_PROJECT_STATUS,
    PROJECT,
    PROJECT_CONTROL_PLANE,
    SERVICE_ENTITLEMENT,
    ProjectControlPlaneStatus,
    ProjectStatus,
    ServiceEntitlementSpec,
    ServiceEntitlementStatus,
)
from datum_compute.api.template import InstanceSpec
from datum_compute.api.workload import WORKLOAD, WorkloadSpec, WorkloadStatus
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json

AnyKind = Kind[Any]

OURS = (WORKLOAD, WORKLOAD_DEPLOYMENT, INSTANCE)

ROLES: dict[str, tuple[AnyKind, ...]] = {
    "root": (PROJECT, PROJECT_CONTROL_PLANE, RESOURCE_REGISTRATION),
    "project": (
        *OURS,
        *(LOCATION, LOCATION_BINDING, NETWORK, SERVICE_ENTITLEMENT),
        *(RESOURCE_CLAIM, RESOURCE_GRANT, RESOURCE_REGISTRATION, ALLOWANCE_BUCKET),
    ),
    "hub": (WORKLOAD_DEPLOYMENT, INSTANCE, PROPAGATION_POLICY, CLUSTER),
    "cell": (
        *(WORKLOAD_DEPLOYMENT, INSTANCE),
        *(LOCATION, NETWORK, NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET),
    ),
}


class Column(Struct, frozen=True):
    kinds: tuple[AnyKind, ...]
    name: str
    path: str
    priority: int = 0


_BOTH = (WORKLOAD, WORKLOAD_DEPLOYMENT)
_FIRST_IMAGE = "runtime.sandbox.containers[0].image"


def _escaped(key: str) -> str:
    """A key that contains dots, as one step of a path."""
    return key.replace(".", r"\.")


COLUMNS = (
    Column(OURS, "Age", ".metadata.creationTimestamp"),
    Column(_BOTH, "Available", '.status.conditions[?(@.type=="Available")].status'),
    Column(_BOTH, "Reason", '.status.conditions[?(@.type=="Available")].reason'),
    Column((WORKLOAD,), "Deployments", ".status.deployments"),
    Column(_BOTH, "Replicas", ".status.replicas"),
    Column(_BOTH, "Ready", ".status.readyReplicas"),
    Column(_BOTH, "Desired", ".status.desiredReplicas"),
    Column(_BOTH, "Up-to-date", ".status.updatedReplicas"),
    Column((WORKLOAD_DEPLOYMENT,), "Location Namespace", ".status.location.namespace", 1),
    Column((WORKLOAD_DEPLOYMENT,), "Location Name", ".status.location.name", 1),
    Column((INSTANCE,), "Ready", '.status.conditions[?(@.type=="Ready")].status'),
    Column((INSTANCE,), "Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    Column((INSTANCE,), "Network IP", ".status.networkInterfaces[0].assignments.networkIP"),
    Column((INSTANCE,), "External IP", ".status.networkInterfaces[0].assignments.externalIP"),
    Column((INSTANCE,), "Message", '.status.conditions[?(@.type=="Ready")].message', 1),
    Column((INSTANCE,), "Quota", '.status.conditions[?(@.type=="QuotaGranted")].reason', 1),
    # No column for the cities of a workload: a path can only select those of one placement.
    Column((WORKLOAD_DEPLOYMENT,), "City", ".spec.cityCode"),
    Column((INSTANCE,), "City", f".metadata.labels.{_escaped(CITY_CODE)}"),
    Column(_BOTH, "Image", f".spec.template.spec.{_FIRST_IMAGE}"),
    Column((INSTANCE,), "Image", f".spec.{_FIRST_IMAGE}"),
)

SHORT_NAMES: dict[AnyKind, str] = {WORKLOAD: "wl", WORKLOAD_DEPLOYMENT: "wd", INSTANCE: "inst"}

_OPEN = {"x-kubernetes-preserve-unknown-fields": True}


def definition(kind: AnyKind) -> Json:
    """A new copy per call: callers may change what they get."""
    copy: Json = json.decode(_encoded(kind))
    return copy


@cache
def _encoded(kind: AnyKind) -> bytes:
    """Worked out once per kind, because every plane of the embedded engine serves its own copy."""
    ours = kind in OURS
    columns = [_column(column) for column in COLUMNS if kind in column.kinds]
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource} | ({"annotations": {PARENT_CONTEXTS: "Project"}} if ours else {}),
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
            }
            | ({"shortNames": [SHORT_NAMES[kind]]} if kind in SHORT_NAMES else {}),
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [
                {"name": kind.version, "served": True, "storage": True}
                | ({"additionalPrinterColumns": columns} if columns else {})
                | {"subresources": {"status": {}}, "schema": {"openAPIV3Schema": _object_schema(kind)}}
            ],
        },
    }
    return json.encode(definition)


def by_role(role: str) -> list[Json]:
    """The definitions that planes of a role (`root`, `project`, `hub` or `cell`) serve."""
    return [definition(kind) for kind in ROLES[role]]


def _column(column: Column) -> Json:
    type_ = "date" if column.name == "Age" else "string"
    priority = {"priority": column.priority} if column.priority else {}
    return {"name": column.name, "type": type_, "jsonPath": column.path} | priority


def _object_schema(kind: AnyKind) -> Json:
    parts = {part: _part(kind, type_) for part, type_ in _PARTS[kind].items()}
    if kind in _INITIAL_STATUS:
        parts["status"]["default"] = deepcopy(_INITIAL_STATUS[kind])
    # Upstream requires the spec of a Workload only; controllers always set that of the others.
    required = {"required": ["spec"]} if kind is WORKLOAD else {}
    head = {
        "apiVersion": {"description": "API group and version of this object.", "type": "string"},
        "kind": {"description": "Kind of this object.", "type": "string"},
        "metadata": {"type": "object"},
    }
    return {"description": kind.type.__doc__, "type": "object"} | required | {"properties": head | parts}


_PARTS: dict[AnyKind, dict[str, type[Struct] | None]] = {
    WORKLOAD: {"spec": WorkloadSpec, "status": WorkloadStatus},
    WORKLOAD_DEPLOYMENT: {"spec": WorkloadDeploymentSpec, "status": WorkloadDeploymentStatus},
    INSTANCE: {"spec": InstanceSpec, "status": InstanceStatus},
    PROPAGATION_POLICY: {"spec": PropagationPolicySpec, "status": None},
    CLUSTER: {"spec": None, "status": ClusterStatus},
    LOCATION: {"spec": LocationSpec, "status": NetworkingStatus},
    LOCATION_BINDING: {"spec": LocationBindingSpec, "status": NetworkingStatus},
    NETWORK: {"spec": NetworkSpec, "status": NetworkingStatus},
    NETWORK_BINDING: {"spec": NetworkBindingSpec, "status": NetworkBindingStatus},
    NETWORK_CONTEXT: {"spec": NetworkContextSpec, "status": NetworkingStatus},
    SUBNET_CLAIM: {"spec": SubnetClaimSpec, "status": SubnetClaimStatus},
    SUBNET: {"spec": SubnetSpec, "status": SubnetStatus},
    PROJECT: {"spec": None, "status": ProjectStatus},
    PROJECT_CONTROL_PLANE: {"spec": None, "status": ProjectControlPlaneStatus},
    SERVICE_ENTITLEMENT: {"spec": ServiceEntitlementSpec, "status": ServiceEntitlementStatus},
    RESOURCE_REGISTRATION: {"spec": ResourceRegistrationSpec, "status": ConditionsStatus},
    RESOURCE_GRANT: {"spec": ResourceGrantSpec, "status": ConditionsStatus},
    RESOURCE_CLAIM: {"spec": ResourceClaimSpec, "status": ResourceClaimStatus},
    ALLOWANCE_BUCKET: {"spec": AllowanceBucketSpec, "status": AllowanceBucketStatus},
}

# The status that readers see before any controller has run.
_INITIAL_STATUS: dict[AnyKind, Json] = {
    INSTANCE: INITIAL_STATUS,
    RESOURCE_CLAIM: INITIAL_CLAIM_STATUS,
    PROJECT: INITIAL_PROJECT_STATUS,
    PROJECT_CONTROL_PLANE: INITIAL_CONTROL_PLANE_STATUS,
    NETWORK_BINDING: INITIAL_BINDING_STATUS,
    SUBNET_CLAIM: INITIAL_SUBNET_STATUS,
    SUBNET: INITIAL_SUBNET_STATUS,
}


def _part(kind: AnyKind, type_: type[Struct] | None) -> Json:
    if type_ is None:
        return {"type": "object"} | _OPEN
    return schema_of(type_) if kind in OURS else _opened(schema_of(type_))


def schema_of(type_: Any) -> Json:
    """The structural schema for the JSON of a type."""
    return _walk(inspect.type_info(type_))


def _walk(info: inspect.Type) -> Json:
    match info:
        case inspect.Metadata(type=inspect.RawType(), extra={"holds": type_}):
            return _with_keywords(schema_of(type_), info)
        case inspect.Metadata():
            return _with_keywords(_walk(info.type), info)
        case inspect.StructType():
            return _struct(info)
        case inspect.UnionType(types=types):
            return _union([type_ for type_ in types if not isinstance(type_, inspect.NoneType)])
        case inspect.VarTupleType():
            return {"type": "array", "items": _walk(info.item_type)}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _walk(info.value_type)}
        case inspect.StrType():
            return {"type": "string"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", "format": "int32"}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case inspect.RawType():
            return {"type": "object"} | _OPEN
    raise TypeError(f"a schema has no place for {info}; add it to _walk")


def _with_keywords(schema: Json, info: inspect.Metadata) -> Json:
    # Copied, because the same list in two places becomes an anchor in YAML.
    keywords = deepcopy(info.extra_json_schema or {})
    keywords.pop("required", None)  # belongs to the enclosing object
    return keywords | schema | keywords  # short entries first, nested ones last


def _struct(info: inspect.StructType) -> Json:
    required = [field.encode_name for field in info.fields if field.required or _filled_by_default(field)]
    return (
        ({"description": info.cls.__doc__} if info.cls.__doc__ else {})
        | {"type": "object"}
        | ({"required": required} if required else {})
        | {"properties": {field.encode_name: _walk(field.type) for field in info.fields}}
    )


def _filled_by_default(field: inspect.Field) -> bool:
    """Whether the schema requires the field although it has a default, which the server fills in."""
    keywords = field.type.extra_json_schema if isinstance(field.type, inspect.Metadata) else None
    return bool(keywords and keywords.get("required"))


def _union(types: Sequence[inspect.Type]) -> Json:
    match types:
        case [only]:
            return _walk(only)
        case [inspect.IntType(), inspect.StrType()]:
            return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
    raise TypeError(f"a structural schema has no union of {types}; only int | str is known")


def _opened(schema: Json) -> Json:
    """The same schema, preserving unknown fields in every object whose fields it lists."""
    nested = {
        key: {name: _opened(inner) for name, inner in value.items()} if key == "properties" else _opened(value)
        for key, value in schema.items()
        if key in ("properties", "items")
    }
    return schema | nested | (_OPEN if "properties" in schema else {})


def files(kinds: Sequence[AnyKind] = OURS) -> dict[str, str]:
    """Definitions by file name."""
    return {
        f"{kind.group}_{kind.plural}.yaml": yaml.safe_dump(
            definition(kind), sort_keys=False, width=120, allow_unicode=True
        )
        for kind in kinds
    }
