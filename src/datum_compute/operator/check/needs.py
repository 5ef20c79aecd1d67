"""The rights and kinds that a process needs on each plane, from its settings. Entry points: `rights`, `kinds`.

Both follow from the table of permissions, from which the shipped roles are generated as well.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from datum_compute.api.crd import OURS, ROLES, AnyKind
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY, RESOURCE_BINDING, WORK, execution_space
from datum_compute.api.networking import LOCATION, LOCATION_BINDING
from datum_compute.api.permissions import FRONT_PROXY_NAMESPACE, PERMISSIONS, On, Rule, When, Who
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.roles import role_name
from datum_compute.api.services import PROJECT as PROJECT_KIND
from datum_compute.api.services import PROJECT_CONTROL_PLANE
from datum_compute.kube.kinds import EVENT, NAMESPACE
from datum_compute.operator.config import MILO, SINGLE, SelfSigned
from datum_compute.operator.settings import ENTITLEMENT, LOCATIONS, NETWORK, PODS, QUOTA, Settings

OWN, HUB, ROOT, PROJECT = "own cluster", "hub", "root", "project"

REQUIRED = frozenset({*OURS, PROPAGATION_POLICY, CLUSTER, PROJECT_KIND, PROJECT_CONTROL_PLANE})
"""Kinds without which a plane cannot be engaged. All others are used where they are served."""

_KINDS = {
    (kind.group, kind.plural): kind
    for kind in (*(kind for kinds in ROLES.values() for kind in kinds), RESOURCE_BINDING, WORK)
}
_READ_FOR_ADMISSION = (LOCATION_BINDING.plural, LOCATION.plural)
_READ_FOR_LOGS = (NAMESPACE.plural, INSTANCE.plural, CLUSTER.plural)


class Right(Struct, frozen=True):
    """One thing that an account must be allowed to do, and the shipped role that allows it."""

    role: str
    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""  # empty: everywhere
    name: str = ""  # empty: every object
    required: bool = True  # without the others the process works, but not as well

    @property
    def folder(self) -> str:
        """Where the role is, below deploy/roles."""
        return self.role.removeprefix("compute-")

    @property
    def kind(self) -> AnyKind | None:
        """None for kinds that every Kubernetes serves."""
        return _KINDS.get((self.group, self.resource))

    @property
    def target(self) -> str:
        """The resource as a sentence names it."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{resource}.{self.group}" if self.group else resource


class _Duty(Struct, frozen=True):
    """Features that an identity needs its roles for on one kind of plane."""

    plane: str
    who: Who
    on: On
    features: frozenset[When]


def rights(settings: Settings, own_namespace: str) -> dict[str, tuple[Right, ...]]:
    """By kind of plane: `OWN`, `HUB`, `ROOT` and `PROJECT`.

    `own_namespace` is where the process has its own objects.
    """
    namespaces = {
        When.LEADER_ELECTION: own_namespace,
        When.ABANDONED_CLAIMS: own_namespace or "default",
        When.EXECUTION_SPACE: execution_space(settings.cluster_name),
        When.WEBHOOK_CERTIFICATE: own_namespace,
        When.FRONT_PROXY: FRONT_PROXY_NAMESPACE,
    }
    needed: dict[str, dict[Right, None]] = {}
    for duty in _duties(settings):
        for rule in PERMISSIONS[duty.who, duty.on]:
            if rule.when in duty.features and _is_used(rule, settings):
                namespace, names = namespaces[rule.when] if rule.in_namespace else "", _names(rule, settings)
                needed.setdefault(duty.plane, {}).update(dict.fromkeys(_rights(duty, rule, namespace, names)))
    return {plane: tuple(found) for plane, found in needed.items()}


def kinds(rights_: Iterable[Right]) -> dict[AnyKind, tuple[str, ...]]:
    """The kinds that these rights are about, each with the subresources that are used."""
    needed: dict[AnyKind, dict[str, None]] = {}
    for right in rights_:
        if (kind := right.kind) is not None:
            subresources = needed.setdefault(kind, {})
            if right.subresource not in ("", "finalizers"):  # the latter exists for authorization only
                subresources[right.subresource] = None
    return {kind: tuple(subresources) for kind, subresources in needed.items()}


