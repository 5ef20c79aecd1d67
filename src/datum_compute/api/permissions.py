"""Who may do what on which plane, and why. Entry point: `PERMISSIONS`.

The roles in `deploy/roles/` and the reference are generated from this table. A test runs the controllers, and fails on
a call that no rule allows and on a rule that no call needs.
"""

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api import GROUP as COMPUTE
from datum_compute.api.accounts import NAMESPACE
from datum_compute.api.networking import NETWORKING_GROUP as NETWORKING
from datum_compute.api.quota import QUOTA_GROUP as QUOTA
from datum_compute.api.services import INFRASTRUCTURE_GROUP, RESOURCE_MANAGER_GROUP
from datum_compute.api.services import SERVICES_GROUP as SERVICES


class Who(Enum):
    """An identity, with its own credentials on every plane it works on."""

    MANAGEMENT = "management"
    CELL = "cell"
    USER = "user"  # of a project, through the `compute` command or directly
    VIEWER = "viewer"  # an operator who asks `compute why`, and changes nothing
    KARMADA = "karmada"  # where the hub calls a cell on behalf of management


class On(Enum):
    """A plane. The host is the cluster that management runs in; a cell runs in its own plane."""

    HOST = "host"
    ROOT = "root"
    PROJECT = "project"
    HUB = "hub"
    CELL = "cell"


class When(Enum):
    """The feature that needs a permission, or the namespace it applies to. Each has a separate role."""

    ALWAYS = ""
    LEADER_ELECTION = "leader-election"
    EXECUTION_SPACE = "execution-space"
    ABANDONED_CLAIMS = "abandoned-claims"
    SECURE_METRICS = "secure-metrics"
    WEBHOOK = "webhook"
    WEBHOOK_CERTIFICATE = "webhook-certificate"
    WEBHOOK_AUTHORITY = "webhook-authority"
    MILO_DISCOVERY = "milo-discovery"
    INTERNAL_DISCOVERY = "internal-discovery"
    NETWORKING = "networking"
    PODS = "provider-pods"
    ENTITLEMENT = "builtin-entitlement"
    QUOTA = "builtin-quota"
    NETWORK = "builtin-network"
    LOCATIONS = "builtin-locations"
    CITY_RESTART = "city-restart"
    LOGS = "logs"
    EXEC = "exec"
    FRONT_PROXY = "front-proxy"


class Rule(Struct, frozen=True):
    group: str
    resources: tuple[str, ...]  # `workloads`, `workloads/status`
    verbs: tuple[str, ...]
    why: str
    when: When = When.ALWAYS
    in_namespace: bool = False  # only in one namespace, which depends on `when`
    names: tuple[str, ...] = ()  # only objects of these names; a create cannot be limited by name


def _may(verbs: str, group: str, resources: str, why: str, when: When = When.ALWAYS) -> Rule:
    return Rule(group, tuple(resources.split()), tuple(verbs.split()), why, when)


CORE = ""
_READ = "get list watch"  # one permission in three verbs: whoever may list may get
_MANAGE = f"{_READ} create patch delete"
_OWN = "update"  # of an owner's finalizers: needed to create owner references that block the owner's deletion

MANAGEMENT_LEASE = "e98b06c6.datumapis.com"
CELL_LEASE = "cell.e98b06c6.datumapis.com"


def _lease(name: str) -> tuple[Rule, Rule]:
    holding = Rule(
        "coordination.k8s.io",
        ("leases",),
        ("get", "update"),
        "elect the replica that works",
        When.LEADER_ELECTION,
        in_namespace=True,
        names=(name,),
    )
    return holding, replace(holding, verbs=("create",), why="create the lease", names=())


# Only in the cell's own namespace: the Works of other cells do not concern it.
_WORKS = Rule(
    "work.karmada.io",
    ("works",),
    ("get", "delete"),
    "delete Works that would recreate leftovers",
    When.EXECUTION_SPACE,
    in_namespace=True,
)

LEDGER = "compute-abandoned-claims"  # the ConfigMap


def _ledger() -> tuple[Rule, Rule]:
    why, when = "remember claims that could not be deleted yet", When.ABANDONED_CLAIMS
    updating = Rule(CORE, ("configmaps",), ("get", "patch"), why, when, in_namespace=True, names=(LEDGER,))
    return updating, Rule(CORE, ("configmaps",), ("create",), why, when, in_namespace=True)


