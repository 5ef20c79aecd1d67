"""Who may do what on which plane, and what for. Entry point: `PERMISSIONS`.

The one table that the roles in `deploy/roles/` and the reference are generated from. A test runs the controllers and
fails on a call that no rule allows, and on a rule that no call needs.
"""

from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api import GROUP as COMPUTE
from datum_compute.api.networking import NETWORKING_GROUP as NETWORKING
from datum_compute.api.quota import QUOTA_GROUP as QUOTA
from datum_compute.api.services import INFRASTRUCTURE_GROUP, RESOURCE_MANAGER_GROUP
from datum_compute.api.services import SERVICES_GROUP as SERVICES


class Who(Enum):
    """Each has credentials of its own on every plane it works on."""

    MANAGEMENT = "management"
    CELL = "cell"
    USER = "user"  # of a project, by the `compute` command or by hand


class On(Enum):
    """A plane. The host is the cluster that management runs in; a cell runs in its own plane."""

    HOST = "host"
    ROOT = "root"
    PROJECT = "project"
    HUB = "hub"
    CELL = "cell"


class When(Enum):
    """What has to be switched on before anybody needs the permission, or where. Each gets a role of its own."""

    ALWAYS = ""
    LEADER_ELECTION = "leader-election"
    EXECUTION_SPACE = "execution-space"
    ABANDONED_CLAIMS = "abandoned-claims"
    SECURE_METRICS = "secure-metrics"
    WEBHOOK = "webhook"
    MILO_DISCOVERY = "milo-discovery"
    INTERNAL_DISCOVERY = "internal-discovery"
    NETWORKING = "networking"
    PODS = "provider-pods"
    ENTITLEMENT = "builtin-entitlement"
    QUOTA = "builtin-quota"
    NETWORK = "builtin-network"
    LOCATIONS = "builtin-locations"
    CITY_RESTART = "city-restart"


class Rule(Struct, frozen=True):
    group: str
    resources: tuple[str, ...]  # `workloads`, `workloads/status`
    verbs: tuple[str, ...]
    why: str
    when: When = When.ALWAYS
    in_namespace: bool = False  # only in one, which `when` says
    names: tuple[str, ...] = ()  # of these objects only; a server cannot hold a create to a name


def _may(verbs: str, group: str, resources: str, why: str, when: When = When.ALWAYS) -> Rule:
    return Rule(group, tuple(resources.split()), tuple(verbs.split()), why, when)


CORE = ""
_READ = "get list watch"  # one permission in three words: whoever may list may get
_OWN = "update"  # of an owner's finalizers, for who makes an owner reference that blocks the owner's deletion

MANAGEMENT_LEASE = "e98b06c6.datumapis.com"
CELL_LEASE = "cell.e98b06c6.datumapis.com"


def _lease(name: str) -> tuple[Rule, Rule]:
    held = Rule(
        "coordination.k8s.io",
        ("leases",),
        ("get", "update"),
        "one process at a time works",
        When.LEADER_ELECTION,
        in_namespace=True,
        names=(name,),
    )
    return held, replace(held, verbs=("create",), why="the first process makes it", names=())


# The other cells are none of its business.
_WORKS = Rule(
    "work.karmada.io",
    ("works",),
    ("get", "delete"),
    "what Karmada would make a leftover from again",
    When.EXECUTION_SPACE,
    in_namespace=True,
)

LEDGER = "compute-abandoned-claims"  # the ConfigMap


def _ledger() -> tuple[Rule, Rule]:
    why, when = "claims that it could not remove yet", When.ABANDONED_CLAIMS
    kept = Rule(CORE, ("configmaps",), ("get", "patch"), why, when, in_namespace=True, names=(LEDGER,))
    return kept, Rule(CORE, ("configmaps",), ("create",), why, when, in_namespace=True)


# Its name, which is the name of that namespace too.
_NAME_LEASE = Rule(
    "coordination.k8s.io",
    ("leases",),
    ("get", "create", "update"),
    "its name is held by one cell at a time",
    When.EXECUTION_SPACE,
    in_namespace=True,
)

_METRICS = (
    _may("create", "authentication.k8s.io", "tokenreviews", "who asks for metrics", When.SECURE_METRICS),
    _may("create", "authorization.k8s.io", "subjectaccessreviews", "if they may have them", When.SECURE_METRICS),
)

