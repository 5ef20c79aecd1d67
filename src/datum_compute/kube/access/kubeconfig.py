"""Where a plane is and how to be let in, from and to kubeconfig files. Entry points: `load`, `Endpoint`,
`write_kubeconfig`.

Nothing here imports an HTTP library: one-shot commands use it as well.
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
from datum_compute.kube.files import write_private
from datum_compute.kube.meta import Json

if TYPE_CHECKING:
    import ssl


class KubeconfigError(Exception):
    """A kubeconfig that cannot be used as it is; the message says what to change."""


class Plugin(Struct, frozen=True):
    """A program that is asked for credentials by the protocol `client.authentication.k8s.io`."""

    command: str  # a name to be found in PATH, or a path
    api_version: str
    args: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    interactive_mode: str = "IfAvailable"  # or Never, Always
    install_hint: str = ""
    provide_cluster_info: bool = False
    config: Json = {}  # of the plugin, kept with the cluster

    def __repr__(self) -> str:  # arguments and variables may be secrets
        return f"Plugin({self.command!r})"


class Source(Struct, frozen=True):
    """The files and the context that an endpoint was read from."""

    files: tuple[Path, ...]
    context: str  # empty: the current one, whichever that is


class Endpoint(Struct, frozen=True):
    """One API root and what it takes to call it. Certificates and keys are PEM texts, or files that others rotate."""

    server: str
    ca_pem: str = ""  # empty: the certificates this machine trusts
    token: str = ""
    token_file: str = ""  # what it holds goes before `token`
    client_cert: str = ""
    client_key: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    username: str = ""
    password: str = ""
    plugin: Plugin | None = None
    server_name: str = ""  # that the certificate must be for, when it is not the host
    insecure: bool = False  # takes any certificate
    proxy: str = ""  # URL of the HTTP proxy all connections go through
    namespace: str = ""
    source: Source | None = None  # where newer credentials will be found

    def __repr__(self) -> str:  # credentials have no place in a log
        return f"Endpoint({self.server!r})"

    def tls(self) -> "ssl.SSLContext | None":
        """How to verify the server, with the client certificate as it is now; None for plain HTTP."""
        if not self.server.startswith("https:"):
            return None
        from datum_compute.kube.access.tls import ClientTls

        return ClientTls(self).context(
            self.client_cert or text_of(self.client_cert_file, "client-certificate"),
            self.client_key or text_of(self.client_key_file, "client-key"),
        )

    def at(self, template: str, **values: str) -> "Endpoint":
        """The same host and credentials at another place; `{name}` in the template is replaced by that value.

        A template that begins with a slash replaces the path, one that is a whole URL everything, and an empty one
        nothing.
        """
        if not template:
            return self
        place = template
        for name, value in values.items():
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value) or ".." in value:
                raise KubeconfigError(f'"{value}" cannot stand for {{{name}}} in the URL template {template}')
            place = place.replace(f"{{{name}}}", value)
        if unknown := re.search(r"\{[^}]*\}?", place):
            known = " and ".join(f"{{{name}}}" for name in values)
            raise KubeconfigError(f"the URL template {template} names {unknown[0]}; it may name {known}")
        if place.startswith("/"):
            parts = urlsplit(self.server)
            place = f"{parts.scheme}://{parts.netloc}{place}"
        elif not place.startswith(("https://", "http://")):
            raise KubeconfigError(f"the URL template {template} begins neither with a slash nor with https://")
        return replace(self, server=place.rstrip("/"))


def text_of(path: str, what: str) -> str:
    """The content of a file that a kubeconfig names; "" where it names none."""
    if not path:
        return ""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise KubeconfigError(f"{what} {path} is no file")  # reading a pipe or a device might never end
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise KubeconfigError(f"{what} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KubeconfigError(f"{what} {path} is not a text") from None
    except ValueError as error:
        raise KubeconfigError(f"{what} {path!r} cannot be read: {error}") from None


def load(paths: Sequence[Path], context: str = "") -> Endpoint:
    """The endpoint of a context, or of the current one. Of several files the first that names a thing wins."""
    endpoint = Kubeconfig.read(paths).endpoint(context)
    return replace(endpoint, source=Source(tuple(paths), context))


class _Entry(Struct, frozen=True):
    """One cluster, user or context; `called` says in errors which one it is."""

    value: Json
    file: Path
    called: str

    def wrong(self, field: str, why: str) -> KubeconfigError:
        return KubeconfigError(f"{field} of {self.called} in kubeconfig {self.file} {why}")

    def text(self, key: str) -> str:
        found = self.value.get(key) or ""
        if not isinstance(found, str):
            raise self.wrong(key, "is not text")
        return found

    def truth(self, key: str) -> bool:
        found = self.value.get(key) or False
        if not isinstance(found, bool):
            raise self.wrong(key, "is neither true nor false")
        return found

    def path(self, key: str) -> str:
        """A relative path is meant from the folder of the file that says it."""
        said = self.text(key)
        return str(self.file.resolve().parent / said) if said else ""

    def pem(self, key: str) -> str:
        """What `<key>-data` holds."""
        try:
            return base64.b64decode(self.text(f"{key}-data"), validate=True).decode("ascii")
        except (binascii.Error, ValueError):
            raise self.wrong(f"{key}-data", "is not base64 of a PEM text") from None


class Kubeconfig(Struct, frozen=True):
    """All files of a KUBECONFIG together."""

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
            raise KubeconfigError(f"{where} has no current context; name one of {_listed(self.contexts)}")
        if chosen not in self.contexts:
            raise KubeconfigError(f'{where} has no context "{chosen}"; it has {_listed(self.contexts)}')
        said = self.contexts[chosen]
        cluster = self._entry("cluster", self.clusters, said.get("cluster"), chosen)
        user = self._entry("user", self.users, said["user"], chosen) if said.get("user") else _Entry({}, Path(), "")
        server = cluster.text("server")
        if not server.startswith(("https://", "http://")):
            raise KubeconfigError(f'cluster "{said["cluster"]}" in {where} has no http:// or https:// server')
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
            insecure=cluster.truth("insecure-skip-tls-verify"),
            proxy=proxy,
            namespace=_Entry(said, self.files[0], f'context "{chosen}"').text("namespace"),
        )
        text_of(endpoint.client_cert_file, "client-certificate")  # what is not there is told now, not at the first call
        text_of(endpoint.client_key_file, "client-key")
        return endpoint

    def _entry(self, kind: str, entries: Mapping[str, _Entry], name: Any, context: str) -> _Entry:
        if not isinstance(name, str) or name not in entries:
            raise KubeconfigError(f'context "{context}" names {kind} "{name}", which no file has')
        return entries[name]


_PLUGIN_GROUP = "client.authentication.k8s.io"
_MODES = ("IfAvailable", "Never", "Always")


def _plugin(user: _Entry, cluster: _Entry) -> Plugin | None:
    said = user.value.get("exec")
    if not said:
        return None
    if not isinstance(said, dict):
        raise user.wrong("exec", "is not a mapping")
    inside = _Entry(said, user.file, f"exec of {user.called}")
    command, version = inside.text("command"), inside.text("apiVersion")
    if not command:
        raise inside.wrong("command", "is missing")
    if version not in (f"{_PLUGIN_GROUP}/v1", f"{_PLUGIN_GROUP}/v1beta1"):
        raise inside.wrong("apiVersion", f'is "{version}"; use {_PLUGIN_GROUP}/v1 or {_PLUGIN_GROUP}/v1beta1')
    mode = inside.text("interactiveMode") or ("" if version.endswith("/v1") else "IfAvailable")
    if mode not in _MODES:
        raise inside.wrong("interactiveMode", f'is "{mode}"; use one of {", ".join(_MODES)}')
    return Plugin(
        inside.path("command") if "/" in command else command,
        version,
        args=_texts(inside, "args"),
        environ=_variables(inside),
        interactive_mode=mode,
        install_hint=inside.text("installHint"),
        provide_cluster_info=inside.truth("provideClusterInfo"),
        config=_plugin_config(cluster),
    )


def _texts(entry: _Entry, key: str) -> tuple[str, ...]:
    found = entry.value.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise entry.wrong(key, "is not a list of texts")
    return tuple(found)


def _variables(entry: _Entry) -> tuple[tuple[str, str], ...]:
    found = entry.value.get("env") or []
    if not isinstance(found, list) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("value"), str)
        for item in found
    ):
        raise entry.wrong("env", "is not a list of name and value")
    return tuple((item["name"], item["value"]) for item in found)


def _plugin_config(cluster: _Entry) -> Json:
    """What the cluster holds for the plugin, under the extension of that name."""
    extensions = cluster.value.get("extensions") or []
    if not isinstance(extensions, list) or not all(isinstance(item, dict) for item in extensions):
        raise cluster.wrong("extensions", "are not a list of mappings")
    config = next((item.get("extension") for item in extensions if item.get("name") == _EXTENSION), None) or {}
    if not isinstance(config, dict):
        raise cluster.wrong(f'extension "{_EXTENSION}"', "is not a mapping")
    return config


_EXTENSION = f"{_PLUGIN_GROUP}/exec"


def write_kubeconfig(path: Path, contexts: Mapping[str, Endpoint], current: str) -> None:
    """Writes a file of mode 0600 with one context an endpoint, each with a cluster and a user of its own."""
    import yaml

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
    return _given({"cluster": name, "user": name, "namespace": endpoint.namespace})


def _cluster(endpoint: Endpoint) -> Json:
    return _given(
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
    return _given(
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
    return _given(
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


def _given(value: Json) -> Json:
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
        # Only the place: what stands there may be a credential.
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