WEBHOOK_SECRET = "compute-webhook-cert"
WEBHOOK_SERVICE = "webhook-service"
MUTATING_WEBHOOKS = "compute-mutating-webhook-configuration"
VALIDATING_WEBHOOKS = "compute-validating-webhook-configuration"


def _webhook_certificate() -> tuple[Rule, ...]:
    """For installations without cert-manager."""
    why, when = "issue and renew the certificate of the webhook", When.WEBHOOK_CERTIFICATE
    trust, registered = "let API servers trust that certificate", When.WEBHOOK_AUTHORITY
    registrations = {"mutating": MUTATING_WEBHOOKS, "validating": VALIDATING_WEBHOOKS}
    return (
        Rule(CORE, ("secrets",), ("get", "patch"), why, when, in_namespace=True, names=(WEBHOOK_SECRET,)),
        Rule(CORE, ("secrets",), ("create",), "create the Secret of the certificate", when, in_namespace=True),
        *(
            Rule(
                "admissionregistration.k8s.io",
                (f"{type_}webhookconfigurations",),
                ("get", "patch"),
                trust,
                registered,
                names=(name,),
            )
            for type_, name in registrations.items()
        ),
    )


# The lease has the cell's name, as that namespace does.
_NAME_LEASE = Rule(
    "coordination.k8s.io",
    ("leases",),
    ("get", "create", "update"),
    "ensure that only one cell uses the name",
    When.EXECUTION_SPACE,
    in_namespace=True,
)

_METRICS = (
    _may("create", "authentication.k8s.io", "tokenreviews", "authenticate readers of metrics", When.SECURE_METRICS),
    _may("create", "authorization.k8s.io", "subjectaccessreviews", "authorize readers of metrics", When.SECURE_METRICS),
)

# Where an API server says by which certificates its front proxy can be recognized.
FRONT_PROXY_NAMESPACE, FRONT_PROXY_CONFIG = "kube-system", "extension-apiserver-authentication"
_FRONT_PROXY = Rule(
    CORE,
    ("configmaps",),
    ("get",),
    "recognize callers that the API server passes on",
    When.FRONT_PROXY,
    in_namespace=True,
    names=(FRONT_PROXY_CONFIG,),
)

O11Y = "o11y.miloapis.com"  # the group of the API for logs
RUN = f"run.{COMPUTE}"  # the group of the API for commands

