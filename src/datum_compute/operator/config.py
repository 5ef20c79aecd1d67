"""The config file of compute-manager. Entry points: `read`, `WorkloadOperator`.

Decoding is strict: an unknown or repeated field is an error, because a misspelt setting would silently have no effect.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import UNSET, Meta, Struct, UnsetType, field

from datum_compute.api.permissions import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, WEBHOOK_SECRET, WEBHOOK_SERVICE
from datum_compute.api.quota import INSTANCES, MEMORY, VCPUS
from datum_compute.kube import untrusted_yaml
from datum_compute.platform.grants import DEFAULT_LIMITS

API_VERSION = "apiserver.config.datumapis.com/v1alpha1"
KIND = "WorkloadOperator"
PROJECT_URL = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane"

SINGLE = "single"
MILO = "milo"
KUBECONFIGS = "kubeconfigs"
MODES = (SINGLE, MILO, KUBECONFIGS)

CELLS = "cells"
LOKI = "loki"
LOG_SOURCES = (CELLS, LOKI)


class ConfigError(Exception):
    """One sentence with the file, the line, the field and what is wrong with it."""


class _Part(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    pass


class SecretRef(_Part, frozen=True):
    """A Secret of type kubernetes.io/tls on the cluster that the process works for."""

    name: str
    namespace: str


class Tls(_Part, frozen=True):
    secret_ref: SecretRef | None = None
    cert_dir: str = ""
    cert_name: str = "tls.crt"
    key_name: str = "tls.key"


_Name = Annotated[str, Meta(min_length=1)]


class SelfSigned(_Part, frozen=True):
    """Names on the cluster that the process works for, the first two in the namespace of the process."""

    secret_name: _Name = WEBHOOK_SECRET
    service_name: _Name = WEBHOOK_SERVICE
    hosts: tuple[_Name, ...] = ()
    mutating_webhooks: tuple[_Name, ...] = (MUTATING_WEBHOOKS,)
    validating_webhooks: tuple[_Name, ...] = (VALIDATING_WEBHOOKS,)
    overlap_seconds: Annotated[float, Meta(ge=1, le=30 * 24 * 3600)] = 3600


class WebhookTls(Tls, frozen=True):
    self_signed: SelfSigned | None = None


class MetricsServer(_Part, frozen=True):
    secure_serving: bool = True
    bind_address: str = "0"
    tls: Tls = field(default_factory=Tls)


class Controllers(_Part, frozen=True):
    """Writers of deployments in addition to those that the shipped manifests name."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class WebhookServer(_Part, frozen=True):
    host: str = ""
    port: int = 9443
    tls: WebhookTls = field(default_factory=WebhookTls)
    client_ca_name: str = field(default="", name="clientCAName")
    controllers: Controllers = field(default_factory=Controllers)


class Loki(_Part, frozen=True):
    """A store of logs with Loki's API; `project_label` is the label that tells projects apart in it."""

    url: _Name
    project_label: _Name
    token_file: str = ""


class LogsServer(_Part, frozen=True):
    """`cell_kubeconfig_dir` has a kubeconfig for each cell that is not called through the hub, named after the cell."""

    host: str = ""
    port: int = 9444
    tls: Tls = field(default_factory=Tls)
    source: str = CELLS
    cell_kubeconfig_dir: str = ""
    loki: Loki | None = None
    exec: bool = False


class Discovery(_Part, frozen=True):
    mode: str = SINGLE
    internal_service_discovery: bool = False
    discovery_kubeconfig_path: str = ""
    project_kubeconfig_path: str = ""
    quota_kubeconfig_path: str = ""
    cluster_name: str = ""
    project_url_template: str = field(default=PROJECT_URL, name="projectURLTemplate")
    kubeconfig_dir: str = ""


_Amount = Annotated[int, Meta(ge=0)]


class Grants(_Part, frozen=True):
    """Quota of a project as soon as it has compute."""

    instances: _Amount = DEFAULT_LIMITS[INSTANCES]
    millicores: _Amount = DEFAULT_LIMITS[VCPUS]
    mebibytes: _Amount = DEFAULT_LIMITS[MEMORY]

    @property
    def limits(self) -> dict[str, int]:
        """By resource type."""
        return {INSTANCES: self.instances, VCPUS: self.millicores, MEMORY: self.mebibytes}


