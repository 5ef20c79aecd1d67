"""Manifests below `deploy/` that follow from tables. Entry point: `files`.

Everything else there is written by hand, and refers to these folders.
"""

from collections.abc import Iterable, Iterator, Sequence

import yaml
from msgspec import Struct

from datum_compute.admission.webhook import MUTATE, OF_PROJECT, VALIDATE, VALIDATE_DEPLOYMENT
from datum_compute.api import crd, policies, roles
from datum_compute.api.accounts import CELL, IMPERSONATOR, KARMADA_NAMESPACE, MANAGEMENT, NAMESPACE, cell_account
from datum_compute.api.crd import OURS, AnyKind
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.networking import (
    LOCATION,
    LOCATION_BINDING,
    NETWORK,
    NETWORK_BINDING,
    NETWORK_CONTEXT,
    SUBNET,
    SUBNET_CLAIM,
)
from datum_compute.api.permissions import (
    FRONT_PROXY_NAMESPACE,
    MUTATING_WEBHOOKS,
    PERMISSIONS,
    VALIDATING_WEBHOOKS,
    WEBHOOK_SERVICE,
    On,
    When,
    Who,
)
from datum_compute.api.quota import ALLOWANCE_BUCKET, RESOURCE_CLAIM, RESOURCE_GRANT, RESOURCE_REGISTRATION
from datum_compute.api.roles import role_name
from datum_compute.api.services import SERVICE_ENTITLEMENT
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import Json
from tools import catalog
from tools.documents import yaml_text

# Kinds that are installed together. All but our own belong to Milo or the network operator, and are for planes without.
DEFINITIONS: dict[str, tuple[AnyKind, ...]] = {
    "compute": OURS,
    "quota": (RESOURCE_CLAIM, RESOURCE_GRANT, RESOURCE_REGISTRATION, ALLOWANCE_BUCKET),
    "services": (SERVICE_ENTITLEMENT,),
    "networking": (LOCATION, LOCATION_BINDING, NETWORK),
    "cell-networking": (NETWORK_BINDING, NETWORK_CONTEXT, SUBNET_CLAIM, SUBNET),
}

# Kustomize puts the values of the ConfigMaps `cell` and `project` in their places.
CELL_NAME, PROJECT_NAME = "CELL", "PROJECT"
EXECUTION_SPACE = f"karmada-es-{CELL_NAME}"

_RBAC = "rbac.authorization.k8s.io"
_SECONDS = 10  # for an answer of the webhook; API servers themselves give up after 30


def files() -> dict[str, str]:
    """Text by path below `deploy/`."""
    written = {**_definitions(), **_accounts(), **_roles(), **_cells(), **_policies(), **_webhooks()}
    for folder, parts in catalog.components().items():
        written |= _folder(f"components/{folder}", parts, component=True)
    return written


# Kinds


def _definitions() -> dict[str, str]:
    written: dict[str, str] = {}
    for name, kinds in DEFINITIONS.items():
        written |= _folder_of_texts(f"crd/{name}", crd.files(kinds))
    return written


# Accounts and what they may do


def _accounts() -> dict[str, str]:
    return {
        **_folder("accounts/management", {"account.yaml": [_account(MANAGEMENT)]}),
        **_folder("accounts/cell", {"account.yaml": [_account(CELL)]}),
    }


def _account(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}


def _roles() -> dict[str, str]:
    """A folder per role. It includes the binding, unless that depends on the name of a cell or on who the users are."""
    texts = roles.files()
    written: dict[str, str] = {}
    for who, on, when in _every_role():
        name = role_name(who, on, when)
        parts = {"role.yaml": texts[name]}
        if (account := account_of(who, on)) is not None:
            home = KARMADA_NAMESPACE if who is Who.KARMADA else NAMESPACE
            parts["binding.yaml"] = _text([binding(who, on, when, account, of=home)])
        written |= _folder_of_texts(folder_of(name), parts, namespace=_namespace_of(who, on, when))
    return written


def _every_role() -> Iterator[tuple[Who, On, When]]:
    return ((who, on, when) for who, on in PERMISSIONS for when in roles.features(who, on))


def folder_of(role: str) -> str:
    return f"roles/{role.removeprefix('compute-')}"


def account_of(who: Who, on: On) -> str | None:
    """The account that has these roles wherever they are installed, if there is one."""
    match who, on:
        case Who.MANAGEMENT, _:
            return MANAGEMENT
        case Who.CELL, On.CELL:
            return CELL
        case Who.KARMADA, _:
            return IMPERSONATOR
    return None


