"""What Milo has to know about compute: its service, permissions and quota. Entry point: `components`."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from datum_compute.api import GROUP
from datum_compute.api.crd import OURS
from datum_compute.api.quota import INSTANCES, MEMORY, QUOTA_GROUP, VCPUS, WORKLOADS
from datum_compute.api.services import PROJECT, RESOURCE_MANAGER_GROUP, SERVICE_OBJECT, SERVICES_GROUP
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import Json
from datum_compute.platform.grants import LIMITS, Limit, registration

_IAM = "iam.miloapis.com/v1alpha1"
_SERVICES = f"{SERVICES_GROUP}/v1alpha1"
_PROJECT = {"apiGroup": RESOURCE_MANAGER_GROUP, "kind": PROJECT.name}


class Metric(Struct, frozen=True):
    """A limit as the service catalog shows it."""

    limit: Limit
    title: str
    description: str
    unit: str  # of amounts, as the catalog writes it
    symbol: str  # the same in UCUM


# Milo itself claims one for each Workload that is created; compute claims the others.
OF_WORKLOADS = Limit("compute-workloads", WORKLOADS, 1000)

_OF = {limit.resource_type: limit for limit in LIMITS}

METRICS = (
    Metric(OF_WORKLOADS, "Workloads", "Workloads of a project.", "workload", "{workload}"),
    Metric(_OF[INSTANCES], "Instances", "Instances that a project runs.", "instance", "{instance}"),
    Metric(_OF[VCPUS], "vCPUs", "Thousandths of a CPU, over all instances of a project.", "millicore", "{millicore}"),
    Metric(_OF[MEMORY], "Memory", "Memory in MiB, over all instances of a project.", "MiB", "MiBy"),
)

_READ = ("list", "get", "watch")
_WRITE = ("create", "update", "patch", "delete")


def components() -> dict[str, dict[str, Sequence[Json]]]:
    """Objects by component and file name."""
    return {
        "service-catalog": {"service.yaml": [_service()], "configuration.yaml": [_configuration()]},
        "iam": {"resources.yaml": list(_protected_resources()), "roles.yaml": list(_roles())},
        "quota": {"registrations.yaml": [registration(limit) for limit in LIMITS], "grants.yaml": [_grants()]},
    }


def _service() -> Json:
    spec = {
        "serviceName": GROUP,
        "phase": "Published",
        "displayName": "Compute",
        "description": "Containers in the cities of your choice.",
    }
    return _object(_SERVICES, "Service", SERVICE_OBJECT, spec)


def _configuration() -> Json:
    rule = {
        "selector": {"apiGroup": WORKLOAD.group, "kind": WORKLOAD.name},
        "metricCosts": {OF_WORKLOADS.resource_type: 1},
    }
    spec = {
        "serviceRef": {"name": SERVICE_OBJECT},
        "phase": "Published",
        "metrics": [
            {
                "name": metric.limit.resource_type,
                "displayName": metric.title,
                "description": metric.description,
                "kind": "Gauge",
                "unit": metric.symbol,
            }
            for metric in METRICS
        ],
        "quota": {
            "metricRules": [rule],
            "limits": [
                {
                    "name": metric.limit.name,
                    "displayName": metric.title,
                    "description": metric.description,
                    "metric": metric.limit.resource_type,
                    "consumerType": _PROJECT,
                    "unit": metric.unit,
                    "defaultLimit": metric.limit.default,
                }
                for metric in METRICS
            ],
        },
    }
    return _object(_SERVICES, "ServiceConfiguration", SERVICE_OBJECT, spec)


def _protected_resources() -> Iterator[Json]:
    for kind in OURS:
        spec = {
            "serviceRef": {"name": GROUP},
            "kind": kind.name,
            "plural": kind.plural,
            "singular": kind.name.lower(),
            "permissions": [*_READ, *_WRITE, "updateStatus"],
            "parentResources": [_PROJECT],
        }
        yield _object(_IAM, "ProtectedResource", f"{GROUP}-{kind.name.lower()}", spec)


def _roles() -> Iterator[Json]:
    viewer, admin = f"{GROUP}-viewer", f"{GROUP}-admin"
    reading = [permission for kind in OURS for permission in _permissions(kind.plural, _READ)]
    yield _role(viewer, "Compute Viewer", "See workloads and what became of them.", reading)
    writing = list(_permissions(WORKLOAD.plural, _WRITE))
    role = _role(admin, "Compute Admin", "Create, change and delete workloads.", writing)
    role["spec"] = {"inheritedRoles": [{"name": viewer}]} | role["spec"]
    yield role


def _permissions(plural: str, verbs: Iterable[str]) -> Iterator[str]:
    return (f"{GROUP}/{plural}.{verb}" for verb in verbs)


def _role(name: str, title: str, description: str, permissions: list[str]) -> Json:
    role = _object(_IAM, "Role", name, {"launchStage": "Beta", "includedPermissions": permissions})
    annotations = {"kubernetes.io/display-name": title, "kubernetes.io/description": description}
    return role | {"metadata": role["metadata"] | {"annotations": annotations}}


def _grants() -> Json:
    """The same quota for every project, where no service catalog grants it with an entitlement."""
    allowances = [{"resourceType": limit.resource_type, "buckets": [{"amount": limit.default}]} for limit in LIMITS]
    name = "{{trigger.metadata.name}}"
    spec = {
        "trigger": {"resource": {"apiVersion": PROJECT.api_version, "kind": PROJECT.name}},
        "target": {
            "resourceGrantTemplate": {
                "metadata": {"name": f"{name}-compute-quota", "namespace": "milo-system"},
                "spec": {"consumerRef": _PROJECT | {"name": name}, "allowances": allowances},
            }
        },
    }
    return _object(f"{QUOTA_GROUP}/v1alpha1", "GrantCreationPolicy", "compute-default-quota", spec)


def _object(api_version: str, kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
