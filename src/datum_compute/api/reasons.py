"""Reasons for the state of an object, and who can act on them. Entry points: `REASONS`, `REPAIRS`, ranks, `explain`.

A reason replaces another only if its rank is strictly higher. Rank 0 never replaces the general reason.
"""

from datetime import timedelta
from enum import Enum

from msgspec import Struct

# Instance: Programmed, Available, Ready
PENDING = "Pending"
PENDING_PROGRAMMING = "PendingProgramming"
PROGRAMMING_IN_PROGRESS = "ProgrammingInProgress"
PROGRAMMED = "Programmed"
PENDING_QUOTA = "PendingQuota"
AVAILABLE = "Available"
STARTING = "Starting"
STOPPING = "Stopping"
STOPPED = "Stopped"
FAILED = "Failed"
PROVISIONING = "Provisioning"
IMAGE_UNAVAILABLE = "ImageUnavailable"
INSTANCE_CRASHING = "InstanceCrashing"
CONFIGURATION_ERROR = "ConfigurationError"
SCHEDULING_GATES_PRESENT = "SchedulingGatesPresent"
NETWORK_FAILED_TO_CREATE = "NetworkFailedToCreate"

# Instance: QuotaGranted
PENDING_EVALUATION = "PendingEvaluation"
QUOTA_AVAILABLE = "QuotaAvailable"
QUOTA_EXCEEDED = "QuotaExceeded"  # also WorkloadDeployment: ReplicasReady
VALIDATION_FAILED = "ValidationFailed"
QUOTA_NO_BUDGET = "QuotaNoBudget"
QUOTA_DISABLED = "QuotaDisabled"
QUOTA_BACKEND_UNAVAILABLE = "QuotaBackendUnavailable"
QUOTA_PROJECT_NOT_FOUND = "QuotaProjectNotFound"
QUOTA_NAMESPACE_NOT_FOUND = "QuotaNamespaceNotFound"
QUOTA_MISCONFIGURED = "QuotaMisconfigured"
QUOTA_PROJECT_ID_UNRESOLVABLE = "QuotaProjectIDUnresolvable"
PROJECT_SUSPENDED = "ProjectSuspended"
QUOTA_CLAIM_ORPHANED = "QuotaClaimOrphaned"  # event only
QUOTA_CLAIM_ABANDONED = "QuotaClaimAbandoned"  # event only

# Instance: Federated
LABELS_MISSING = "LabelsMissing"
HUB_REFUSED = "HubRefused"  # also an event on the deployment of a deleted Instance

# WorkloadDeployment: ReplicasReady, Available
REPLICAS_AVAILABLE = "ReplicasAvailable"
STABLE_INSTANCE_FOUND = "StableInstanceFound"
NO_MATCHING_LOCATION = "NoMatchingLocation"
NETWORK_PROVISIONING = "NetworkProvisioning"
QUOTA_NOT_GRANTED = "QuotaNotGranted"
INSTANCES_PROVISIONING = "InstancesProvisioning"
SCALED_TO_ZERO = "ScaledToZero"

# Workload and its placements: Available
AVAILABLE_DEPLOYMENT_FOUND = "AvailableDeploymentFound"
NO_AVAILABLE_DEPLOYMENTS = "NoAvailableDeployments"
AVAILABLE_PLACEMENT_FOUND = "AvailablePlacementFound"
NO_AVAILABLE_PLACEMENTS = "NoAvailablePlacements"
NETWORK_NOT_FOUND = "NetworkNotFound"
DEPLOYMENT_NAME_TAKEN = "DeploymentNameTaken"

# What could not be created. WorkloadDeployment: Available, ReplicasReady, Federated; Workload: Available, Placed
SPEC_REFUSED = "SpecRefused"
WRITE_FORBIDDEN = "WriteForbidden"
INSTANCE_NAME_TAKEN = "InstanceNameTaken"
FEDERATION_FAILED = "FederationFailed"
HUB_NAMESPACE_TAKEN = "HubNamespaceTaken"

# Normal events only, on Workloads and Instances
CREATED = "Created"
SCALED = "Scaled"
ROLLED_OUT = "RolledOut"
STARTED = "Started"