def is_at_home(who: Who, on: On, when: When) -> bool:
    """Whether the role is for the namespace that the process itself runs in."""
    elsewhere = (When.EXECUTION_SPACE, When.FRONT_PROXY)
    return roles.is_namespaced(roles.rules_of(who, on, when)) and when not in elsewhere


def _namespace_of(who: Who, on: On, when: When) -> str:
    """The namespace of a role, if it is known."""
    if when is When.FRONT_PROXY:
        return FRONT_PROXY_NAMESPACE
    return NAMESPACE if is_at_home(who, on, when) else ""


def binding(
    who: Who, on: On, when: When, account: str, suffix: str = "", namespace: str = "", of: str = NAMESPACE
) -> Json:
    """`namespace` is that of the binding, `of` that of the account."""
    name = role_name(who, on, when)
    kind = "Role" if roles.is_namespaced(roles.rules_of(who, on, when)) else "ClusterRole"
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": f"{name}{suffix}"} | ({"namespace": namespace} if namespace else {}),
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": of}],
    }


def _cells() -> dict[str, str]:
    """The account of a cell on other planes, as components that take its name from the ConfigMap `cell`."""
    return {**_cell_on(On.HUB), **_cell_on(On.PROJECT), **_single_cluster_on_hub(), **_single_cluster()}


def _cell_on(on: On) -> dict[str, str]:
    account = cell_account(CELL_NAME)
    objects = [_account(account), *_cell_objects(on, account, f"-{CELL_NAME}")]
    return _folder(f"components/cell-on-{on.value}", {"cell.yaml": objects}, component=True, parameter="cell")


def _single_cluster_on_hub() -> dict[str, str]:
    """Where one process is management and cell, its account on the hub is both."""
    objects = list(_cell_objects(On.HUB, MANAGEMENT))
    return _folder("components/single-cluster-on-hub", {"cell.yaml": objects}, component=True, parameter="cell")


def _cell_objects(on: On, account: str, suffix: str = "") -> Iterator[Json]:
    """Bindings of cluster roles, which the plane has anyway, and roles for Karmada's namespace of the cell."""
    for when in roles.features(Who.CELL, on):
        if roles.is_namespaced(roles.rules_of(Who.CELL, on, when)):
            yield from _with_role(on, when, account, EXECUTION_SPACE)
        else:
            yield binding(Who.CELL, on, when, account, suffix)


def _single_cluster() -> dict[str, str]:
    """The roles of a cell for management's account. Management's own cover leader election and metrics."""
    wanted = [(On.CELL, when) for when in (When.ALWAYS, When.ABANDONED_CLAIMS, When.PODS)]
    objects = [
        body
        for on, when in (*wanted, (On.PROJECT, When.ALWAYS))
        for body in _with_role(on, when, MANAGEMENT, NAMESPACE if is_at_home(Who.CELL, on, when) else "")
    ]
    return _folder("components/single-cluster", {"cell.yaml": objects}, component=True)


def _with_role(on: On, when: When, account: str, namespace: str) -> Iterator[Json]:
    """A role of a cell and its binding, in a namespace unless the role is for all of them."""
    [role] = yaml.safe_load_all(roles.files()[role_name(Who.CELL, on, when)])
    yield role | {"metadata": role["metadata"] | ({"namespace": namespace} if namespace else {})}
    yield binding(Who.CELL, on, when, account, namespace=namespace)


# Policies


def _policies() -> dict[str, str]:
    written: dict[str, str] = {}
    for name, text in policies.files().items():
        written |= _folder_of_texts(f"policies/{name.removesuffix('.yaml')}", {"policies.yaml": text})
    return written


# Webhooks


class Webhook(Struct, frozen=True):
    name: str
    path: str
    configuration: str
    kind: AnyKind
    resources: tuple[str, ...]
    operations: tuple[str, ...]


_WORKLOADS = (WORKLOAD.plural,)
_WRITES = ("CREATE", "UPDATE")

WEBHOOKS = (
    Webhook("mworkload.kb.io", MUTATE, MUTATING_WEBHOOKS, WORKLOAD, _WORKLOADS, _WRITES),
    Webhook("vworkload.kb.io", VALIDATE, VALIDATING_WEBHOOKS, WORKLOAD, _WORKLOADS, _WRITES),
)

# Only for API servers without ValidatingAdmissionPolicies; the others enforce the same rule themselves.
DEPLOYMENT_WEBHOOK = Webhook(
    "vworkloaddeployment.kb.io",
    VALIDATE_DEPLOYMENT,
    VALIDATING_WEBHOOKS,
    WORKLOAD_DEPLOYMENT,
    (WORKLOAD_DEPLOYMENT.plural, f"{WORKLOAD_DEPLOYMENT.plural}/status"),
    (*_WRITES, "DELETE"),
)


