"""Names that controllers derive, and read back. Entry points: `deployment_name`, `instance_name`, `ordinal_of`."""

import re
from hashlib import sha256

_LONGEST = 57  # leaves `-<ordinal>` and `-net-<index>` room in the 63 characters of a label value
_LONGEST_OF_ALL = 253
_CLAIM_PREFIX = "instance-"
_VALID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ORDINAL = re.compile(r".*-(0|[1-9][0-9]*)")


def deployment_name(workload: str, workload_uid: str, placement: str, city: str) -> str:
    """`<workload>-<placement>-<city>` where that is short enough and a name at all, else a bounded form.

    The bounded form is for new deployments: one that exists keeps its name for its lifetime.
    """
    plain = f"{workload}-{placement}-{_lower(city)}"
    if len(plain) <= _LONGEST and _VALID.fullmatch(plain):
        return plain
    digest = sha256("\0".join((workload_uid, placement, city.lower())).encode()).hexdigest()
    return f"{workload[:30].rstrip('-.')}-{digest[:10]}"


def instance_name(deployment: str, ordinal: int) -> str:
    return f"{deployment}-{ordinal}"


def ordinal_of(name: str) -> int | None:
    """The ordinal at the end of an Instance's name; None when `instance_name` cannot have made it."""
    match = _ORDINAL.fullmatch(name)
    return int(match[1]) if match else None


def deployment_of(instance: str) -> str:
    """The deployment whose Instance may be called so; empty when `instance_name` cannot have made it."""
    return instance.rpartition("-")[0] if ordinal_of(instance) is not None else ""


def is_name(text: str) -> bool:
    """Whether an object can be called so at all."""
    return len(text) <= _LONGEST_OF_ALL and _VALID.fullmatch(text) is not None


def policy_name(city: str) -> str:
    return f"city-{_lower(city)}"


def hub_namespace(namespace_uid: str) -> str:
    """The namespace on hub and cells for the project namespace with this uid."""
    return f"ns-{namespace_uid}"


def claim_name(instance: str) -> str:
    return f"{_CLAIM_PREFIX}{instance}"


def claimed_instance(claim: str) -> str:
    """The Instance that a claim of this name is for; empty when `claim_name` cannot have made it."""
    return claim.removeprefix(_CLAIM_PREFIX) if claim.startswith(_CLAIM_PREFIX) else ""


def binding_name(deployment: str, index: int) -> str:
    """The NetworkBinding of a deployment's interface."""
    return f"{deployment}-net-{index}"


def subnet_claim_name(network_context: str) -> str:
    """The claim that all instances of a network context share."""
    return f"{network_context}-0"


def _lower(city: str) -> str:
    return city.lower().replace(" ", "-")