class Toleration(_Part, frozen=True, omit_defaults=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class IPBlock(_Part, frozen=True, omit_defaults=True):
    cidr: str
    except_: tuple[str, ...] = field(default=(), name="except")


class Peer(_Part, frozen=True):
    ip_block: IPBlock = field(name="ipBlock")


class PolicyPort(_Part, frozen=True):
    protocol: str = "TCP"  # written out, because servers fill it in
    port: int | str | UnsetType = UNSET
    end_port: int | UnsetType = UNSET


class IngressRule(_Part, frozen=True, omit_defaults=True):
    from_: tuple[Peer, ...] = field(default=(), name="from")
    ports: tuple[PolicyPort, ...] = ()


class EgressRule(_Part, frozen=True, omit_defaults=True):
    to: tuple[Peer, ...] = ()
    ports: tuple[PolicyPort, ...] = ()


class PodPolicy(_Part, frozen=True):
    ingress: tuple[IngressRule, ...] | None = None
    egress: tuple[EgressRule, ...] | None = None


class Pods(_Part, frozen=True):
    """Settings of the provider `pods` for every Pod; rules and tolerations are written as in Kubernetes."""

    runtime_class_name: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = field(default_factory=tuple)
    network_policy: PodPolicy = field(default_factory=PodPolicy)


class WorkloadOperator(_Part, frozen=True):
    api_version: str
    kind: str
    metrics_server: MetricsServer = field(default_factory=MetricsServer)
    webhook_server: WebhookServer | None = None
    logs_server: LogsServer | None = None
    discovery: Discovery = field(default_factory=Discovery)
    default_grants: Grants | None = None
    pods: Pods | None = None
    shutdown_delay_seconds: float = 5


def read(path: Path) -> WorkloadOperator:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    return decoded(path, text)


def decoded(path: Path, text: bytes) -> WorkloadOperator:
    """`path` is used only in error messages."""
    try:
        untrusted_yaml.check(text)
        loader = _LOADER(text)
        try:
            node = loader.get_single_node()
            _refuse_keys(path, node)
            with untrusted_yaml.building():
                content = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except untrusted_yaml.TooMuch as error:
        raise ConfigError(f"config file {path} is {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"config file {path}{place}: it is not YAML") from None
    try:
        config = msgspec.convert(content, WorkloadOperator)
    except msgspec.ValidationError as error:
        raise ConfigError(_explained(path, node, str(error))) from None
    _refuse_other(path, node, "apiVersion", config.api_version, [API_VERSION])
    _refuse_other(path, node, "kind", config.kind, [KIND])
    _refuse_other(path, node, "discovery.mode", config.discovery.mode, MODES)
    if config.logs_server is not None:
        _refuse_other(path, node, "logsServer.source", config.logs_server.source, LOG_SOURCES)
    _refuse_ranges(path, node, config.pods.network_policy if config.pods is not None else PodPolicy())
    return config


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _refuse_keys(path: Path, node: yaml.Node | None, field_: str = "") -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _refuse_keys(path, item, f"{field_}[{index}]")
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = f"{field_}.{key.value}".removeprefix(".")
        if key.tag != "tag:yaml.org,2002:str":  # a number, or no scalar at all
            raise ConfigError(f"{_place(path, key, name)} is not known")
        if name in seen:
            raise ConfigError(f"{_place(path, key, name)} is there twice")
        seen.add(name)
        _refuse_keys(path, value, name)


def _refuse_other(path: Path, node: yaml.Node | None, field_: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        wanted = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
        raise ConfigError(f'{_place(path, _node(node, field_), field_)} is "{value}"; it must be {wanted}')


def _refuse_ranges(path: Path, node: yaml.Node | None, policy: PodPolicy) -> None:
    peers = [peer for rule in policy.ingress or () for peer in rule.from_]
    peers += [peer for rule in policy.egress or () for peer in rule.to]
    for block in (peer.ip_block for peer in peers):
        for range_ in (block.cidr, *block.except_):
            try:
                ip_network(range_)
            except ValueError:
                place = _place(path, _node(node, "pods.networkPolicy"), "pods.networkPolicy")
                raise ConfigError(f'{place} has "{range_}", which is not a range of addresses') from None


_UNKNOWN = re.compile(r"unknown field `(?P<name>.*?)`")
_MISSING = re.compile(r"missing required field `(?P<name>.*?)`")
_STEP = re.compile(r"[^.\[\]]+")  # of a path such as `a.b[0].c`
_AT = re.compile(r" - at `\$(?P<path>.*)`$")


def _explained(path: Path, node: yaml.Node | None, message: str) -> str:
    """The decoder's message, with the line and the field as written in the file."""
    at = _AT.search(message)
    above = at["path"].removeprefix(".") if at else ""
    what = _AT.sub("", message)
    if unknown := _UNKNOWN.search(what):
        name = f"{above}.{unknown['name']}".removeprefix(".")
        return f"{_place(path, _node(node, name), name)} is not known"
    if missing := _MISSING.search(what):
        name = f"{above}.{missing['name']}".removeprefix(".")
        return f"{_place(path, _node(node, above), name)} is missing"
    if not above:
        return f"config file {path} is not a mapping; it starts with apiVersion: {API_VERSION}"
    return f"{_place(path, _node(node, above), above)}: {what[0].lower()}{what[1:]}"


def _place(path: Path, node: yaml.Node | None, field_: str) -> str:
    line = f", line {node.start_mark.line + 1}" if node is not None else ""
    return f"config file {path}{line}: {field_}"


def _node(node: yaml.Node | None, field_: str) -> yaml.Node | None:
    """The node of a field's key, or of the nearest enclosing field when it is absent."""
    nearest = node
    for name in _STEP.findall(field_):
        if isinstance(node, yaml.SequenceNode) and name.isdecimal() and int(name) < len(node.value):
            nearest = node = node.value[int(name)]
            continue
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if key.value == name:
                nearest, node = key, value
                break
        else:
            break
    return nearest
