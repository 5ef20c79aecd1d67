"""Rules for quota claims that hold whatever is left of the quota. Entry point: `violation`."""

from collections import Counter
from collections.abc import Mapping

from datum_compute.api import GROUP
from datum_compute.api.instance import INSTANCE
from datum_compute.api.quota import KindReference, ResourceClaim, ResourceRegistration

_INSTANCE = KindReference(INSTANCE.name, GROUP)  # named by older registrations, so claims may name it


def violation(claim: ResourceClaim, registered: Mapping[str, ResourceRegistration]) -> str | None:
    """The first violated rule, as a sentence; None if the claim can be decided. `registered` is by resource type."""
    consumer, resource = claim.spec.consumer_ref, claim.spec.resource_ref
    counted = Counter(request.resource_type for request in claim.spec.requests)
    if twice := next((type_ for type_, times in counted.items() if times > 1), None):
        return f"spec.requests names {twice} twice; ask for it once, with the sum."
    if resource is None or not resource.kind or not resource.name:
        return "spec.resourceRef must name the kind and the name of what the claim is for."
    for request in claim.spec.requests:
        registration = registered.get(request.resource_type)
        if registration is None:
            return f"{request.resource_type} is not registered, so nobody can claim it."
        if request.amount <= 0:
            return f"The amount of {request.resource_type} must be greater than 0."
        wanted = registration.spec.consumer_type
        if (consumer.api_group, consumer.kind) != (wanted.api_group, wanted.kind):
            return f"spec.consumerRef must be a {wanted.kind} of {wanted.api_group} to claim {request.resource_type}."
        claiming = (*registration.spec.claiming_resources, _INSTANCE)
        if not any(_is_of(kind, resource.api_group, resource.kind) for kind in claiming):
            return f"spec.resourceRef must be a {claiming[0].kind} to claim {request.resource_type}."
    return None


def _is_of(kind: KindReference, group: str, name: str) -> bool:
    return kind.api_group == group and kind.kind.lower() == name.lower()
