"""Reads and writes kubeconfig files. Entry points: `load`, `Endpoint`, `write_kubeconfig`.

Nothing here imports an HTTP library, because one-shot commands use it as well.
"""

import base64
import binascii
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.kube import untrusted_yaml
from datum_compute.kube.meta import Json

if TYPE_CHECKING:
    import ssl


class KubeconfigError(Exception):
    """A kubeconfig that cannot be used as it is; the message says what to change."""


class UnknownContext(KubeconfigError):
    """The kubeconfig has no context of that name, or no current one."""


class Plugin(Struct, frozen=True):
    """A program that issues credentials by the protocol `client.authentication.k8s.io`."""

    command: str  # a name in PATH, or a path
    api_version: str
    args: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    interactive_mode: str = "IfAvailable"  # or Never, Always
    install_hint: str = ""
    provide_cluster_info: bool = False
    config: Json = {}  # for the plugin, from an extension of the cluster

    def __repr__(self) -> str:  # arguments and variables may be secrets
        return f"Plugin({self.command!r})"


class Source(Struct, frozen=True):
    """The files and the context that an endpoint was read from."""

    files: tuple[Path, ...]
    context: str  # empty: the current context, also when that changes


class Endpoint(Struct, frozen=True):
    """One API root and the credentials to call it. Certificates and keys are PEM texts, or files that are rotated."""

    server: str
    ca_pem: str = ""  # empty: the certificates this machine trusts
    token: str = ""
    token_file: str = ""  # its content takes precedence over `token`
    client_cert: str = ""
    client_key: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    username: str = ""
    password: str = ""
    plugin: Plugin | None = None
    server_name: str = ""  # that the certificate must have, where that is not the host
    insecure: bool = False  # accepts any certificate
    proxy: str = ""  # URL of the HTTP proxy for all connections
    namespace: str = ""
    source: Source | None = None  # where to look for newer credentials

    def __repr__(self) -> str:  # credentials must not be logged
        return f"Endpoint({self.server!r})"

    def tls(self) -> "ssl.SSLContext | None":
        """A context with the current client certificate; None for plain HTTP."""
        if not self.server.startswith("https:"):
            return None
        from datum_compute.kube.access.tls import ClientTls

        return ClientTls(self).context(
            self.client_cert or text_of(self.client_cert_file, "client-certificate"),
            self.client_key or text_of(self.client_key_file, "client-key"),
        )

    def at(self, template: str, **values: str) -> "Endpoint":
        """The same credentials at another URL; `{name}` in the template is replaced by that value.

        A template that begins with a slash replaces the path, a whole URL replaces everything, an empty one nothing.
        """
        if not template:
            return self
        url = template
        for name, value in values.items():
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value) or ".." in value:
                raise KubeconfigError(f'"{value}" cannot stand for {{{name}}} in the URL template {template}')
            url = url.replace(f"{{{name}}}", value)
        if unknown := re.search(r"\{[^}]*\}?", url):
            known = " and ".join(f"{{{name}}}" for name in values)
            raise KubeconfigError(f"the URL template {template} names {unknown[0]}; it may name {known}")
        if url.startswith("/"):
            parts = urlsplit(self.server)
            url = f"{parts.scheme}://{parts.netloc}{url}"
        elif not url.startswith(("https://", "http://")):
            raise KubeconfigError(f"the URL template {template} begins neither with a slash nor with https://")
        return replace(self, server=url.rstrip("/"))


