"""The PropagationPolicy that sends the deployments of a city to its cluster. Entry points: `city_policy`, `routes`."""

from functools import lru_cache

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import PROPAGATION_POLICY, PropagationPolicy
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.names import policy_name
from datum_compute.kube.meta import Json, as_dict, decode, encode

# With its failover on, Karmada evicts from a cluster that is away for a while, and empties it on its return. A site
# goes on by itself, so both taints are tolerated for ever. Those that only keep new deployments from a site that is
# away are not: these wait for it on the hub just as well.
_AWAY = ("cluster.karmada.io/not-ready", "cluster.karmada.io/unreachable")
_EVICTS = "NoExecute"


def city_policy(namespace: str, city: str) -> Json:
    """The value keeps the user's case, because it must equal the cluster's label to the byte."""
    if not city:
        raise ValueError("a policy needs a city code")
    match = {"labelSelector": {"matchLabels": {TOPOLOGY_CITY: city}}}
    kind = {"apiVersion": WORKLOAD_DEPLOYMENT.api_version, "kind": WORKLOAD_DEPLOYMENT.name}
    tolerations = [{"key": key, "operator": "Exists", "effect": _EVICTS} for key in _AWAY]
    placement = {"clusterAffinity": match, "clusterTolerations": tolerations}
    spec = {"resourceSelectors": [kind | match], "placement": placement}
    return PROPAGATION_POLICY.body(policy_name(city), namespace) | {"spec": spec}


def routes(policy: PropagationPolicy, city: str) -> bool:
    """Whether a policy does exactly what `city_policy` asks for; what else the server fills in is its own affair."""
    wanted = _wanted(city)
    return (
        _selected(policy) == _selected(wanted)
        and policy.spec.placement.cluster_affinity == wanted.spec.placement.cluster_affinity
        and not _narrowed(policy)
        and _tolerates(policy, wanted)
    )


def routed_city(policy: PropagationPolicy) -> str:
    """The city whose deployments a policy of ours sends on; empty for a policy that is not ours."""
    for selector in policy.spec.resource_selectors:
        city = selector.label_selector.match_labels.get(TOPOLOGY_CITY, "")
        if selector.kind == WORKLOAD_DEPLOYMENT.name and city and policy.name == policy_name(city):
            return city
    return ""


@lru_cache  # every pass of every deployment compares with one of these
def _wanted(city: str) -> PropagationPolicy:
    return decode(encode(city_policy("", city)), PropagationPolicy)


def _selected(policy: PropagationPolicy) -> list[tuple[object, ...]]:
    return [
        (selector.api_version, selector.kind, selector.name, selector.label_selector)
        for selector in policy.spec.resource_selectors
    ]


def _tolerates(policy: PropagationPolicy, wanted: PropagationPolicy) -> bool:
    """Whether a site that is away keeps what it has. Of several tolerations of a taint Karmada takes the first."""
    tolerations = policy.spec.placement.cluster_tolerations
    of_evictions = [one for one in tolerations if one.key in ("", *_AWAY) and one.effect in ("", _EVICTS)]
    is_limited = any(toleration.toleration_seconds is not None for toleration in of_evictions)
    return not is_limited and set(tolerations) >= set(wanted.spec.placement.cluster_tolerations)


def _narrowed(policy: PropagationPolicy) -> bool:
    """Whether clusters are also chosen by name or field, which no server fills in by itself."""
    affinity = as_dict(policy.spec_json)["placement"]["clusterAffinity"]
    return any(value for key, value in affinity.items() if key != "labelSelector")