def _duties(settings: Settings) -> Iterator[_Duty]:
    config = settings.config
    project = OWN if settings.projects and config.discovery.mode == SINGLE else PROJECT
    networking = {When.NETWORKING} if settings.networking else set()
    of_process = {
        *([When.LEADER_ELECTION] if settings.leader_elect else []),
        *([When.SECURE_METRICS] if settings.metrics is not None and config.metrics_server.secure_serving else []),
        *([When.WEBHOOK_CERTIFICATE, When.WEBHOOK_AUTHORITY] if _self_signed(settings) is not None else []),
    }
    logs = {When.LOGS} if config.logs_server is not None else set()
    front_proxy = {When.FRONT_PROXY} if config.logs_server is not None else set()
    if settings.management or not settings.cell:
        in_place = front_proxy if config.discovery.mode == SINGLE else set()
        yield _Duty(OWN, Who.MANAGEMENT, On.HOST, frozenset(of_process | in_place))
    if settings.projects:
        discovery = When.INTERNAL_DISCOVERY if config.discovery.internal_service_discovery else When.MILO_DISCOVERY
        features = {
            When.ALWAYS,
            *networking,
            *logs,
            *([When.WEBHOOK] if config.webhook_server is not None else []),
            *(_BUILTINS_IN_PROJECTS[name] for name in settings.builtins if name in _BUILTINS_IN_PROJECTS),
        }
        if config.discovery.mode == MILO:
            yield _Duty(ROOT, Who.MANAGEMENT, On.ROOT, frozenset({discovery, *front_proxy}))
        yield _Duty(project, Who.MANAGEMENT, On.PROJECT, frozenset(features))
    if settings.management or logs:
        yield _Duty(HUB, Who.MANAGEMENT, On.HUB, frozenset({When.ALWAYS, *logs}))
    if not settings.cell:
        return
    features = {
        When.ALWAYS,
        *networking,
        *([] if settings.management else of_process),
        *([When.ABANDONED_CLAIMS] if settings.quota and settings.abandon_claims_after else []),
        *([When.PODS] if settings.provider == PODS else []),
        *([When.NETWORK] if NETWORK in settings.builtins else []),
        *([When.LOCATIONS] if LOCATIONS in settings.builtins and settings.networking else []),
    }
    yield _Duty(OWN, Who.CELL, On.CELL, frozenset(features))
    if settings.federation_kubeconfig:
        named = {When.EXECUTION_SPACE} if config.discovery.cluster_name else set()
        yield _Duty(HUB, Who.CELL, On.HUB, frozenset({When.ALWAYS, *named}))
    if settings.quota:
        yield _Duty(project, Who.CELL, On.PROJECT, frozenset({When.ALWAYS}))


_BUILTINS_IN_PROJECTS = {QUOTA: When.QUOTA, ENTITLEMENT: When.ENTITLEMENT, LOCATIONS: When.LOCATIONS}


def _is_used(rule: Rule, settings: Settings) -> bool:
    """A process that only serves needs little of what the management controllers may do."""
    if settings.management or settings.cell or rule.when is not When.ALWAYS:
        return True
    admission = _READ_FOR_ADMISSION if settings.config.webhook_server is not None else ()
    served = settings.config.logs_server
    logs = _READ_FOR_LOGS if served is not None else ()
    commands = (EVENT.plural,) if served is not None and served.exec else ()
    return set(rule.resources) <= {*admission, *logs, *commands}


def _names(rule: Rule, settings: Settings) -> tuple[str, ...]:
    """The objects that a rule is about, "" for all; those of a self-signed certificate may have names of their own."""
    issued = _self_signed(settings)
    if issued is None or not rule.names:
        return rule.names or ("",)
    if rule.when is When.WEBHOOK_CERTIFICATE:
        return (issued.secret_name,)
    if rule.when is When.WEBHOOK_AUTHORITY:
        (resource,) = rule.resources
        return issued.mutating_webhooks if resource.startswith("mutating") else issued.validating_webhooks
    return rule.names


def _self_signed(settings: Settings) -> SelfSigned | None:
    webhook = settings.config.webhook_server
    return webhook.tls.self_signed if webhook is not None else None


def _rights(duty: _Duty, rule: Rule, namespace: str, names: Iterable[str]) -> Iterator[Right]:
    for whole in rule.resources:
        resource, _, subresource = whole.partition("/")
        for verb in rule.verbs:
            for name in names:
                yield Right(
                    role_name(duty.who, duty.on, rule.when),
                    verb,
                    rule.group,
                    resource,
                    subresource,
                    namespace,
                    name,
                    required=not _is_dispensable(duty, rule, verb),
                )


def _is_dispensable(duty: _Duty, rule: Rule, verb: str) -> bool:
    """Claims are polled where they cannot be watched, and Instances wait where abandoned claims cannot be noted."""
    polled = (duty.who, duty.on) == (Who.CELL, On.PROJECT) and rule.resources == (RESOURCE_CLAIM.plural,)
    return rule.when is When.ABANDONED_CLAIMS or (polled and verb in ("list", "watch"))