PERMISSIONS: dict[tuple[Who, On], tuple[Rule, ...]] = {
    (Who.MANAGEMENT, On.HOST): (
        *_lease(MANAGEMENT_LEASE),
        *_METRICS,
    ),
    (Who.MANAGEMENT, On.ROOT): (
        _may(_READ, RESOURCE_MANAGER_GROUP, "projects", "which projects there are", When.MILO_DISCOVERY),
        _may(
            _READ, INFRASTRUCTURE_GROUP, "projectcontrolplanes", "which projects there are", When.INTERNAL_DISCOVERY
        ),
    ),
    (Who.MANAGEMENT, On.PROJECT): (
        _may(_READ, CORE, "namespaces", "their uids name the namespaces of the hub"),
        _may("create patch", CORE, "events", "what users are told about their instances"),
        Rule(CORE, ("namespaces",), ("patch",), "a note of what was withdrawn", names=("default",)),
        _may(f"{_READ} patch", COMPUTE, "workloads", "what users ask for; its finalizer"),
        _may("update", COMPUTE, "workloads/status", "what became of it"),
        _may(_OWN, COMPUTE, "workloads/finalizers", "a workload owns its deployments"),
        _may(f"{_READ} create patch delete", COMPUTE, "workloaddeployments", "one a placement and city"),
        _may("update", COMPUTE, "workloaddeployments/status", "what the hub says of it"),
        _may(f"{_READ} create patch delete", COMPUTE, "instances", "what runs in the cells, shown to users"),
        _may("update", COMPUTE, "instances/status", "how it runs"),
        _may("list patch", QUOTA, "resourceclaims", "which cell releases them after a move"),
        _may(_READ, NETWORKING, "locationbindings", "which cities are offered"),
        _may(_READ, NETWORKING, "locations", "the same, where there are no bindings"),
        _may(_READ, NETWORKING, "networks", "if the networks of a workload exist", When.NETWORKING),
        _may("create", "authorization.k8s.io", "subjectaccessreviews", "if a user may use a network", When.WEBHOOK),
        _may("create", "authentication.k8s.io", "selfsubjectreviews", "which writes are its own", When.WEBHOOK),
        # Instead of the service catalog
        _may(_READ, SERVICES, "serviceentitlements", "who asks for compute", When.ENTITLEMENT),
        _may("update", SERVICES, "serviceentitlements/status", "that they have it", When.ENTITLEMENT),
        _may(_OWN, SERVICES, "serviceentitlements/finalizers", "it owns what comes with it", When.ENTITLEMENT),
        _may("create", NETWORKING, "locationbindings", "the cities that come with it", When.ENTITLEMENT),
        _may("update", NETWORKING, "locationbindings/status", "that they can be chosen", When.ENTITLEMENT),
        _may(f"{_READ} create", QUOTA, "resourcegrants", "the quota that comes with it", When.ENTITLEMENT),
        _may("create", CORE, "namespaces", "where grants live", When.ENTITLEMENT),
        _may("create", NETWORKING, "locationbindings", "a city for each cluster of the hub", When.LOCATIONS),
        _may("update", NETWORKING, "locationbindings/status", "if it can be chosen", When.LOCATIONS),
        # Instead of Milo's quota
        _may(f"{_READ} create", QUOTA, "resourceregistrations", "what can be claimed", When.QUOTA),
        _may(f"{_READ} create", QUOTA, "allowancebuckets", "what is left of it", When.QUOTA),
        _may(_READ, QUOTA, "resourcegrants resourceclaims", "what to decide by, and on", When.QUOTA),
        _may("update", QUOTA, "resourceregistrations/status resourcegrants/status", "that they count", When.QUOTA),
        _may("update", QUOTA, "resourceclaims/status allowancebuckets/status", "what was decided", When.QUOTA),
    ),
    (Who.MANAGEMENT, On.HUB): (
        _may(f"{_READ} create patch delete", CORE, "namespaces", "one a project namespace, with its identity"),
        _may(f"{_READ} create patch delete", COMPUTE, "workloaddeployments", "what cells are sent, and their answers"),
        _may(f"{_READ} patch", COMPUTE, "instances", "what runs in the cells; whose it is after a move"),
        _may(f"{_READ} create patch delete", "policy.karmada.io", "propagationpolicies", "which cell serves a city"),
        _may(_READ, "cluster.karmada.io", "clusters", "which cell serves a city"),
        _may("create patch", CORE, "events", "which cells stand by, and what is held"),
        _may("get", "coordination.k8s.io", "leases", "if a cell still has its name"),
        _may("get list delete", "work.karmada.io", "resourcebindings", "what an earlier deployment left in the way"),
    ),
    (Who.CELL, On.CELL): (
        _may(_READ, CORE, "namespaces", "which project a namespace belongs to"),
        _may("create patch", CORE, "events", "what happened to an instance"),
        _may(f"{_READ} patch delete", COMPUTE, "workloaddeployments", "what to run; what Karmada forgot to take away"),
        _may("update", COMPUTE, "workloaddeployments/status", "what runs"),
        _may(_OWN, COMPUTE, "workloaddeployments/finalizers", "a deployment owns its instances"),
        _may(f"{_READ} create patch delete", COMPUTE, "instances", "what runs; its gates, labels and finalizers"),
        _may("update", COMPUTE, "instances/status", "if it is ready, or why not"),
        *_lease(CELL_LEASE),
        *_ledger(),
        *_METRICS,
        _may(_READ, NETWORKING, "locations networkcontexts subnets", "if the network is ready", When.NETWORKING),
        _may(f"{_READ} create patch", NETWORKING, "networkbindings", "a network for each interface", When.NETWORKING),
        _may(f"{_READ} create", NETWORKING, "subnetclaims", "addresses in it", When.NETWORKING),
        # Instead of the network operator
        _may("create", NETWORKING, "locations", "the cities that the cell serves", When.LOCATIONS),
        _may(f"{_READ} create patch delete", NETWORKING, "networks", "what bindings name; its finalizer", When.NETWORK),
        _may(_OWN, NETWORKING, "networks/finalizers", "a network owns its contexts", When.NETWORK),
        _may("create delete", NETWORKING, "networkcontexts", "a network at the location of the cell", When.NETWORK),
        _may(_OWN, NETWORKING, "networkcontexts/finalizers", "a context owns its subnets", When.NETWORK),
        _may("create", NETWORKING, "subnets", "ranges of addresses for instances", When.NETWORK),
        _may("update", NETWORKING, "networkbindings/status networkcontexts/status", "they are ready", When.NETWORK),
        _may("update", NETWORKING, "subnetclaims/status subnets/status", "what was given", When.NETWORK),
        _may(f"{_READ} create patch delete", CORE, "pods", "what an instance runs in", When.PODS),
        _may(f"{_READ} create patch delete", "networking.k8s.io", "networkpolicies", "who reaches a pod", When.PODS),
        _may(_OWN, COMPUTE, "instances/finalizers", "an instance owns its pod", When.PODS),
    ),
    (Who.CELL, On.HUB): (
        _may(_READ, CORE, "namespaces", "which project a copy belongs to"),
        _may(_READ, COMPUTE, "workloaddeployments", "if a copy is still wanted"),
        _may(_OWN, COMPUTE, "workloaddeployments/finalizers", "a deployment owns the copies"),
        _may(f"{_READ} create patch delete", COMPUTE, "instances", "a copy of each of its own"),
        _may("update", COMPUTE, "instances/status", "how it runs"),
        _WORKS,
        _NAME_LEASE,
    ),
    (Who.CELL, On.PROJECT): (
        _may(f"{_READ} create delete", QUOTA, "resourceclaims", "one an instance"),
    ),
    (Who.USER, On.PROJECT): (
        _may(f"{_READ} create update patch delete", COMPUTE, "workloads", "what they ask for"),
        _may(_READ, COMPUTE, "workloaddeployments", "how it goes in a city"),
        _may("update patch", COMPUTE, "workloaddeployments", "a restart in a city, by older means", When.CITY_RESTART),
        _may(_READ, COMPUTE, "instances", "what runs for them"),
        _may("get create update delete", CORE, "configmaps", "the revisions of their workloads"),
        _may(_READ, CORE, "events", "what happened to their instances"),
        _may("get create", NETWORKING, "networks", "what their workloads are connected to"),
        _may(_READ, NETWORKING, "locationbindings locations", "which cities they may choose"),
        _may(_READ, QUOTA, "allowancebuckets resourceregistrations resourceclaims", "what is left of their quota"),
        _may(f"{_READ} create", SERVICES, "serviceentitlements", "if they have compute; asking for it"),
    ),
}  # fmt: skip
