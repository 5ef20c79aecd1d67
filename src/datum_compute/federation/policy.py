"""The PropagationPolicy that sends the deployments of a city to its cluster. Entry points: `city_policy`, `routes`."""

from functools import lru_cache

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import PROPAGATION_POLICY, PropagationPolicy
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.names import policy_name
from datum_compute.kube.meta import Json, as_dict, decode, encode

# With failover enabled, Karmada evicts from a cluster that is unreachable for a while, and empties it on its return. A
# site keeps running on its own, so both taints are tolerated for ever. Taints that only keep new deployments from an
# unreachable site are not tolerated: such deployments wait on the hub just as well.
_UNREACHABLE = ("cluster.karmada.io/not-ready", "cluster.karmada.io/unreachable")
_EVICTS = "NoExecute"


def city_policy(namespace: str, city: str) -> Json:
    """The city keeps the user's case, because it must equal the cluster's label to the byte."""
    if not city:
        raise ValueError("a policy needs a city code")
    match = {"labelSelector": {"matchLabels": {TOPOLOGY_CITY: city}}}
    kind = {"apiVersion": WORKLOAD_DEPLOYMENT.api_version, "kind": WORKLOAD_DEPLOYMENT.name}
    tolerations = [{"key": key, "operator": "Exists", "effect": _EVICTS} for key in _UNREACHABLE]
    placement = {"clusterAffinity": match, "clusterTolerations": tolerations}
    spec = {"resourceSelectors": [kind | match], "placement": placement}
    return PROPAGATION_POLICY.body(policy_name(city), namespace) | {"spec": spec}


def routes(policy: PropagationPolicy, city: str) -> bool:
    """Whether a policy routes exactly as `city_policy` does; defaults that the server fills in do not matter."""
    wanted = _wanted(city)
    return (
        _selectors(policy) == _selectors(wanted)
        and policy.spec.placement.cluster_affinity == wanted.spec.placement.cluster_affinity
        and not _is_narrowed(policy)
        and _tolerates(policy, wanted)
    )


def routed_city(policy: PropagationPolicy) -> str:
    """The city that a policy of ours routes; empty for a policy that is not ours."""
    for selector in policy.spec.resource_selectors:
        city = selector.label_selector.match_labels.get(TOPOLOGY_CITY, "")
        if selector.kind == WORKLOAD_DEPLOYMENT.name and city and policy.name == policy_name(city):
            return city
    return ""


@lru_cache  # every pass of every deployment compares with it
def _wanted(city: str) -> PropagationPolicy:
    return decode(encode(city_policy("", city)), PropagationPolicy)


def _selectors(policy: PropagationPolicy) -> list[tuple[object, ...]]:
    return [
        (selector.api_version, selector.kind, selector.name, selector.label_selector)
        for selector in policy.spec.resource_selectors
    ]


def _tolerates(policy: PropagationPolicy, wanted: PropagationPolicy) -> bool:
    """Whether an unreachable site keeps what it has. Of several tolerations of a taint, Karmada takes the first."""
    tolerations = policy.spec.placement.cluster_tolerations
    is_limited = any(
        toleration.toleration_seconds is not None
        for toleration in tolerations
        if toleration.key in ("", *_UNREACHABLE) and toleration.effect in ("", _EVICTS)
    )
    return not is_limited and set(tolerations) >= set(wanted.spec.placement.cluster_tolerations)


def _is_narrowed(policy: PropagationPolicy) -> bool:
    """Whether clusters are also selected by name or field, which no server does by default."""
    affinity = as_dict(policy.spec_json)["placement"]["clusterAffinity"]
    return any(value for key, value in affinity.items() if key != "labelSelector")
