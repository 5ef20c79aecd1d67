"""Why an object is in the state it is in, and which of several reasons is told. Entry points: `REASONS`, the ranks.

A blocker replaces another only with a strictly higher rank. Rank 0 never replaces the general sentence.
"""

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
QUOTA_CLAIM_ORPHANED = "QuotaClaimOrphaned"  # an event only

# WorkloadDeployment: ReplicasReady, Available
REPLICAS_AVAILABLE = "ReplicasAvailable"
STABLE_INSTANCE_FOUND = "StableInstanceFound"
NO_MATCHING_LOCATION = "NoMatchingLocation"
NETWORK_PROVISIONING = "NetworkProvisioning"
QUOTA_NOT_GRANTED = "QuotaNotGranted"
INSTANCES_PROVISIONING = "InstancesProvisioning"

# Workload and its placements: Available
AVAILABLE_DEPLOYMENT_FOUND = "AvailableDeploymentFound"
NO_AVAILABLE_DEPLOYMENTS = "NoAvailableDeployments"
AVAILABLE_PLACEMENT_FOUND = "AvailablePlacementFound"
NO_AVAILABLE_PLACEMENTS = "NoAvailablePlacements"
NETWORK_NOT_FOUND = "NetworkNotFound"


class Reason(Struct, frozen=True):
    name: str
    sentence: str
    instance: int = 0  # rank on Ready of an Instance
    deployment: int = 0  # rank on Available of a WorkloadDeployment
    workload: int = 0  # rank on Available of a Workload


REASONS = (
    Reason(PENDING, "No controller has reported yet."),
    Reason(PENDING_PROGRAMMING, "The site has not started to set the instance up."),
    Reason(PROGRAMMING_IN_PROGRESS, "The site is setting the instance up."),
    Reason(PROGRAMMED, "The site has set the instance up."),
    Reason(PENDING_QUOTA, "Quota was denied, so the instance may not run.", 3, 3, 3),
    Reason(AVAILABLE, "The instance is serving."),
    Reason(STARTING, "The instance is starting."),
    Reason(STOPPING, "The instance is stopping."),
    Reason(STOPPED, "The instance has stopped."),
    Reason(FAILED, "The instance ended with an error."),
    Reason(PROVISIONING, "The runtime of the instance is being set up.", 1),
    Reason(IMAGE_UNAVAILABLE, "The image cannot be pulled.", 5, 5, 5),
    Reason(INSTANCE_CRASHING, "The process of the instance keeps exiting.", 5, 5, 5),
    Reason(CONFIGURATION_ERROR, "The runtime refused the configuration of the instance.", 5, 5, 5),
    Reason(SCHEDULING_GATES_PRESENT, "The instance waits until all its scheduling gates are removed."),
    Reason(NETWORK_FAILED_TO_CREATE, "The network of the instance could not be created.", 7, 7, 7),
    Reason(PENDING_EVALUATION, "The quota claim waits to be evaluated."),
    Reason(QUOTA_AVAILABLE, "Quota was granted."),
    Reason(QUOTA_EXCEEDED, "The project has no quota left for the instance."),
    Reason(VALIDATION_FAILED, "The quota claim was refused as invalid."),
    Reason(QUOTA_NO_BUDGET, "The quota claim waits, because the project has no allowance for it."),
    Reason(QUOTA_DISABLED, "Quota is not enforced here."),
    Reason(QUOTA_BACKEND_UNAVAILABLE, "The quota system cannot be reached."),
    Reason(QUOTA_PROJECT_NOT_FOUND, "The quota system does not know the project."),
    Reason(QUOTA_NAMESPACE_NOT_FOUND, "The namespace of the quota claim does not exist in the project."),
    Reason(QUOTA_MISCONFIGURED, "The quota system refused to take the claim."),
    Reason(QUOTA_PROJECT_ID_UNRESOLVABLE, "The site cannot tell which project the instance belongs to."),
    Reason(QUOTA_CLAIM_ORPHANED, "The quota claim of a deleted instance could not be located."),
    Reason(REPLICAS_AVAILABLE, "No instance is blocked by quota."),
    Reason(STABLE_INSTANCE_FOUND, "At least one instance is ready."),
    Reason(NO_MATCHING_LOCATION, "No location serves the city.", deployment=2, workload=2),
    Reason(NETWORK_PROVISIONING, "The network is being set up.", deployment=2, workload=2),
    Reason(QUOTA_NOT_GRANTED, "Instances wait for quota.", deployment=3, workload=3),
    Reason(INSTANCES_PROVISIONING, "Instances are being set up.", deployment=1, workload=1),
    Reason(AVAILABLE_DEPLOYMENT_FOUND, "At least one deployment is available."),
    Reason(NO_AVAILABLE_DEPLOYMENTS, "No deployment of the placement is available."),
    Reason(AVAILABLE_PLACEMENT_FOUND, "At least one placement is available."),
    Reason(NO_AVAILABLE_PLACEMENTS, "No placement of the workload is available."),
    Reason(NETWORK_NOT_FOUND, "A network that the workload names does not exist.", deployment=6, workload=6),
    # Never written here, but read: the older names of two reasons, and those of sites that are ahead of us.
    Reason("ProvisioningNetwork", "The network is being set up.", deployment=2, workload=2),
    Reason("ProvisioningInstances", "Instances are being set up.", deployment=1, workload=1),
    Reason("SourceNotFound", "A ConfigMap or Secret that the workload names does not exist.", 5, 5, 5),
    Reason("SourceTooLarge", "A ConfigMap or Secret that the workload names is too large.", 5, 5, 5),
    Reason("SourceUnauthorized", "The workload may not read a ConfigMap or Secret that it names.", 5, 5, 5),
    Reason("ReferencedDataNotReady", "Referenced data has not reached the site.", deployment=4, workload=4),
    Reason("AwaitingPropagation", "Referenced data is on its way to the site.", 4, 4, 4),
    Reason("Resolving", "Referenced data is being looked up.", 4, 4, 4),
    Reason("RuntimeClassNotServed", "No site serves the runtime class.", workload=7),
    Reason("LocationMismatch", "The site serves another location.", deployment=8),
    Reason("CityCodeMismatch", "The site serves another city.", deployment=8),
    Reason("AmbiguousServingLocation", "The site cannot tell which location it serves.", deployment=8),
)

_BY_NAME = {reason.name: reason for reason in REASONS}
_UNKNOWN = Reason("", "")


def instance_rank(reason: str) -> int:
    return _BY_NAME.get(reason, _UNKNOWN).instance


def deployment_rank(reason: str) -> int:
    return _BY_NAME.get(reason, _UNKNOWN).deployment


def workload_rank(reason: str) -> int:
    return _BY_NAME.get(reason, _UNKNOWN).workload
