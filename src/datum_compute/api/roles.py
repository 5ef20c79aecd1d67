"""Role manifests from the table of permissions. Entry points: `files`, `role_name`."""

from collections.abc import Iterable, Sequence

from datum_compute.api.permissions import PERMISSIONS, On, Rule, When, Who


def files() -> dict[str, str]:
    """Manifests by name, one file per identity and plane. Optional features have separate roles."""
    return {f"{who.value}-on-{on.value}.yaml": _documents(who, on, rules) for (who, on), rules in PERMISSIONS.items()}


def _documents(who: Who, on: On, rules: Sequence[Rule]) -> str:
    return "---\n".join(
        _role(role_name(who, on, when), [rule for rule in rules if rule.when is when])
        for when in dict.fromkeys(rule.when for rule in rules)
    )


def role_name(who: Who, on: On, when: When) -> str:
    return "-".join(filter(None, ("compute", who.value, "on", on.value, when.value)))


def _role(name: str, rules: Iterable[Rule]) -> str:
    """Formatted by hand, because each rule has a comment with its purpose."""
    rules = list(rules)
    kind = "Role" if all(rule.in_namespace for rule in rules) else "ClusterRole"
    head = ["apiVersion: rbac.authorization.k8s.io/v1", f"kind: {kind}", f"metadata: {{name: {name}}}", "rules:"]
    return "\n".join([*head, *(line for rule in rules for line in _rule(rule)), ""])


def _rule(rule: Rule) -> Iterable[str]:
    yield f"# {rule.why}"
    yield f'- apiGroups: ["{rule.group}"]'
    yield f"  resources: [{', '.join(rule.resources)}]"
    if rule.names:
        yield f"  resourceNames: [{', '.join(rule.names)}]"
    yield f"  verbs: [{', '.join(rule.verbs)}]"