# Events only, on Instances and WorkloadDeployments
STRAY_INSTANCE = "StrayInstance"
HELD_BY_FORMER_SETUP = "HeldByFormerSetup"
WITHDRAWN = "Withdrawn"
HELD = "Held"

# Events only, on namespace kube-system of a cell
CELL_NAME_TAKEN = "CellNameTaken"
CELL_NAME_NOT_HELD = "CellNameNotHeld"

# Events only, on Clusters of the hub
CITY_SERVED_ELSEWHERE = "CityServedElsewhere"

# Event only, on any object
WRITES_DAMPED = "WritesDamped"

# Workload and WorkloadDeployment: Progressing
ROLLOUT_PAUSED = "RolloutPaused"

# Only in answers: conclusions from the state of several objects, never written to any of them
ACCESS_PENDING = "AccessPending"
NOT_READABLE = "NotReadable"
UNANSWERED = "Unanswered"
LEASE_STALE = "LeaseStale"
ADMISSION_UNAVAILABLE = "AdmissionUnavailable"
NAMESPACE_TERMINATING = "NamespaceTerminating"
POLICY_MISSING = "PolicyMissing"
POLICY_EDITED = "PolicyEdited"
SITE_AWAY = "SiteAway"
BINDING_HELD = "BindingHeld"
NOT_SCHEDULED = "NotScheduled"
NOT_APPLIED = "NotApplied"
ON_ITS_WAY = "OnItsWay"
STATUS_NOT_RETURNED = "StatusNotReturned"
PROJECTION_MISSING = "ProjectionMissing"
HELD_BY_FINALIZER = "HeldByFinalizer"
BEING_REMOVED = "BeingRemoved"
CLOCK_AHEAD = "ClockAhead"


WARNINGS = frozenset({
    QUOTA_NO_BUDGET, QUOTA_PROJECT_ID_UNRESOLVABLE, QUOTA_BACKEND_UNAVAILABLE, QUOTA_NAMESPACE_NOT_FOUND,
    QUOTA_PROJECT_NOT_FOUND, QUOTA_MISCONFIGURED, QUOTA_CLAIM_ORPHANED, QUOTA_CLAIM_ABANDONED,
    PROJECT_SUSPENDED,
    IMAGE_UNAVAILABLE, INSTANCE_CRASHING, CONFIGURATION_ERROR, NETWORK_FAILED_TO_CREATE,
})  # fmt: skip
"""Reasons of an Instance that are reported as a Warning event when they appear."""

OBSTACLES = frozenset({
    SPEC_REFUSED, WRITE_FORBIDDEN, INSTANCE_NAME_TAKEN, DEPLOYMENT_NAME_TAKEN, FEDERATION_FAILED, HUB_NAMESPACE_TAKEN,
    HELD,
})  # fmt: skip
"""Reasons why something that a workload requests could not be created; each comes with a Warning event."""


class Acts(Enum):
    """Who can act on a reason."""

    NOBODY = "nobody"  # nothing is wrong
    YOU = "you"
    ADMIN = "admin"  # whoever gives access, rights and quota in the user's organization
    PLATFORM = "platform"  # whoever runs the platform; no change to the workload helps
    WAIT = "wait"  # it resolves by itself
    POINTER = "pointer"  # another condition has the cause
    # Not in the table:
    STALLED = "stalled"  # a wait that takes longer than is normal
    UNKNOWN = "unknown"  # the reason is not in the table


class Reason(Struct, frozen=True):
    name: str
    sentence: str
    instance: int = 0  # rank on Ready of an Instance
    deployment: int = 0  # rank on Available of a WorkloadDeployment
    workload: int = 0  # rank on Available of a Workload
    acts: Acts = Acts.NOBODY
    todo: str = ""  # what the user can do
    normal: timedelta | None = None  # how long the wait normally takes at most
    also_points: bool = False  # a wait whose cause may be in another condition
    is_conclusion: bool = False  # found only in answers, never in an object

    @property
    def is_pointer(self) -> bool:
        return self.acts is Acts.POINTER or self.also_points


