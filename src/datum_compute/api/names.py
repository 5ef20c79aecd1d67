"""Names that controllers derive and parse. Entry points: `deployment_name`, `instance_name`, `ordinal_of`."""

import re
from hashlib import sha256

_LONGEST = 57  # leaves room for `-<ordinal>` and `-net-<index>` in the 63 characters of a label value
_LONGEST_OF_ALL = 253
_CLAIM_PREFIX = "instance-"
_VALID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ORDINAL = re.compile(r".*-(0|[1-9][0-9]*)")


def deployment_name(workload: str, workload_uid: str, placement: str, city: str) -> str:
    """`<workload>-<placement>-<city>` if that is valid and short enough, otherwise a bounded form.

    The bounded form is only for new deployments: an existing one keeps its name.
    """
    full = f"{workload}-{placement}-{_lower(city)}"
    if len(full) <= _LONGEST and _VALID.fullmatch(full):
        return full
    digest = sha256("\0".join((workload_uid, placement, city.lower())).encode()).hexdigest()
    return f"{workload[:30].rstrip('-.')}-{digest[:10]}"


def instance_name(deployment: str, ordinal: int) -> str:
    return f"{deployment}-{ordinal}"


def ordinal_of(name: str) -> int | None:
    """The ordinal at the end of an Instance's name; None if `instance_name` cannot have produced it."""
    match = _ORDINAL.fullmatch(name)
    return int(match[1]) if match else None


def deployment_of(instance: str) -> str:
    """The deployment that an Instance of this name belongs to; empty if `instance_name` cannot have produced it."""
    return instance.rpartition("-")[0] if ordinal_of(instance) is not None else ""


def is_name(text: str) -> bool:
    """Whether the text is a valid object name."""
    return len(text) <= _LONGEST_OF_ALL and _VALID.fullmatch(text) is not None


def policy_name(city: str) -> str:
    return f"city-{_lower(city)}"


def hub_namespace(namespace_uid: str) -> str:
    """The namespace on the hub and in cells that stands for the project namespace with this uid."""
    return f"ns-{namespace_uid}"


def claim_name(instance: str) -> str:
    return f"{_CLAIM_PREFIX}{instance}"


def claimed_instance(claim: str) -> str:
    """The Instance that a claim of this name is for; empty if `claim_name` cannot have produced it."""
    return claim.removeprefix(_CLAIM_PREFIX) if claim.startswith(_CLAIM_PREFIX) else ""


def binding_name(deployment: str, index: int) -> str:
    """The name of the NetworkBinding for an interface of a deployment."""
    return f"{deployment}-net-{index}"


def subnet_claim_name(network_context: str) -> str:
    """The name of the SubnetClaim that all instances of a network context share."""
    return f"{network_context}-0"


def _lower(city: str) -> str:
    return city.lower().replace(" ", "-")
