"""The config file of compute-manager. Entry points: `read`, `WorkloadOperator`.

Decoding is strict: a field that is unknown, or there twice, is an error, because what is misspelt would silently not
happen.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct, field

API_VERSION = "apiserver.config.datumapis.com/v1alpha1"
KIND = "WorkloadOperator"
PROJECT_URL = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane"

SINGLE = "single"
MILO = "milo"
KUBECONFIGS = "kubeconfigs"
MODES = (SINGLE, MILO, KUBECONFIGS)


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


class MetricsServer(_Part, frozen=True):
    secure_serving: bool = True
    bind_address: str = "0"
    tls: Tls = field(default_factory=Tls)


class WebhookServer(_Part, frozen=True):
    host: str = ""
    port: int = 9443
    tls: Tls = field(default_factory=Tls)
    client_ca_name: str = field(default="", name="clientCAName")


class Discovery(_Part, frozen=True):
    mode: str = SINGLE
    internal_service_discovery: bool = False
    discovery_kubeconfig_path: str = ""
    project_kubeconfig_path: str = ""
    quota_kubeconfig_path: str = ""
    cluster_name: str = ""
    project_url_template: str = field(default=PROJECT_URL, name="projectURLTemplate")
    kubeconfig_dir: str = ""


class WorkloadOperator(_Part, frozen=True):
    api_version: str
    kind: str
    metrics_server: MetricsServer = field(default_factory=MetricsServer)
    webhook_server: WebhookServer | None = None
    discovery: Discovery = field(default_factory=Discovery)


def read(path: Path) -> WorkloadOperator:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    return decoded(path, text)


def decoded(path: Path, text: bytes) -> WorkloadOperator:
    """`path` is only for the sentence that says what is wrong."""
    try:
        loader = _LOADER(text)
        try:
            node = loader.get_single_node()
            _refuse_keys(path, node)
            content = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
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


_UNKNOWN = re.compile(r"unknown field `(?P<name>.*?)`")
_MISSING = re.compile(r"missing required field `(?P<name>.*?)`")
_AT = re.compile(r" - at `\$(?P<path>.*)`$")


def _explained(path: Path, node: yaml.Node | None, message: str) -> str:
    """The decoder's word for what is wrong, with the line and the field as the file has it."""
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
    """The key of a field in the file; of one that is not there, the nearest above it."""
    found = node
    for name in filter(None, field_.split(".")):
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if key.value == name:
                found, node = key, value
                break
        else:
            break
    return found