def _minutes(minutes: int) -> timedelta:
    return timedelta(minutes=minutes)


_YOU, _ADMIN, _PLATFORM, _WAIT, _POINTER = Acts.YOU, Acts.ADMIN, Acts.PLATFORM, Acts.WAIT, Acts.POINTER

REASONS = (
    Reason(PENDING, "No controller has reported yet.", acts=_WAIT, normal=_minutes(10)),
    Reason(
        PENDING_PROGRAMMING, "The site has not started setting up the instance.", acts=_WAIT, normal=_minutes(10)
    ),
    Reason(PROGRAMMING_IN_PROGRESS, "The site is setting up the instance.", acts=_WAIT, normal=_minutes(30)),
    Reason(PROGRAMMED, "The site has set up the instance."),
    Reason(
        PENDING_QUOTA, "Quota was denied, so the instance may not run.", 3, 3, 3,
        acts=_WAIT, normal=_minutes(10), also_points=True,
    ),
    Reason(AVAILABLE, "The instance is serving."),
    Reason(STARTING, "The instance is starting.", acts=_WAIT, normal=_minutes(10)),
    Reason(
        STOPPING, "The instance is stopping.",
        deployment=1, workload=1, acts=_WAIT, normal=_minutes(10),
    ),
    Reason(
        STOPPED, "The instance has stopped.",
        acts=_YOU, todo="Restart the workload, or deploy an image whose process keeps running.",
    ),
    Reason(
        FAILED, "The instance ended with an error.",
        acts=_YOU, todo="Find out why the process ended, and deploy an image or configuration that keeps running.",
    ),
    Reason(PROVISIONING, "The runtime of the instance is being set up.", 1, acts=_WAIT, normal=_minutes(30)),
    Reason(
        IMAGE_UNAVAILABLE, "The image cannot be pulled.", 5, 5, 5,
        acts=_YOU, todo="Check the image's name and tag, and that its registry lets the site pull it.",
    ),
    Reason(
        INSTANCE_CRASHING, "The instance's process keeps exiting.", 5, 5, 5,
        acts=_YOU, todo="Find out why the process exits, and deploy an image or configuration that keeps running.",
    ),
    Reason(
        CONFIGURATION_ERROR, "The runtime refused the configuration of the instance.", 5, 5, 5,
        acts=_YOU, todo="Check the environment, volumes and references of the containers.",
    ),
    Reason(
        SCHEDULING_GATES_PRESENT, "The instance starts when all its scheduling gates are removed.",
        acts=_WAIT, normal=_minutes(10), also_points=True,
    ),
    Reason(
        NETWORK_FAILED_TO_CREATE, "The network of the instance could not be created.", 7, 7, 7, acts=_PLATFORM
    ),
    Reason(PENDING_EVALUATION, "The quota claim has not been evaluated yet.", acts=_WAIT, normal=_minutes(5)),
    Reason(QUOTA_AVAILABLE, "Quota was granted."),
    Reason(
        QUOTA_EXCEEDED, "The project has no quota left for the instance.",
        acts=_YOU, todo="Run fewer or smaller instances, or ask for more quota.",
    ),
    Reason(
        VALIDATION_FAILED, "The quota claim was rejected as invalid.",
        acts=_YOU, todo="Check the instance type and the resources that the workload requests.",
    ),
    Reason(
        QUOTA_NO_BUDGET, "The quota claim is waiting because the project has no allowance for it.", acts=_PLATFORM
    ),
    Reason(QUOTA_DISABLED, "Quota is not enforced here."),
    Reason(QUOTA_BACKEND_UNAVAILABLE, "The quota system cannot be reached.", acts=_PLATFORM),
    Reason(QUOTA_PROJECT_NOT_FOUND, "The quota system does not know the project.", acts=_PLATFORM),
    Reason(
        QUOTA_NAMESPACE_NOT_FOUND, "The namespace of the quota claim does not exist in the project.", acts=_PLATFORM
    ),
    Reason(QUOTA_MISCONFIGURED, "The quota system did not accept the claim.", acts=_PLATFORM),
    Reason(
        QUOTA_PROJECT_ID_UNRESOLVABLE, "The site cannot determine the project of the instance.", acts=_PLATFORM
    ),
    Reason(PROJECT_SUSPENDED, "The project is suspended, so nothing new can start in it.", acts=_PLATFORM),
    Reason(QUOTA_CLAIM_ORPHANED, "The quota claim of a deleted instance could not be located.", acts=_PLATFORM),
    Reason(
        QUOTA_CLAIM_ABANDONED, "The quota claim of a deleted instance could not be removed yet.", acts=_PLATFORM
    ),
    Reason(LABELS_MISSING, "The instance lacks the labels that say where it belongs.", acts=_PLATFORM),
    Reason(HUB_REFUSED, "The platform refused the site's report about the instance.", acts=_PLATFORM),
    Reason(REPLICAS_AVAILABLE, "No instance is blocked by quota."),
    Reason(STABLE_INSTANCE_FOUND, "At least one instance is ready."),
    Reason(NO_MATCHING_LOCATION, "No location serves the city.", deployment=2, workload=2, acts=_PLATFORM),
    Reason(
        NETWORK_PROVISIONING, "The network is being set up.",
        deployment=2, workload=2, acts=_WAIT, normal=_minutes(15),
    ),
    Reason(QUOTA_NOT_GRANTED, "Instances are waiting for quota.", deployment=3, workload=3, acts=_POINTER),
    Reason(
        INSTANCES_PROVISIONING, "Instances are being set up.",
        deployment=1, workload=1, acts=_WAIT, normal=_minutes(45), also_points=True,
    ),
    Reason(SCALED_TO_ZERO, "No instances are requested.", deployment=1, workload=1),
    Reason(AVAILABLE_DEPLOYMENT_FOUND, "At least one deployment is available."),
    Reason(NO_AVAILABLE_DEPLOYMENTS, "No deployment of the placement is available.", acts=_POINTER),
    Reason(AVAILABLE_PLACEMENT_FOUND, "At least one placement is available."),
    Reason(NO_AVAILABLE_PLACEMENTS, "No placement of the workload is available.", acts=_POINTER),
    Reason(
        NETWORK_NOT_FOUND, "A network that the workload names does not exist.",
        deployment=6, workload=6, acts=_YOU, todo="Create the network, or name one that exists.",
    ),
    Reason(
        DEPLOYMENT_NAME_TAKEN, "Another workload already has a deployment of the same name.",
        workload=6, acts=_YOU, todo="Give one of the two workloads, or its placement, another name.",
    ),
    Reason(
        SPEC_REFUSED, "A server rejected part of the workload as invalid.",
        deployment=6, workload=6, acts=_YOU, todo="Change what the message names, and deploy again.",
    ),
    Reason(
        WRITE_FORBIDDEN, "A server does not permit a write that the workload needs.",
        deployment=6, workload=6, acts=_PLATFORM,
    ),
    Reason(
        INSTANCE_NAME_TAKEN, "Something else at the site already has the name of the next instance.",
        deployment=6, workload=6, acts=_PLATFORM,
    ),
    Reason(
        STRAY_INSTANCE, "The instance has no ordinal in its deployment, so it is removed.", acts=_PLATFORM
    ),
    Reason(
        HELD_BY_FORMER_SETUP, "The site's former setup may still hold it, so the site keeps it.", acts=_PLATFORM
    ),
    Reason(FEDERATION_FAILED, "The deployment could not be sent to its site.", workload=6, acts=_PLATFORM),
    Reason(CITY_SERVED_ELSEWHERE, "Another site serves the city, so this one stands by.", acts=_PLATFORM),
    Reason(CELL_NAME_TAKEN, "Another cluster holds the site's configured name.", acts=_PLATFORM),
    Reason(CELL_NAME_NOT_HELD, "The site could not take its configured name.", acts=_PLATFORM),
    Reason(
        HUB_NAMESPACE_TAKEN, "Another project has the namespace through which deployments reach their sites.",
        workload=6, acts=_PLATFORM,
    ),
    Reason(CREATED, "The object was created."),
    Reason(SCALED, "The number of instances in a city was changed."),
    Reason(ROLLED_OUT, "All instances run the newest template."),
    Reason(STARTED, "The instance runs and is ready."),
    Reason(WITHDRAWN, "The deployment was withdrawn, so the site removes it."),
    Reason(
        HELD, "Nothing shows that it was withdrawn, so it keeps running until an operator releases it.",
        acts=_PLATFORM,
    ),
    Reason(
        WRITES_DAMPED, "Somebody else keeps undoing a change, so it is made only once per minute.", acts=_PLATFORM
    ),
    Reason(
        ROLLOUT_PAUSED, "The rollout is paused.",
        acts=_YOU, todo="Resume the rollout to replace the remaining instances.",
    ),
    Reason(
        ACCESS_PENDING, "The project does not have access to compute yet.",
        acts=_ADMIN, todo="Ask whoever approves services in your organization.", is_conclusion=True,
    ),
    Reason(
        NOT_READABLE, "You are not allowed to read what would show the cause.",
        acts=_ADMIN, todo="Ask whoever gives rights in your organization.", is_conclusion=True,
    ),
    Reason(UNANSWERED, "Nobody has acted on the newest request.", acts=_PLATFORM, is_conclusion=True),
    Reason(
        LEASE_STALE, "The manager that holds the lease does not work, and no other may.",
        acts=_PLATFORM, is_conclusion=True,
    ),
    Reason(
        ADMISSION_UNAVAILABLE, "The check of new workloads does not answer, so nothing can be changed.",
        acts=_PLATFORM, is_conclusion=True,
    ),
    Reason(
        NAMESPACE_TERMINATING, "The place through which deployments reach their sites is being removed.",
        acts=_PLATFORM, is_conclusion=True,
    ),
    Reason(POLICY_MISSING, "Nothing routes the city to its site.", acts=_PLATFORM, is_conclusion=True),
    Reason(POLICY_EDITED, "The route of the city was edited by hand.", acts=_PLATFORM, is_conclusion=True),
    Reason(SITE_AWAY, "The site does not answer; what runs there goes on.", acts=_PLATFORM, is_conclusion=True),
    Reason(
        BINDING_HELD, "An earlier deployment of the same name holds the route.", acts=_PLATFORM, is_conclusion=True
    ),
    Reason(NOT_SCHEDULED, "No site was chosen for the deployment.", acts=_PLATFORM, is_conclusion=True),
    Reason(NOT_APPLIED, "The site refused the deployment.", acts=_PLATFORM, is_conclusion=True),
    Reason(
        ON_ITS_WAY, "The request is on its way to the site.", acts=_WAIT, normal=_minutes(2), is_conclusion=True
    ),
    Reason(
        STATUS_NOT_RETURNED, "What the site reported has not come back yet.",
        acts=_WAIT, normal=_minutes(1), is_conclusion=True,
    ),
    Reason(
        PROJECTION_MISSING, "Instances run that the project does not show.", acts=_PLATFORM, is_conclusion=True
    ),
    Reason(
        HELD_BY_FINALIZER, "Somebody asked to keep the object until something else is done.",
        acts=_YOU, todo="Do what it waits for, or remove the mark that holds it.", is_conclusion=True,
    ),
    Reason(BEING_REMOVED, "It is being removed.", acts=_WAIT, normal=_minutes(2), is_conclusion=True),
    Reason(CLOCK_AHEAD, "A clock is ahead, so ages from it are left out.", is_conclusion=True),
    # Never set here, but accepted: older names of two reasons, and reasons of sites with a newer version.
    Reason(
        "ProvisioningNetwork", "The network is being set up.",
        deployment=2, workload=2, acts=_WAIT, normal=_minutes(15),
    ),
    Reason(
        "ProvisioningInstances", "Instances are being set up.",
        deployment=1, workload=1, acts=_WAIT, normal=_minutes(45), also_points=True,
    ),
    Reason("Unknown", "The site does not know the state of the instance.", acts=_WAIT, normal=_minutes(10)),
    Reason("Suspended", "The project is suspended.", acts=_PLATFORM),
    Reason(
        "SourceNotFound", "A ConfigMap or Secret that the workload names does not exist.", 5, 5, 5,
        acts=_YOU, todo="Create the ConfigMap or Secret, or remove the reference from the workload.",
    ),
    Reason(
        "SourceTooLarge", "A ConfigMap or Secret that the workload names is too large.", 5, 5, 5,
        acts=_YOU, todo="Make the ConfigMap or Secret smaller, or split it.",
    ),
    Reason(
        "SourceUnauthorized", "The workload may not read a ConfigMap or Secret that it names.", 5, 5, 5,
        acts=_PLATFORM,
    ),
    Reason(
        "ReferencedDataNotReady", "Referenced data has not reached the site.",
        deployment=4, workload=4, acts=_POINTER,
    ),
    Reason(
        "AwaitingPropagation", "Referenced data is on its way to the site.", 4, 4, 4,
        acts=_WAIT, normal=_minutes(10),
    ),
    Reason("Resolving", "Referenced data is being looked up.", 4, 4, 4, acts=_WAIT, normal=_minutes(5)),
    Reason(
        "RuntimeClassNotServed", "No site serves the runtime class.",
        workload=7, acts=_YOU, todo="Choose a runtime class that a site of the city serves.",
    ),
    Reason("LocationMismatch", "The site serves another location.", deployment=8, acts=_PLATFORM),
    Reason("CityCodeMismatch", "The site serves another city.", deployment=8, acts=_PLATFORM),
    Reason(
        "AmbiguousServingLocation", "The site cannot determine which location it serves.", deployment=8, acts=_PLATFORM
    ),
)  # fmt: skip