def text_of(path: str, what: str) -> str:
    """The content of a file that a kubeconfig names; "" for no path."""
    if not path:
        return ""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise KubeconfigError(f"{what} {path} is not a file")  # reading a pipe or a device might never end
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise KubeconfigError(f"{what} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KubeconfigError(f"{what} {path} is not a text") from None
    except ValueError as error:
        raise KubeconfigError(f"{what} {path!r} cannot be read: {error}") from None


def load(paths: Sequence[Path], context: str = "") -> Endpoint:
    """The endpoint of a context, or of the current one. If several files define the same entry, the first wins."""
    endpoint = Kubeconfig.read(paths).endpoint(context)
    return replace(endpoint, source=Source(tuple(paths), context))


class _Entry(Struct, frozen=True):
    """One cluster, user or context; `title` names it in errors."""

    value: Json
    file: Path
    title: str

    def wrong(self, field: str, why: str) -> KubeconfigError:
        return KubeconfigError(f"{field} of {self.title} in kubeconfig {self.file} {why}")

    def text(self, key: str) -> str:
        value = self.value.get(key) or ""
        if not isinstance(value, str):
            raise self.wrong(key, "is not text")
        return value

    def flag(self, key: str) -> bool:
        value = self.value.get(key) or False
        if not isinstance(value, bool):
            raise self.wrong(key, "is neither true nor false")
        return value

    def path(self, key: str) -> str:
        """A path, relative to the folder of the kubeconfig."""
        path = self.text(key)
        return str(self.file.resolve().parent / path) if path else ""

    def pem(self, key: str) -> str:
        """The decoded value of `<key>-data`."""
        try:
            return base64.b64decode(self.text(f"{key}-data"), validate=True).decode("ascii")
        except (binascii.Error, ValueError):
            raise self.wrong(f"{key}-data", "is not base64 of a PEM text") from None


class Kubeconfig(Struct, frozen=True):
    """The merged content of all files in KUBECONFIG."""

    files: tuple[Path, ...]
    current: str
    contexts: dict[str, Json]
    clusters: dict[str, _Entry]
    users: dict[str, _Entry]

    @classmethod
    def read(cls, paths: Sequence[Path]) -> "Kubeconfig":
        current = ""
        contexts: dict[str, Json] = {}
        clusters: dict[str, _Entry] = {}
        users: dict[str, _Entry] = {}
        for path in paths:
            content = _content(path)
            current = current or str(content.get("current-context") or "")
            for name, value in _named(path, content, "contexts", "context"):
                contexts.setdefault(name, value)
            for name, value in _named(path, content, "clusters", "cluster"):
                clusters.setdefault(name, _Entry(value, path, f'cluster "{name}"'))
            for name, value in _named(path, content, "users", "user"):
                users.setdefault(name, _Entry(value, path, f'user "{name}"'))
        return cls(tuple(paths), current, contexts, clusters, users)

    def endpoint(self, context: str = "") -> Endpoint:
        where = " and ".join(map(str, self.files))
        chosen = context or self.current
        if not chosen:
            raise UnknownContext(f"{where} has no current context; name one of {_listed(self.contexts)}")
        if chosen not in self.contexts:
            raise UnknownContext(f'{where} has no context "{chosen}"; it has {_listed(self.contexts)}')
        names = self.contexts[chosen]
        cluster = self._entry("cluster", self.clusters, names.get("cluster"), chosen)
        user = self._entry("user", self.users, names["user"], chosen) if names.get("user") else _Entry({}, Path(), "")
        server = cluster.text("server")
        if not server.startswith(("https://", "http://")):
            raise KubeconfigError(f'cluster "{names["cluster"]}" in {where} has no http:// or https:// server')
        proxy = cluster.text("proxy-url")
        if proxy and not proxy.startswith(("https://", "http://")):
            raise cluster.wrong("proxy-url", "is not an http:// or https:// address, and others are not supported")
        for key in ("auth-provider", "as"):
            if user.value.get(key):
                raise user.wrong(f'"{key}"', "is not supported")
        certificate, key_pem = user.pem("client-certificate"), user.pem("client-key")
        endpoint = Endpoint(
            server.rstrip("/"),
            ca_pem=cluster.pem("certificate-authority")
            or text_of(cluster.path("certificate-authority"), "certificate-authority"),
            token=user.text("token"),
            token_file=user.path("tokenFile"),
            client_cert=certificate,
            client_key=key_pem,
            client_cert_file="" if certificate else user.path("client-certificate"),
            client_key_file="" if key_pem else user.path("client-key"),
            username=user.text("username"),
            password=user.text("password"),
            plugin=_plugin(user, cluster),
            server_name=cluster.text("tls-server-name"),
            insecure=cluster.flag("insecure-skip-tls-verify"),
            proxy=proxy,
            namespace=_Entry(names, self.files[0], f'context "{chosen}"').text("namespace"),
        )
        text_of(endpoint.client_cert_file, "client-certificate")  # reports a missing file now, not at the first call
        text_of(endpoint.client_key_file, "client-key")
        return endpoint

    def _entry(self, kind: str, entries: Mapping[str, _Entry], name: Any, context: str) -> _Entry:
        if not isinstance(name, str) or name not in entries:
            raise KubeconfigError(f'context "{context}" names {kind} "{name}", which no file has')
        return entries[name]


_PLUGIN_GROUP = "client.authentication.k8s.io"
_MODES = ("IfAvailable", "Never", "Always")


def _plugin(user: _Entry, cluster: _Entry) -> Plugin | None:
    value = user.value.get("exec")
    if not value:
        return None
    if not isinstance(value, dict):
        raise user.wrong("exec", "is not a mapping")
    entry = _Entry(value, user.file, f"exec of {user.title}")
    command, version = entry.text("command"), entry.text("apiVersion")
    if not command:
        raise entry.wrong("command", "is missing")
    if version not in (f"{_PLUGIN_GROUP}/v1", f"{_PLUGIN_GROUP}/v1beta1"):
        raise entry.wrong("apiVersion", f'is "{version}"; use {_PLUGIN_GROUP}/v1 or {_PLUGIN_GROUP}/v1beta1')
    mode = entry.text("interactiveMode") or ("" if version.endswith("/v1") else "IfAvailable")
    if mode not in _MODES:
        raise entry.wrong("interactiveMode", f'is "{mode}"; use one of {", ".join(_MODES)}')
    return Plugin(
        entry.path("command") if "/" in command else command,
        version,
        args=_texts(entry, "args"),
        environ=_variables(entry),
        interactive_mode=mode,
        install_hint=entry.text("installHint"),
        provide_cluster_info=entry.flag("provideClusterInfo"),
        config=_plugin_config(cluster),
    )


def _texts(entry: _Entry, key: str) -> tuple[str, ...]:
    values = entry.value.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise entry.wrong(key, "is not a list of texts")
    return tuple(values)


def _variables(entry: _Entry) -> tuple[tuple[str, str], ...]:
    items = entry.value.get("env") or []
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("value"), str)
        for item in items
    ):
        raise entry.wrong("env", "is not a list of name and value")
    return tuple((item["name"], item["value"]) for item in items)