PERMISSIONS: dict[tuple[Who, On], tuple[Rule, ...]] = {
    (Who.MANAGEMENT, On.HOST): (
        *_lease(MANAGEMENT_LEASE),
        *_METRICS,
        *_webhook_certificate(),
        _FRONT_PROXY,
    ),
    (Who.MANAGEMENT, On.ROOT): (
        _FRONT_PROXY,
        _may(_READ, RESOURCE_MANAGER_GROUP, "projects", "discover projects", When.MILO_DISCOVERY),
        _may(_READ, INFRASTRUCTURE_GROUP, "projectcontrolplanes", "discover projects", When.INTERNAL_DISCOVERY),
    ),
    (Who.MANAGEMENT, On.PROJECT): (
        _may(_READ, CORE, "namespaces", "derive the names of hub namespaces from their uids"),
        _may("create patch", CORE, "events", "report to users what happens to their workloads"),
        Rule(CORE, ("namespaces",), ("patch",), "note withdrawn deployments", names=("default",)),
        _may(f"{_READ} patch", COMPUTE, "workloads", "read what users request, and set finalizers"),
        _may("update", COMPUTE, "workloads/status", "report the state of workloads"),
        _may(_OWN, COMPUTE, "workloads/finalizers", "let workloads own their deployments"),
        _may(_MANAGE, COMPUTE, "workloaddeployments", "manage one per placement and city"),
        _may("update", COMPUTE, "workloaddeployments/status", "report the state of deployments"),
        _may(_MANAGE, COMPUTE, "instances", "show users the instances in cells"),
        _may("update", COMPUTE, "instances/status", "report the state of instances"),
        _may("list patch", QUOTA, "resourceclaims", "assign claims to another cell after a move"),
        _may(_READ, NETWORKING, "locationbindings", "find the cities offered to the project"),
        _may(_READ, NETWORKING, "locations", "find cities where there are no bindings"),
        _may(_READ, NETWORKING, "networks", "check that the networks of a workload exist", When.NETWORKING),
        _may("create", "authorization.k8s.io", "subjectaccessreviews", "check access to networks", When.WEBHOOK),
        _may("create", "authentication.k8s.io", "selfsubjectreviews", "recognize its own writes", When.WEBHOOK),
        _may("create", "authentication.k8s.io", "tokenreviews", "authenticate readers of logs", When.LOGS),
        _may("create", "authorization.k8s.io", "subjectaccessreviews", "authorize readers of logs", When.LOGS),
        # Instead of the service catalog
        _may(_READ, SERVICES, "serviceentitlements", "find projects that request compute", When.ENTITLEMENT),
        _may("update", SERVICES, "serviceentitlements/status", "activate entitlements", When.ENTITLEMENT),
        _may(_OWN, SERVICES, "serviceentitlements/finalizers", "let them own what they bring", When.ENTITLEMENT),
        _may("create", NETWORKING, "locationbindings", "offer cities with an entitlement", When.ENTITLEMENT),
        _may("update", NETWORKING, "locationbindings/status", "report cities as available", When.ENTITLEMENT),
        _may(f"{_READ} create", QUOTA, "resourcegrants", "grant quota with an entitlement", When.ENTITLEMENT),
        _may("create", CORE, "namespaces", "create the namespace of grants", When.ENTITLEMENT),
        _may("create", NETWORKING, "locationbindings", "offer a city for each cluster of the hub", When.LOCATIONS),
        _may("update", NETWORKING, "locationbindings/status", "report whether cities are available", When.LOCATIONS),
        # Instead of Milo's quota
        _may(f"{_READ} create", QUOTA, "resourceregistrations", "register resources to claim", When.QUOTA),
        _may(f"{_READ} create", QUOTA, "allowancebuckets", "show usage and limits", When.QUOTA),
        _may(_READ, QUOTA, "resourcegrants resourceclaims", "decide claims by the grants", When.QUOTA),
        _may("update", QUOTA, "resourceregistrations/status resourcegrants/status", "activate both", When.QUOTA),
        _may("update", QUOTA, "resourceclaims/status allowancebuckets/status", "report decisions", When.QUOTA),
    ),
    (Who.MANAGEMENT, On.HUB): (
        _may(_MANAGE, CORE, "namespaces", "manage one per project namespace"),
        _may(_MANAGE, COMPUTE, "workloaddeployments", "send to cells, and read back the status"),
        _may(f"{_READ} patch", COMPUTE, "instances", "read instances, and reassign them after a move"),
        _may(_MANAGE, "policy.karmada.io", "propagationpolicies", "route cities to cells"),
        _may(_READ, "cluster.karmada.io", "clusters", "find the cells of a city"),
        _may("create patch", CORE, "events", "report standby cells and held leftovers"),
        _may("get", "coordination.k8s.io", "leases", "check that a cell still holds its name"),
        _may("get list delete", "work.karmada.io", "resourcebindings", "delete bindings that block a later deployment"),
        _may("get", "cluster.karmada.io", "clusters/proxy", "reach the Pods of cells", When.LOGS),
    ),
    (Who.MANAGEMENT, On.CELL): (
        _may("get", CORE, "pods/log", "read what instances write", When.LOGS),
        _may("get create", CORE, "pods/exec", "run commands of users in instances", When.EXEC),
    ),
    (Who.KARMADA, On.CELL): (
        Rule(
            CORE,
            ("groups",),
            ("impersonate",),
            "pass on calls of management's hub account",
            When.LOGS,
            names=("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"),
        ),
    ),
    (Who.CELL, On.CELL): (
        _may(_READ, CORE, "namespaces", "find the project of a namespace"),
        _may("create patch", CORE, "events", "report what happens to instances"),
        _may(f"{_READ} patch delete", COMPUTE, "workloaddeployments", "read what to run, and delete leftovers"),
        _may("update", COMPUTE, "workloaddeployments/status", "report the state of deployments"),
        _may(_OWN, COMPUTE, "workloaddeployments/finalizers", "let deployments own their instances"),
        _may(_MANAGE, COMPUTE, "instances", "manage instances, their gates and labels"),
        _may("update", COMPUTE, "instances/status", "report the state of instances"),
        *_lease(CELL_LEASE),
        *_ledger(),
        *_METRICS,
        _may(_READ, NETWORKING, "locations networkcontexts subnets", "check that networks are ready", When.NETWORKING),
        _may(f"{_READ} create patch", NETWORKING, "networkbindings", "request networks", When.NETWORKING),
        _may(f"{_READ} create", NETWORKING, "subnetclaims", "request addresses", When.NETWORKING),
        # Instead of the network operator
        _may("create", NETWORKING, "locations", "publish the cities that the cell serves", When.LOCATIONS),
        _may(_MANAGE, NETWORKING, "networks", "create the networks that bindings name", When.NETWORK),
        _may(_OWN, NETWORKING, "networks/finalizers", "let networks own their contexts", When.NETWORK),
        _may("create delete", NETWORKING, "networkcontexts", "set up networks at the location", When.NETWORK),
        _may(_OWN, NETWORKING, "networkcontexts/finalizers", "let contexts own their subnets", When.NETWORK),
        _may("create", NETWORKING, "subnets", "allocate subnets", When.NETWORK),
        _may("update", NETWORKING, "networkbindings/status networkcontexts/status", "report readiness", When.NETWORK),
        _may("update", NETWORKING, "subnetclaims/status subnets/status", "report allocated addresses", When.NETWORK),
        _may(_MANAGE, CORE, "pods", "run instances in Pods", When.PODS),
        _may(_MANAGE, "networking.k8s.io", "networkpolicies", "control access to Pods", When.PODS),
        _may(_OWN, COMPUTE, "instances/finalizers", "let instances own their Pods", When.PODS),
    ),
    (Who.CELL, On.HUB): (
        _may(_READ, CORE, "namespaces", "find the project of a namespace"),
        _may(_READ, COMPUTE, "workloaddeployments", "check that a copy is still needed"),
        _may(_OWN, COMPUTE, "workloaddeployments/finalizers", "let deployments own copies of instances"),
        _may(_MANAGE, COMPUTE, "instances", "keep a copy of each of its instances"),
        _may("update", COMPUTE, "instances/status", "report the state of instances"),
        _WORKS,
        _NAME_LEASE,
    ),
    (Who.CELL, On.PROJECT): (
        _may(f"{_READ} create delete", QUOTA, "resourceclaims", "claim quota for instances"),
    ),
    # Not Works: they hold whole manifests, and so may hold Secrets of every tenant.
    (Who.VIEWER, On.HUB): (
        _may("get list", CORE, "namespaces events", "see namespaces of projects, and what happened"),
        _may("get list", COMPUTE, "workloaddeployments instances", "see what was sent, and what came back"),
        _may("get list", "policy.karmada.io", "propagationpolicies", "see how cities are routed"),
        _may("get list", "cluster.karmada.io", "clusters", "see which sites answer"),
        _may("get list", "work.karmada.io", "resourcebindings", "see where deployments were delivered"),
        _may("get list", "coordination.k8s.io", "leases", "see which cells hold their names"),
    ),
    (Who.VIEWER, On.CELL): (
        _may("get list", CORE, "namespaces events", "see namespaces of projects, and what happened"),
        _may("get list", COMPUTE, "workloaddeployments instances", "see what arrived, and what runs"),
        _may("get list", "coordination.k8s.io", "leases", "see which replica works"),
    ),
    (Who.USER, On.PROJECT): (
        _may(f"{_READ} create update patch delete", COMPUTE, "workloads", "manage workloads"),
        _may(_READ, COMPUTE, "workloaddeployments", "see the state in each city"),
        _may("update patch", COMPUTE, "workloaddeployments", "restart a city from older clients", When.CITY_RESTART),
        _may(_READ, COMPUTE, "instances", "see running instances"),
        _may("get create update delete", CORE, "configmaps", "keep the revisions of workloads"),
        _may(_READ, CORE, "events", "see what happened to workloads"),
        _may("get create use", NETWORKING, "networks", "create networks, and attach workloads to them"),
        _may(_READ, NETWORKING, "locationbindings locations", "see the cities on offer"),
        _may(_READ, QUOTA, "allowancebuckets resourceregistrations resourceclaims", "see quota and its usage"),
        _may(f"{_READ} create", SERVICES, "serviceentitlements", "request compute"),
        _may("get", COMPUTE, "instances/log", "read the logs of instances", When.LOGS),
        _may("get", O11Y, "logs/api", "call the API for logs", When.LOGS),
        _may("create", COMPUTE, "instances/exec", "run commands in instances", When.EXEC),
        _may("get", RUN, "instances/exec", "call the API for commands", When.EXEC),
    ),
}  # fmt: skip