REPAIRS = {
    NETWORK_FAILED_TO_CREATE: "The message has the error of the network operator. Correct what it names in the cell.",
    QUOTA_NO_BUDGET: "Grant the project what the message names, in a ResourceGrant.",
    QUOTA_BACKEND_UNAVAILABLE: "See alert ComputeQuotaSilent. `compute-manager check` in the cell says what is wrong.",
    QUOTA_PROJECT_NOT_FOUND: "Add the project to the quota credentials of the cell, or find out why its plane is gone.",
    QUOTA_NAMESPACE_NOT_FOUND: "Create the namespace in the project again, or release what came from it.",
    QUOTA_MISCONFIGURED: "The message has the refusal. Compare the cell's role and the registrations with it.",
    QUOTA_PROJECT_ID_UNRESOLVABLE: "Restore the labels of the namespace on the hub, which name its project.",
    PROJECT_SUSPENDED: "Resume the project, or tell its owners why it is suspended.",
    QUOTA_CLAIM_ORPHANED: "Look in the project for a claim with the instance's name, and delete it.",
    QUOTA_CLAIM_ABANDONED: "Let the cell delete claims in the project again. It retries every ten minutes.",
    LABELS_MISSING: "Restore the labels of the namespace on the hub, and find out who removed them.",
    HUB_REFUSED: "The message has the refusal. Compare the cell's account, role and policy on the hub with it.",
    NO_MATCHING_LOCATION: "Label a ready Cluster with the city; with networking, publish a Location in the cell.",
    WRITE_FORBIDDEN: "Bind the role that is missing; `compute-manager check` names it.",
    INSTANCE_NAME_TAKEN: "Find out what has the name in the cell, and remove it.",
    STRAY_INSTANCE: "Nothing, unless it happens again: then find out who else creates Instances in the cell.",
    HELD_BY_FORMER_SETUP: "Bind the role of the former provider or built-in again until it has cleaned up.",
    FEDERATION_FAILED: "The message has the hub's answer. If there is none, see alert ComputePlaneAway.",
    CITY_SERVED_ELSEWHERE: "Nothing, if this cluster is a standby. Otherwise label it with another city.",
    CELL_NAME_TAKEN: "Give one of the two clusters another `clusterName`.",
    CELL_NAME_NOT_HELD: "See alert ComputeCellNameNotHeld.",
    HUB_NAMESPACE_TAKEN: "Find out which installation labelled the namespace on the hub, and remove it if it is empty.",
    HELD: "Decide with the owners of the project, then release it; see alert ComputeLeftoversHeld.",
    WRITES_DAMPED: "Find out who else writes the object; see alert ComputeWritesDamped.",
    UNANSWERED: "See whether compute-manager runs where the answer is missing, and what it logs.",
    LEASE_STALE: "Start the manager that holds the lease, or delete the lease.",
    ADMISSION_UNAVAILABLE: "See whether the webhook's Service has a ready replica; see alert ComputeWebhookFailing.",
    NAMESPACE_TERMINATING: "Find out who deleted the namespace on the hub, and what its finalizer waits for.",
    POLICY_MISSING: "See why management does not write the PropagationPolicy of the city.",
    POLICY_EDITED: "Undo the change to the PropagationPolicy of the city.",
    SITE_AWAY: "See whether the cluster runs, and whether Karmada reaches it.",
    BINDING_HELD: "Delete the ResourceBinding whose owner is gone, if management does not.",
    NOT_SCHEDULED: "The message has Karmada's answer. Compare the Cluster's labels and taints with the policy.",
    NOT_APPLIED: "The message has the site's answer. Compare the definitions in the cell with those on the hub.",
    PROJECTION_MISSING: "See what the projector in management and the write-back in the cell log.",
    "Suspended": "Resume the project, or tell its owners why it is suspended.",
    "SourceUnauthorized": "Let the project read the ConfigMap or Secret that the message names.",
    "LocationMismatch": "Correct the Location of the cell, or the city of its Cluster.",
    "CityCodeMismatch": "Correct the Location of the cell, or the city of its Cluster.",
    "AmbiguousServingLocation": "Leave one Location in the cell.",
}
"""What whoever runs the platform can do about a reason that users cannot act on."""