def _plugin_config(cluster: _Entry) -> Json:
    """The cluster's configuration for the plugin, from the extension of that name."""
    extensions = cluster.value.get("extensions") or []
    if not isinstance(extensions, list) or not all(isinstance(item, dict) for item in extensions):
        raise cluster.wrong("extensions", "are not a list of mappings")
    config = next((item.get("extension") for item in extensions if item.get("name") == _EXTENSION), None) or {}
    if not isinstance(config, dict):
        raise cluster.wrong(f'extension "{_EXTENSION}"', "is not a mapping")
    return config


_EXTENSION = f"{_PLUGIN_GROUP}/exec"


def write_kubeconfig(path: Path, contexts: Mapping[str, Endpoint], current: str) -> None:
    """Writes a file of mode 0600 with one context, cluster and user per endpoint."""
    import yaml

    from datum_compute.kube.files import write_private

    if current not in contexts:
        raise ValueError(f'the current context "{current}" is not among {_listed(contexts)}')
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "contexts": [{"name": name, "context": _context(name, endpoint)} for name, endpoint in contexts.items()],
        "clusters": [{"name": name, "cluster": _cluster(endpoint)} for name, endpoint in contexts.items()],
        "users": [{"name": name, "user": _user(endpoint)} for name, endpoint in contexts.items()],
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False, width=2**20).encode())


def _context(name: str, endpoint: Endpoint) -> Json:
    return _non_empty({"cluster": name, "user": name, "namespace": endpoint.namespace})


def _cluster(endpoint: Endpoint) -> Json:
    return _non_empty(
        {
            "server": endpoint.server,
            "certificate-authority-data": _base64(endpoint.ca_pem),
            "tls-server-name": endpoint.server_name,
            "insecure-skip-tls-verify": endpoint.insecure,
            "proxy-url": endpoint.proxy,
            "extensions": [{"name": _EXTENSION, "extension": endpoint.plugin.config}]
            if endpoint.plugin and endpoint.plugin.config
            else [],
        }
    )


def _user(endpoint: Endpoint) -> Json:
    return _non_empty(
        {
            "token": endpoint.token,
            "tokenFile": endpoint.token_file,
            "client-certificate-data": _base64(endpoint.client_cert),
            "client-key-data": _base64(endpoint.client_key),
            "client-certificate": endpoint.client_cert_file,
            "client-key": endpoint.client_key_file,
            "username": endpoint.username,
            "password": endpoint.password,
            "exec": _exec(endpoint.plugin) if endpoint.plugin else {},
        }
    )


def _exec(plugin: Plugin) -> Json:
    return _non_empty(
        {
            "apiVersion": plugin.api_version,
            "command": plugin.command,
            "args": list(plugin.args),
            "env": [{"name": name, "value": value} for name, value in plugin.environ],
            "interactiveMode": plugin.interactive_mode,
            "installHint": plugin.install_hint,
            "provideClusterInfo": plugin.provide_cluster_info,
        }
    )


def _non_empty(value: Json) -> Json:
    return {key: item for key, item in value.items() if item}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _content(path: Path) -> Json:
    import yaml

    try:
        text = path.read_bytes()
        untrusted_yaml.check(text)
        with untrusted_yaml.building():
            content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path} cannot be read: {error.strerror}") from None
    except untrusted_yaml.TooMuch as error:
        raise KubeconfigError(f"kubeconfig {path} is {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        # Only the line number: the text itself may be a credential.
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark else ""
        raise KubeconfigError(f"kubeconfig {path} is not YAML{place}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise KubeconfigError(f"kubeconfig {path} is not a mapping")
    return content


def _named(path: Path, content: Json, plural: str, singular: str) -> list[tuple[str, Json]]:
    entries = content.get(plural) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise KubeconfigError(f"{plural} of kubeconfig {path} are not a list of mappings")
    named = [(str(entry.get("name") or ""), entry.get(singular) or {}) for entry in entries]
    if not all(isinstance(value, dict) for _, value in named):
        raise KubeconfigError(f"{plural} of kubeconfig {path} are not a list of mappings")
    return named


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "no context at all"
