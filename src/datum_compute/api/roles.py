"""Role manifests from the table of permissions. Entry points: `files`, `role_name`, `is_namespaced`."""

from collections.abc import Iterable, Sequence

from datum_compute.api.permissions import PERMISSIONS, On, Rule, When, Who


def files() -> dict[str, str]:
    """Manifests by the name of the role: one per identity and plane, and one per optional feature."""
    return {
        role_name(who, on, when): _role(role_name(who, on, when), rules_of(who, on, when))
        for who, on in PERMISSIONS
        for when in features(who, on)
    }


def features(who: Who, on: On) -> list[When]:
    """What an identity has roles for on a plane, in the order of the table."""
    return list(dict.fromkeys(rule.when for rule in PERMISSIONS[who, on]))


def rules_of(who: Who, on: On, when: When) -> list[Rule]:
    return [rule for rule in PERMISSIONS[who, on] if rule.when is when]


def is_namespaced(rules: Iterable[Rule]) -> bool:
    """Whether they make a Role, which applies to a single namespace, instead of a ClusterRole."""
    return all(rule.in_namespace for rule in rules)


def role_name(who: Who, on: On, when: When) -> str:
    return "-".join(filter(None, ("compute", who.value, "on", on.value, when.value)))


def _role(name: str, rules: Sequence[Rule]) -> str:
    """Formatted by hand, because each rule has a comment with its purpose."""
    kind = "Role" if is_namespaced(rules) else "ClusterRole"
    head = ["apiVersion: rbac.authorization.k8s.io/v1", f"kind: {kind}", f"metadata: {{name: {name}}}", "rules:"]
    return "\n".join([*head, *(line for rule in rules for line in _rule(rule)), ""])


def _rule(rule: Rule) -> Iterable[str]:
    yield f"# {rule.why}"
    yield f'- apiGroups: ["{rule.group}"]'
    yield f"  resources: [{', '.join(rule.resources)}]"
    if rule.names:
        yield f"  resourceNames: [{', '.join(rule.names)}]"
    yield f"  verbs: [{', '.join(rule.verbs)}]"