def _webhooks() -> dict[str, str]:
    of_project = f"{OF_PROJECT}{PROJECT_NAME}"
    addition = yaml.safe_dump([{"op": "add", "path": "/webhooks/-", "value": _webhook(DEPLOYMENT_WEBHOOK)}])
    target = {"kind": "ValidatingWebhookConfiguration", "name": VALIDATING_WEBHOOKS}
    return {
        **_folder("webhook", {"webhooks.yaml": list(_configurations())}),
        **_folder(
            "components/project-webhook",
            {"webhooks.yaml": list(_configurations(of_project))},
            component=True,
            parameter="project",
        ),
        **_folder(
            "components/deployment-webhook",
            {},
            component=True,
            more={"patches": [{"target": target, "path": "patch.yaml"}]},
        ),
        "components/deployment-webhook/patch.yaml": addition,
    }


def _configurations(suffix: str = "") -> Iterator[Json]:
    for name, kind in (
        (MUTATING_WEBHOOKS, "MutatingWebhookConfiguration"),
        (VALIDATING_WEBHOOKS, "ValidatingWebhookConfiguration"),
    ):
        webhooks = [_webhook(webhook, suffix) for webhook in WEBHOOKS if webhook.configuration == name]
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
        yield head | {"webhooks": webhooks}


def _webhook(webhook: Webhook, suffix: str = "") -> Json:
    service = {"name": WEBHOOK_SERVICE, "namespace": NAMESPACE, "path": f"{webhook.path}{suffix}", "port": 443}
    rule = {
        "apiGroups": [webhook.kind.group],
        "apiVersions": [webhook.kind.version],
        "operations": list(webhook.operations),
        "resources": list(webhook.resources),
    }
    return {
        "name": webhook.name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service},
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": _SECONDS,
    }


# Folders of kustomize


def _folder(
    path: str,
    parts: dict[str, Sequence[Json]],
    *,
    component: bool = False,
    parameter: str = "",
    more: Json | None = None,
) -> dict[str, str]:
    """The objects by file name, and a kustomization that lists them."""
    replaced = _replacements(parameter, [body for bodies in parts.values() for body in bodies]) if parameter else {}
    texts = {name: _text(bodies) for name, bodies in parts.items()}
    return _folder_of_texts(path, texts, component=component, more=(more or {}) | replaced)


def _folder_of_texts(
    path: str, texts: dict[str, str], *, component: bool = False, namespace: str = "", more: Json | None = None
) -> dict[str, str]:
    version = "v1alpha1" if component else "v1beta1"
    kustomization = {
        "apiVersion": f"kustomize.config.k8s.io/{version}",
        "kind": "Component" if component else "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        **({"resources": list(texts)} if texts else {}),
        **(more or {}),
    }
    return {
        f"{path}/kustomization.yaml": _text([kustomization]),
        **{f"{path}/{name}": text for name, text in texts.items()},
    }


def _text(bodies: Iterable[Json]) -> str:
    return "---\n".join(map(yaml_text, bodies))


# Parameters: kustomize knows replacements of a part of a value, between delimiters.

_PLACEHOLDERS = {"cell": CELL_NAME, "project": PROJECT_NAME}
_DELIMITERS = {"cell": "-", "project": "/"}


def _replacements(parameter: str, objects: Sequence[Json]) -> Json:
    """Puts the `name` of the ConfigMap into every place of the objects that has the placeholder."""
    delimiter, targets = _DELIMITERS[parameter], []
    for body in objects:
        # The name last, because it is what the object is selected by.
        for path, value in sorted(_strings(body), key=lambda item: item[0] == "metadata.name"):
            parts = value.split(delimiter)
            if _PLACEHOLDERS[parameter] in parts:
                options = {"delimiter": delimiter, "index": parts.index(_PLACEHOLDERS[parameter])}
                selected = {"kind": body["kind"], "name": body["metadata"]["name"]}
                targets.append({"select": selected, "fieldPaths": [path], "options": options})
    source = {"kind": "ConfigMap", "name": parameter, "fieldPath": "data.name"}
    return {"replacements": [{"source": source, "targets": targets}]}


def _strings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for key, inner in value.items():
                yield from _strings(inner, f"{path}.{key}".removeprefix("."))
        case list():
            for index, inner in enumerate(value):
                yield from _strings(inner, f"{path}.{index}")
