"""The NetworkPolicy of an Instance's Pod. Entry points: `policy_of`, `NETWORK_POLICY`."""

from collections.abc import Iterable

from datum_compute.api.instance import Instance
from datum_compute.api.template import IngressRule, PolicyPeer, PolicyPort
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject, controller_reference
from datum_compute.providers.pods.settings import PodSettings
from datum_compute.providers.pods.shape import UPSTREAM_INSTANCE, labels_of

NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", KubeObject)


def policy_of(instance: Instance, settings: PodSettings) -> Json | None:
    """None for a Pod without restrictions.

    A Pod has a single address, that of the first interface, so the policy of the first interface applies.
    """
    own = instance.spec.network_interfaces[0].network_policy
    ingress = _ingress(own.ingress) if own is not None else settings.ingress
    spec: Json = {"podSelector": {"matchLabels": {UPSTREAM_INSTANCE: instance.name}}, "policyTypes": []}
    # A type without rules allows nothing.
    for type_, key, rules in (("Ingress", "ingress", ingress), ("Egress", "egress", settings.egress)):
        if rules is not None:
            spec["policyTypes"].append(type_)
            spec |= {key: list(rules)} if rules else {}
    if not spec["policyTypes"]:
        return None
    owner = controller_reference(instance)
    body = NETWORK_POLICY.body(instance.name, instance.namespace, labels=labels_of(instance), ownerReferences=[owner])
    return body | {"spec": spec}


def _ingress(rules: Iterable[IngressRule]) -> tuple[Json, ...]:
    return tuple(_rule(rule) for rule in rules if not rule.from_ or _peers(rule.from_))


def _rule(rule: IngressRule) -> Json:
    ports, peers = [_port(port) for port in rule.ports], _peers(rule.from_)
    return {**({"ports": ports} if ports else {}), **({"from": peers} if peers else {})}


def _port(port: PolicyPort) -> Json:
    return {
        "protocol": port.protocol,
        **({"port": port.port} if port.port != "" else {}),
        **({"endPort": port.end_port} if port.end_port is not None else {}),
    }


def _peers(peers: Iterable[PolicyPeer]) -> list[Json]:
    """Peers with an address range. The others are dropped, because an empty peer would mean everybody in Kubernetes."""
    blocks = [peer.ip_block for peer in peers if peer.ip_block is not None]
    return [
        {"ipBlock": {"cidr": block.cidr, **({"except": list(block.except_)} if block.except_ else {})}}
        for block in blocks
    ]
