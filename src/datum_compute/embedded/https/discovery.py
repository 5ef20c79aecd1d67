"""Discovery of the kinds that a plane serves. Entry points: `discovered`, `aggregated`.

`bare` are further groups with their versions, without resources.
"""

from collections.abc import Sequence

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.kube.meta import Json

_STATUS_VERBS = ["get", "patch", "update"]


GroupVersion = tuple[str, str]


def discovered(kinds: Sequence[ServedKind], path: str, bare: Sequence[GroupVersion] = ()) -> Json | None:
    """The document at `/api`, `/apis` or a group or version below them; None for any other path."""
    versions = _versions(kinds, bare)
    match path.strip("/").split("/"):
        case [""]:
            return {"paths": ["/api", "/api/v1", "/apis", *map(_path, versions), "/openapi/v3", "/version"]}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["api", version]:
            return _resources(kinds, "", version, bare)
        case ["apis"]:
            groups = [_group(group, version) for group, version in versions]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group]:
            groups = [_group(group, version) for name, version in versions if name == group]
            return {"kind": "APIGroup", "apiVersion": "v1"} | groups[0] if groups else None
        case ["apis", group, version]:
            return _resources(kinds, group, version, bare)
    return None


def aggregated(kinds: Sequence[ServedKind], path: str, bare: Sequence[GroupVersion] = ()) -> Json | None:
    """All of `/api` or `/apis` in one document, which saves clients a call per group; None for other paths."""
    match path.strip("/"):
        case "api":
            groups = [("", "v1")]
        case "apis":
            groups = _versions(kinds, bare)
        case _:
            return None
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [{"version": version, "resources": _aggregated(kinds, group, version), "freshness": "Current"}],
        }
        for group, version in groups
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated(kinds: Sequence[ServedKind], group: str, version: str) -> list[Json]:
    resources = []
    for served in kinds:
        if (served.group, served.version) != (group, version):
            continue
        kind = {"group": group, "version": version, "kind": served.kind}
        entry: Json = {
            "resource": served.plural,
            "responseKind": kind,
            "scope": "Namespaced" if served.namespaced else "Cluster",
            "singularResource": served.singular,
            "verbs": list(served.verbs),
        } | _aliases(served)
        if served.has_status:
            entry["subresources"] = [{"subresource": "status", "responseKind": kind, "verbs": _STATUS_VERBS}]
        resources.append(entry)
    return resources


def _versions(kinds: Sequence[ServedKind], bare: Sequence[GroupVersion]) -> list[GroupVersion]:
    """Each group with its version; a group has one version here."""
    stored = ((served.group, served.version) for served in kinds if served.group)
    return list(dict.fromkeys((*stored, *bare)))


def _path(version: GroupVersion) -> str:
    return f"/apis/{version[0]}/{version[1]}"


def _group(group: str, version: str) -> Json:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _resources(kinds: Sequence[ServedKind], group: str, version: str, bare: Sequence[GroupVersion]) -> Json | None:
    served = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    if not served and (group, version) not in bare:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version if served else f"{group}/{version}",
        "resources": [resource for kind in served for resource in _entries(kind)],
    }


def _entries(served: ServedKind) -> list[Json]:
    common = {"namespaced": served.namespaced, "kind": served.kind}
    entry = {"name": served.plural, "singularName": served.singular, **common}
    entry |= {"verbs": list(served.verbs)} | _aliases(served)
    status = {"name": f"{served.plural}/status", "singularName": "", **common, "verbs": _STATUS_VERBS}
    return [entry, status] if served.has_status else [entry]


def _aliases(served: ServedKind) -> Json:
    aliases = {"shortNames": list(served.short_names), "categories": list(served.categories)}
    return {key: value for key, value in aliases.items() if value}
