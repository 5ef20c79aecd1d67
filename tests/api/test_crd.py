"""The generated definitions have exactly the fields of these tables."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml

from datum_compute.api.crd import OURS, ROLES, by_role, definition, files
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY
from datum_compute.api.networking import LOCATION_BINDING, NETWORK, NETWORK_BINDING, SUBNET, SUBNET_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.kinds import Kind

# A row has the type, whether the field is required, and all other keywords of its schema.
Row = tuple[str, bool, dict[str, Any]]
Table = dict[str, Row]


def req(type_: str, **constraints: Any) -> Row:
    return type_, True, constraints


def opt(type_: str, **constraints: Any) -> Row:
    return type_, False, constraints


def under(prefix: str, table: Table) -> Table:
    return {f"{prefix}.{path}": row for path, row in table.items()}


BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
ATOMIC_LIST = {"x-kubernetes-list-type": "atomic"}
ATOMIC = {"x-kubernetes-map-type": "atomic"}

CONDITION = {
    "type": req("string", maxLength=316),
    "status": req("string", enum=["True", "False", "Unknown"]),
    "reason": req("string", minLength=1, maxLength=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
    "message": req("string", maxLength=32768),
    "lastTransitionTime": req("date-time"),
    "observedGeneration": opt("int64", minimum=0),
}

TEMPLATE_META = {
    "labels": opt("map of string"),
    "annotations": opt("map of string"),
    "finalizers": opt("array of string"),
    "name": opt("string"),
    "namespace": opt("string"),
}

LOCATION = {"name": req("string"), "namespace": req("string")}

PORT = {
    "name": req("string"),
    "port": req("int32", minimum=1, maximum=65535),
    "protocol": opt("string"),
}

ATTACHMENT = {"name": req("string"), "mountPath": opt("string")}

KEY_REFERENCE = {"key": req("string"), "name": opt("string", default=""), "optional": opt("boolean")}

VALUE_FROM = {
    "configMapKeyRef": opt("object", **ATOMIC),
    **under("configMapKeyRef", KEY_REFERENCE),
    "secretKeyRef": opt("object", **ATOMIC),
    **under("secretKeyRef", KEY_REFERENCE),
    "fieldRef": opt("object", **ATOMIC),
    "fieldRef.fieldPath": req("string"),
    "fieldRef.apiVersion": opt("string"),
    "resourceFieldRef": opt("object", **ATOMIC),
    "resourceFieldRef.resource": req("string"),
    "resourceFieldRef.containerName": opt("string"),
    "resourceFieldRef.divisor": opt("quantity"),
}

CONTAINER = {
    "name": req("string"),
    "image": req("string"),
    "command": opt("array of string", **ATOMIC_LIST),
    "args": opt("array of string", **ATOMIC_LIST),
    "workingDir": opt("string"),
    "env": opt("array of object", **BY_NAME),
    "env[].name": req("string"),
    "env[].value": opt("string"),
    "env[].valueFrom": opt("object"),
    **under("env[].valueFrom", VALUE_FROM),
    "ports": opt("array of object", **BY_NAME),
    **under("ports[]", PORT),
    "resources": opt("object"),
    "resources.limits": opt("map of quantity"),
    "resources.requests": opt("map of quantity"),
    "volumeAttachments": opt("array of object"),
    **under("volumeAttachments[]", ATTACHMENT),
}

RUNTIME = {
    "resources": req("object"),
    "resources.instanceType": req("string"),
    "resources.requests": opt("map of quantity"),
    "sandbox": opt("object"),
    "sandbox.containers": req("array of object", minItems=1, **BY_NAME),
    **under("sandbox.containers[]", CONTAINER),
    "sandbox.imagePullSecrets": opt("array of object"),
    "sandbox.imagePullSecrets[].name": req("string"),
    "virtualMachine": opt("object"),
    "virtualMachine.volumeAttachments": req("array of object", minItems=1),
    **under("virtualMachine.volumeAttachments[]", ATTACHMENT),
    "virtualMachine.ports": opt("array of object", **BY_NAME),
    **under("virtualMachine.ports[]", PORT),
}

INTERFACE = {
    "network": req("object"),
    "network.name": req("string"),
    "network.namespace": opt("string"),
    "networkPolicy": opt("object"),
    "networkPolicy.ingress": opt("array of object"),
    "networkPolicy.ingress[].ports": opt("array of object", **ATOMIC_LIST),
    "networkPolicy.ingress[].ports[].port": opt("int-or-string"),
    "networkPolicy.ingress[].ports[].endPort": opt("int32"),
    "networkPolicy.ingress[].ports[].protocol": opt("string"),
    "networkPolicy.ingress[].from": opt("array of object", **ATOMIC_LIST),
    "networkPolicy.ingress[].from[].ipBlock": opt("object"),
    "networkPolicy.ingress[].from[].ipBlock.cidr": req("string"),
    "networkPolicy.ingress[].from[].ipBlock.except": opt("array of string"),
}

ITEMS = {
    "items": opt("array of object", **ATOMIC_LIST),
    "items[].key": req("string"),
    "items[].path": req("string"),
    "items[].mode": opt("int32"),
    "defaultMode": opt("int32"),
    "optional": opt("boolean"),
}

VOLUME = {
    "name": req("string"),
    "disk": opt("object"),
    "disk.deviceName": opt("string"),
    "disk.template": req("object"),
    "disk.template.metadata": opt("object"),
    **under("disk.template.metadata", TEMPLATE_META),
    "disk.template.spec": req("object"),
    "disk.template.spec.type": opt("string", default="pd-standard"),
    "disk.template.spec.resources": opt("object"),
    "disk.template.spec.resources.requests": opt("map of quantity"),
    "disk.template.spec.populator": opt("object"),
    "disk.template.spec.populator.image": opt("object"),
    "disk.template.spec.populator.image.name": req("string"),
    "disk.template.spec.populator.filesystem": opt("object"),
    "disk.template.spec.populator.filesystem.type": req("string", enum=["ext4"]),
    "configMap": opt("object", **ATOMIC),
    "configMap.name": opt("string", default=""),
    **under("configMap", ITEMS),
    "secret": opt("object"),
    "secret.secretName": opt("string"),
    **under("secret", ITEMS),
}

INSTANCE_SPEC = {
    "runtime": req("object"),
    **under("runtime", RUNTIME),
    "networkInterfaces": req("array of object", minItems=1),
    **under("networkInterfaces[]", INTERFACE),
    "volumes": opt("array of object", **BY_NAME),
    **under("volumes[]", VOLUME),
    "location": opt("object"),
    **under("location", LOCATION),
    "controller": opt("object"),
    "controller.templateHash": req("string"),
    "controller.schedulingGates": opt("array of object", **BY_NAME),
    "controller.schedulingGates[].name": req("string"),
}

TEMPLATE = {
    "metadata": opt("object"),
    **under("metadata", TEMPLATE_META),
    "spec": req("object"),
    **under("spec", INSTANCE_SPEC),
}

SCALE_SETTINGS = {
    "minReplicas": req("int32"),
    "maxReplicas": opt("int32"),
    "instanceManagementPolicy": req("string", default="OrderedReady"),
    "metrics": opt("array of object"),
    "metrics[].resource": opt("object"),
    "metrics[].resource.name": req("string"),
    "metrics[].resource.target": req("object"),
    "metrics[].resource.target.value": opt("quantity"),
    "metrics[].resource.target.averageValue": opt("quantity"),
    "metrics[].resource.target.averageUtilization": opt("int32"),
}

COUNTERS = {
    "replicas": req("int32"),
    "currentReplicas": req("int32"),
    "updatedReplicas": req("int32"),
    "desiredReplicas": req("int32"),
    "readyReplicas": req("int32"),
}

CONDITIONS = {"conditions": opt("array of object"), **under("conditions[]", CONDITION)}

HEAD = {"apiVersion": opt("string"), "kind": opt("string"), "metadata": opt("object")}

WORKLOAD_TABLE = {
    **HEAD,
    "spec": req("object"),
    "spec.template": req("object"),
    **under("spec.template", TEMPLATE),
    "spec.placements": req("array of object", minItems=1),
    "spec.placements[].name": req("string"),
    "spec.placements[].cityCodes": req("array of string"),
    "spec.placements[].scaleSettings": req("object"),
    **under("spec.placements[].scaleSettings", SCALE_SETTINGS),
    "status": opt("object"),
    **under("status", CONDITIONS),
    "status.deployments": req("int32"),
    **under("status", COUNTERS),
    "status.observedGeneration": opt("int64"),
    "status.placements": opt("array of object"),
    "status.placements[].name": req("string"),
    **under("status.placements[]", CONDITIONS),
    **under("status.placements[]", COUNTERS),
    "status.gateway": opt("open object"),
}

DEPLOYMENT_TABLE = {
    **HEAD,
    "spec": opt("object"),
    "spec.workloadRef": req("object"),
    "spec.workloadRef.name": req("string"),
    "spec.workloadRef.uid": req("string"),
    "spec.placementName": req("string"),
    "spec.cityCode": req("string", minLength=1),
    "spec.template": req("object"),
    **under("spec.template", TEMPLATE),
    "spec.scaleSettings": req("object"),
    **under("spec.scaleSettings", SCALE_SETTINGS),
    "status": opt("object"),
    "status.location": opt("object"),
    **under("status.location", LOCATION),
    **under("status", CONDITIONS),
    **under("status", COUNTERS),
    "status.observedGeneration": opt("int64"),
}


def waiting(type_: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": type_,
        "status": "Unknown",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }


FIRST_STATUS = {
    "conditions": [
        waiting("Programmed", "Pending", "Waiting for controller"),
        waiting("Available", "Pending", "Waiting for controller"),
        waiting("Ready", "Pending", "Waiting for controller"),
        waiting("QuotaGranted", "PendingEvaluation", "Waiting for quota evaluation"),
    ]
}

INSTANCE_TABLE = {
    **HEAD,
    "spec": opt("object"),
    **under("spec", INSTANCE_SPEC),
    "status": opt("object", default=FIRST_STATUS),
    **under("status", CONDITIONS),
    "status.networkInterfaces": opt("array of object"),
    "status.networkInterfaces[].assignments": opt("object"),
    "status.networkInterfaces[].assignments.networkIP": opt("string"),
    "status.networkInterfaces[].assignments.externalIP": opt("string"),
    "status.controller": opt("object"),
    "status.controller.observedTemplateHash": req("string"),
}

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def fields(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Row]]:
    """A schema as such a table."""
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        rest = {key: value for key, value in field.items() if key not in ("description", "properties", "required")}
        yield path, (type_of(rest), name in schema.get("required", []), rest)
        items = field.get("items", {})
        yield from fields(items or field, f"{path}[]." if items else f"{path}.")


def type_of(field: dict[str, Any]) -> str:
    """The name of a type, removing from `field` the keywords that it covers."""
    if field.pop("x-kubernetes-int-or-string", False):
        assert field.pop("anyOf") == [{"type": "integer"}, {"type": "string"}]
        return "quantity" if field.get("pattern") == QUANTITY and field.pop("pattern") else "int-or-string"
    match field.pop("type"), field:
        case "array", {"items": items}:
            del field["items"]
            return f"array of {type_of(dict(items))}"
        case "object", {"additionalProperties": values}:
            del field["additionalProperties"]
            return f"map of {type_of(dict(values))}"
        case "object", {"x-kubernetes-preserve-unknown-fields": True}:
            del field["x-kubernetes-preserve-unknown-fields"]
            return "open object"
        case "integer" | "string", {"format": format_}:
            del field["format"]
            return str(format_)
        case type_, _:
            return str(type_)
    raise AssertionError(field)


def version(kind: Kind[Any]) -> dict[str, Any]:
    [only] = definition(kind)["spec"]["versions"]
    return dict(only)


def schema(kind: Kind[Any]) -> dict[str, Any]:
    return dict(version(kind)["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize(
    ("kind", "table"),
    [(WORKLOAD, WORKLOAD_TABLE), (WORKLOAD_DEPLOYMENT, DEPLOYMENT_TABLE), (INSTANCE, INSTANCE_TABLE)],
    ids=["Workload", "WorkloadDeployment", "Instance"],
)
def test_the_schema_has_exactly_these_fields(kind: Kind[Any], table: Table) -> None:
    generated = dict(fields(schema(kind)))
    assert sorted(generated) == sorted(table)
    assert {path: row for path, row in generated.items() if row != table[path]} == {}


AGE = ("Age", "date", ".metadata.creationTimestamp", 0)
AVAILABLE = ("Available", "string", '.status.conditions[?(@.type=="Available")].status', 0)
REASON = ("Reason", "string", '.status.conditions[?(@.type=="Available")].reason', 0)
REPLICAS = [
    ("Replicas", "string", ".status.replicas", 0),
    ("Ready", "string", ".status.readyReplicas", 0),
    ("Desired", "string", ".status.desiredReplicas", 0),
    ("Up-to-date", "string", ".status.updatedReplicas", 0),
]
IMAGE = ("Image", "string", ".spec.template.spec.runtime.sandbox.containers[0].image", 0)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (WORKLOAD, [AGE, AVAILABLE, REASON, ("Deployments", "string", ".status.deployments", 0), *REPLICAS, IMAGE]),
        (
            WORKLOAD_DEPLOYMENT,
            [
                AGE,
                AVAILABLE,
                REASON,
                *REPLICAS,
                ("Location Namespace", "string", ".status.location.namespace", 1),
                ("Location Name", "string", ".status.location.name", 1),
                ("City", "string", ".spec.cityCode", 0),
                IMAGE,
            ],
        ),
        (
            INSTANCE,
            [
                AGE,
                ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
                ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
                ("Network IP", "string", ".status.networkInterfaces[0].assignments.networkIP", 0),
                ("External IP", "string", ".status.networkInterfaces[0].assignments.externalIP", 0),
                ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1),
                ("Quota", "string", '.status.conditions[?(@.type=="QuotaGranted")].reason', 1),
                ("City", "string", r".metadata.labels.compute\.datumapis\.com/city-code", 0),
                ("Image", "string", ".spec.runtime.sandbox.containers[0].image", 0),
            ],
        ),
    ],
    ids=["Workload", "WorkloadDeployment", "Instance"],
)
def test_print_columns(kind: Kind[Any], columns: list[tuple[str, str, str, int]]) -> None:
    assert columns == [
        (column["name"], column["type"], column["jsonPath"], column.get("priority", 0))
        for column in version(kind)["additionalPrinterColumns"]
    ]


@pytest.mark.parametrize(
    ("kind", "name", "names", "scope"),
    [
        (WORKLOAD, "workloads.compute.datumapis.com", ("Workload", "workloads", "workload"), "Namespaced"),
        (
            WORKLOAD_DEPLOYMENT,
            "workloaddeployments.compute.datumapis.com",
            ("WorkloadDeployment", "workloaddeployments", "workloaddeployment"),
            "Namespaced",
        ),
        (INSTANCE, "instances.compute.datumapis.com", ("Instance", "instances", "instance"), "Namespaced"),
        (
            PROPAGATION_POLICY,
            "propagationpolicies.policy.karmada.io",
            ("PropagationPolicy", "propagationpolicies", "propagationpolicy"),
            "Namespaced",
        ),
        (CLUSTER, "clusters.cluster.karmada.io", ("Cluster", "clusters", "cluster"), "Cluster"),
        (
            LOCATION_BINDING,
            "locationbindings.networking.datumapis.com",
            ("LocationBinding", "locationbindings", "locationbinding"),
            "Cluster",
        ),
    ],
)
def test_names_and_scope(kind: Kind[Any], name: str, names: tuple[str, str, str], scope: str) -> None:
    crd = definition(kind)
    assert crd["metadata"]["name"] == name
    served = crd["spec"]["names"]
    assert (served["kind"], served["plural"], served["singular"]) == names
    assert served["listKind"] == f"{names[0]}List"
    short = {"Workload": ["wl"], "WorkloadDeployment": ["wd"], "Instance": ["inst"]}
    assert served.get("shortNames", []) == short.get(kind.name, [])
    assert crd["spec"]["scope"] == scope
    assert crd["spec"]["group"] == name.split(".", 1)[1]
    assert version(kind)["name"] == kind.version
    assert version(kind)["served"] is version(kind)["storage"] is True
    assert version(kind)["subresources"] == {"status": {}}


@pytest.mark.parametrize("kind", [WORKLOAD, WORKLOAD_DEPLOYMENT, INSTANCE])
def test_compute_kinds_belong_to_projects(kind: Kind[Any]) -> None:
    assert definition(kind)["metadata"]["annotations"] == {"discovery.miloapis.com/parent-contexts": "Project"}
    assert kind.api_version == "compute.datumapis.com/v1alpha"


OTHERS = list(dict.fromkeys(kind for kinds in ROLES.values() for kind in kinds if kind not in OURS))


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_kinds_of_others_preserve_unknown_fields(kind: Kind[Any]) -> None:
    def closed(schema: dict[str, Any], path: str) -> Iterator[str]:
        if schema["type"] == "object" and not schema.keys() & {
            "x-kubernetes-preserve-unknown-fields",
            "additionalProperties",
        }:
            yield path
        for name, field in schema.get("properties", {}).items():
            yield from closed(field, f"{path}.{name}")
        if "items" in schema:
            yield from closed(schema["items"], f"{path}[]")

    assert "annotations" not in definition(kind)["metadata"]
    assert [path for part in ("spec", "status") for path in closed(schema(kind)["properties"][part], part)] == []


@pytest.mark.parametrize(
    ("role", "kinds"),
    [
        ("root", ["Project", "ProjectControlPlane", "ResourceRegistration"]),
        (
            "project",
            [
                *("Workload", "WorkloadDeployment", "Instance"),
                *("Location", "LocationBinding", "Network", "ServiceEntitlement"),
                *("ResourceClaim", "ResourceGrant", "ResourceRegistration", "AllowanceBucket"),
            ],
        ),
        ("hub", ["WorkloadDeployment", "Instance", "PropagationPolicy", "Cluster"]),
        (
            "cell",
            [
                *("WorkloadDeployment", "Instance"),
                *("Location", "Network", "NetworkBinding", "NetworkContext", "SubnetClaim", "Subnet"),
            ],
        ),
    ],
)
def test_a_plane_serves_the_kinds_of_its_role(role: str, kinds: list[str]) -> None:
    assert [crd["spec"]["names"]["kind"] for crd in by_role(role)] == kinds


def test_changing_a_definition_does_not_affect_later_ones() -> None:
    definition(INSTANCE)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"].clear()
    by_role("cell")[1]["spec"].clear()
    assert schema(INSTANCE)["properties"]["status"]["default"] == FIRST_STATUS


def defaulted(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "default" in schema:
        yield schema
    for field in (*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])):
        yield from defaulted(field)


@pytest.mark.parametrize("kind", [*OURS, *OTHERS], ids=lambda kind: kind.name)
def test_every_default_fits_its_own_schema(kind: Kind[Any]) -> None:
    """Otherwise API servers refuse the definition."""
    for field in defaulted(schema(kind)):
        jsonschema_rs.validator_for(field, validate_formats=True).validate(field["default"])


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        (NETWORK_BINDING, ["Ready"]),
        (SUBNET_CLAIM, ["Allocated", "Programmed", "Ready"]),
        (SUBNET, ["Allocated", "Programmed", "Ready"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_network_objects_are_pending_at_first(kind: Kind[Any], types: list[str]) -> None:
    default = schema(kind)["properties"]["status"]["default"]
    assert default == {"conditions": [waiting(type_, "Pending", "Waiting for controller") for type_ in types]}


def test_a_network_has_the_defaults_of_the_network_operator() -> None:
    spec = schema(NETWORK)["properties"]["spec"]["properties"]
    assert (spec["ipFamilies"]["default"], spec["mtu"]["default"]) == (["IPv4"], 1460)
    assert (spec["mtu"]["minimum"], spec["mtu"]["maximum"]) == (1300, 8856)


SMALLEST = {
    "spec": {
        "template": {
            "spec": {
                "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}},
                "networkInterfaces": [{"network": {"name": "default"}}],
            }
        },
        "placements": [
            {
                "name": "main",
                "cityCodes": ["DFW"],
                "scaleSettings": {"minReplicas": 1, "instanceManagementPolicy": "OrderedReady"},
            }
        ],
    }
}


def test_the_examples_are_valid_and_broken_ones_are_not() -> None:
    validator = jsonschema_rs.validator_for(schema(WORKLOAD))
    assert validator.is_valid(SMALLEST)
    assert not validator.is_valid({})
    assert not validator.is_valid({"spec": SMALLEST["spec"] | {"placements": []}})


@pytest.mark.parametrize(("amount", "fits"), [("30Gi", True), (2, True), ("500m", True), ("lots", False), (1.5, False)])
def test_a_quantity_is_a_number_or_a_string_with_a_unit(amount: object, fits: bool) -> None:
    template = schema(WORKLOAD)["properties"]["spec"]["properties"]["template"]["properties"]["spec"]
    requests = template["properties"]["runtime"]["properties"]["resources"]["properties"]["requests"]
    assert jsonschema_rs.validator_for(requests).is_valid({"cpu": amount}) is fits


def test_there_is_one_file_per_compute_kind() -> None:
    written = files()
    assert sorted(written) == [
        "compute.datumapis.com_instances.yaml",
        "compute.datumapis.com_workloaddeployments.yaml",
        "compute.datumapis.com_workloads.yaml",
    ]
    assert all("&id" not in text for text in written.values())
    assert yaml.safe_load(written["compute.datumapis.com_workloads.yaml"]) == definition(WORKLOAD)