_BY_NAME = {reason.name: reason for reason in REASONS}
_UNKNOWN = Reason("", "", acts=Acts.UNKNOWN)


def instance_rank(reason: str) -> int:
    return _BY_NAME.get(reason, _UNKNOWN).instance


def deployment_rank(reason: str) -> int:
    return _BY_NAME.get(reason, _UNKNOWN).deployment


def workload_rank(reason: str) -> int:
    return _BY_NAME.get(reason, _UNKNOWN).workload


def todo(reason: str) -> str:
    """What the user can do about a reason; empty if nothing."""
    return _BY_NAME.get(reason, _UNKNOWN).todo


def normal_time(reason: str) -> timedelta | None:
    """How long a wait normally takes at most; None for reasons that nobody can wait out."""
    return _BY_NAME.get(reason, _UNKNOWN).normal


class Explanation(Struct, frozen=True):
    """What a reason means for a reader."""

    acts: Acts
    sentence: str  # what the reason means; empty if it is not known, and to be shown as received
    line: str  # what to do or expect; empty if nothing
    is_pointer: bool  # whether another condition has the cause


def explain(reason: str, age: timedelta | None = None) -> Explanation:
    """`age` is how long the reason has applied; None if unknown, as for a condition dated 1970.

    A wait that takes longer than is normal is attributed to nobody, because no cause was reported.
    """
    row = _BY_NAME.get(reason, _UNKNOWN)
    acts, line = row.acts, _LINES.get(row.acts, row.todo)
    if row.normal is not None:
        line = f"normal; expected within {span(row.normal)}"
        if age is not None and age >= row.normal:
            acts = Acts.STALLED
            line = (
                f"has taken longer than expected ({span(age)}, normally under {span(row.normal)}); "
                "no cause was reported"
            )
    return Explanation(acts, row.sentence, line, row.is_pointer)


_LINES = {Acts.PLATFORM: "this is Datum's to fix; no change to the workload helps"}


def span(time: timedelta) -> str:
    """A duration in the largest suitable unit: minutes, hours or days."""
    minutes = int(time.total_seconds()) // 60
    if minutes < 120:
        return f"{minutes}m"
    return f"{minutes // 60}h" if minutes < 48 * 60 else f"{minutes // (24 * 60)}d"
