"""The generated admission policies, asked without an API server. Entry points: `refusal`, `admit`."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from datum_compute.api.crd import ROLES
from datum_compute.api.policies import files
from datum_compute.kube.admission import Review
from datum_compute.kube.errors import Cause, Forbidden
from datum_compute.kube.meta import Json
from tests.cel import CelError, evaluate


@cache
def manifests() -> dict[str, Json]:
    return {
        manifest["metadata"]["name"]: manifest
        for text in files().values()
        for manifest in yaml.safe_load_all(text)
        if manifest["kind"] == "ValidatingAdmissionPolicy"
    }


class _Lazy(dict[str, Any]):
    """Variables are evaluated when they are used."""

    def __init__(self, expressions: Sequence[Json], around: Mapping[str, Any]) -> None:
        super().__init__({item["name"]: item["expression"] for item in expressions})
        self._around = around

    def __getitem__(self, name: str) -> Any:
        return evaluate(super().__getitem__(name), self._around)


def refusal(
    policy: str,
    user: str,
    operation: str,
    before: Json | None,
    after: Json | None,
    *,
    groups: Sequence[str] = (),
    subresource: str = "",
    namespace: str = "default",
) -> str:
    """The message of the refusal; empty when the write is allowed."""
    spec = manifests()[policy]["spec"]
    [match] = spec["matchConstraints"]["resourceRules"]
    resource = "/".join(filter(None, (match["resources"][0], subresource)))
    if operation not in match["operations"] or resource not in match["resources"]:
        return ""  # no server evaluates it
    named: Any = (after or before or {}).get("metadata", {}).get("name")
    request: Json = {"operation": operation, "namespace": namespace, "userInfo": {"username": user}}
    request |= {"name": named} if named else {}
    request |= {"subResource": subresource} if subresource else {}
    request["userInfo"] |= {"groups": list(groups)} if groups else {}
    around: dict[str, Any] = {"request": request, "object": after, "oldObject": before}
    around["variables"] = _Lazy(spec.get("variables", ()), around)
    if not all(evaluate(item["expression"], around) for item in spec.get("matchConditions", ())):
        return ""
    for rule in spec["validations"]:
        try:
            if evaluate(rule["expression"], around):
                continue
        except CelError:
            assert spec["failurePolicy"] == "Fail"
        return str(evaluate(rule["messageExpression"], around))
    return ""


_RESOURCES = {kind.resource: (kind.group, kind.plural) for kinds in ROLES.values() for kind in kinds}


def admit(review: Review) -> Sequence[Cause]:
    """For the embedded engine: the policies of the plane, as an API server holds callers to them."""
    group, plural = _RESOURCES.get(review.resource, ("", review.resource))
    for name in _of_plane(review.role):
        [match] = manifests()[name]["spec"]["matchConstraints"]["resourceRules"]
        if group not in match["apiGroups"] or plural not in match["resources"]:
            continue
        before, after = review.before, review.after
        namespace = (after or before or {})["metadata"].get("namespace", "")
        sentence = refusal(
            *(name, review.user.name, review.operation, before, after),
            groups=review.user.groups,
            subresource=review.subresource,
            namespace=namespace,
        )
        if sentence:
            raise Forbidden(f"{name} denied request: {sentence}")
    return ()


@cache
def _of_plane(role: str) -> list[str]:
    text = files().get(f"{role}.yaml", "")
    found = (manifest for manifest in yaml.safe_load_all(text) if manifest["kind"] == "ValidatingAdmissionPolicy")
    return [manifest["metadata"]["name"] for manifest in found]
