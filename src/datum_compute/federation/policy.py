"""The PropagationPolicy that sends the deployments of a city to its cluster. Entry points: `city_policy`, `routes`."""

from functools import lru_cache

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import PROPAGATION_POLICY, PropagationPolicy
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.names import policy_name
from datum_compute.kube.meta import Json, decode, encode, plain


def city_policy(namespace: str, city: str) -> Json:
    """The value keeps the user's case, because it must equal the cluster's label to the byte."""
    if not city:
        raise ValueError("a policy needs a city code")
    match = {"labelSelector": {"matchLabels": {TOPOLOGY_CITY: city}}}
    kind = {"apiVersion": WORKLOAD_DEPLOYMENT.api_version, "kind": WORKLOAD_DEPLOYMENT.name}
    spec = {"resourceSelectors": [kind | match], "placement": {"clusterAffinity": match}}
    return PROPAGATION_POLICY.body(policy_name(city), namespace) | {"spec": spec}


def routes(policy: PropagationPolicy, city: str) -> bool:
    """Whether a policy does exactly what `city_policy` asks for; what else the server fills in is its own affair."""
    wanted = _wanted(city)
    return (
        _selected(policy) == _selected(wanted)
        and policy.spec.placement == wanted.spec.placement
        and not _narrowed(policy)
    )


@lru_cache  # every pass of every deployment compares with one of these
def _wanted(city: str) -> PropagationPolicy:
    return decode(encode(city_policy("", city)), PropagationPolicy)


def _selected(policy: PropagationPolicy) -> list[tuple[object, ...]]:
    return [
        (selector.api_version, selector.kind, selector.name, selector.label_selector)
        for selector in policy.spec.resource_selectors
    ]


def _narrowed(policy: PropagationPolicy) -> bool:
    """Whether clusters are also chosen by name or field, which no server fills in by itself."""
    affinity = plain(policy.spec_json)["placement"]["clusterAffinity"]
    return any(value for key, value in affinity.items() if key != "labelSelector")
