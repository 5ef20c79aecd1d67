"""Where a plane is and how to be let in, from and to kubeconfig files. Entry points: `load`, `Endpoint`,
`write_kubeconfig`.

Nothing here imports an HTTP library: one-shot commands use it as well.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from datum_compute.kube.files import write_private
from datum_compute.kube.meta import Json

if TYPE_CHECKING:
    import ssl


class KubeconfigError(Exception):
    """A kubeconfig that cannot be used as it is; the message says what to change."""


class Endpoint(Struct, frozen=True):
    """One API root and what it takes to call it. Certificates and keys are PEM texts."""

    server: str
    ca_pem: str = ""  # empty: the certificates this machine trusts
    token: str = ""
    token_file: str = ""  # read again and again, because others rotate it
    client_cert: str = ""
    client_key: str = ""
    server_name: str = ""  # that the certificate must be for, when it is not the host
    insecure: bool = False  # takes any certificate
    namespace: str = ""

    def __repr__(self) -> str:  # credentials have no place in a log
        return f"Endpoint({self.server!r})"

    def bearer(self) -> str:
        """The token as it is now; empty when there is none."""
        if not self.token_file:
            return self.token
        try:
            return Path(self.token_file).read_text("utf-8").strip()
        except OSError as error:
            raise KubeconfigError(f"the token file {self.token_file} cannot be read: {error.strerror}") from None

    def tls(self) -> "ssl.SSLContext | None":
        """How to verify the server and what to show it; None for plain HTTP."""
        if not self.server.startswith("https:"):
            return None
        from datum_compute.kube.tls import client_context

        return client_context(self)


def load(paths: Sequence[Path], context: str = "") -> Endpoint:
    """The endpoint of a context, or of the current one. Of several files the first that names a thing wins."""
    config = Kubeconfig.read(paths)
    return config.endpoint(context)


class _Entry(Struct, frozen=True):
    value: Json
    folder: Path  # that relative paths are meant from


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
            folder = path.resolve().parent
            for name, value in _named(path, content, "contexts", "context"):
                contexts.setdefault(name, value)
            for name, value in _named(path, content, "clusters", "cluster"):
                clusters.setdefault(name, _Entry(value, folder))
            for name, value in _named(path, content, "users", "user"):
                users.setdefault(name, _Entry(value, folder))
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
        user = self._entry("user", self.users, said["user"], chosen) if said.get("user") else _Entry({}, Path())
        server = _text(cluster.value, "server")
        if not server.startswith(("https://", "http://")):
            raise KubeconfigError(f'cluster "{said["cluster"]}" in {where} has no http:// or https:// server')
        if unknown := next((key for key in ("exec", "auth-provider") if key in user.value), ""):
            raise KubeconfigError(f'user "{said["user"]}" in {where} logs in with "{unknown}", which is not supported')
        token = _text(user.value, "token")
        token_file = _text(user.value, "tokenFile")
        return Endpoint(
            server.rstrip("/"),
            ca_pem=_pem(cluster, "certificate-authority"),
            token=token,
            token_file=str(user.folder / token_file) if token_file and not token else "",
            client_cert=_pem(user, "client-certificate"),
            client_key=_pem(user, "client-key"),
            server_name=_text(cluster.value, "tls-server-name"),
            insecure=cluster.value.get("insecure-skip-tls-verify") is True,
            namespace=_text(said, "namespace"),
        )

    def _entry(self, kind: str, entries: Mapping[str, _Entry], name: Any, context: str) -> _Entry:
        if name not in entries:
            raise KubeconfigError(f'context "{context}" names {kind} "{name}", which no file has')
        return entries[name]


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
        }
    )


def _user(endpoint: Endpoint) -> Json:
    return _given(
        {
            "token": endpoint.token,
            "tokenFile": endpoint.token_file,
            "client-certificate-data": _base64(endpoint.client_cert),
            "client-key-data": _base64(endpoint.client_key),
        }
    )


def _given(value: Json) -> Json:
    return {key: item for key, item in value.items() if item}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _content(path: Path) -> Json:
    import yaml

    try:
        content = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path} cannot be read: {error.strerror}") from None
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


def _text(value: Json, key: str) -> str:
    found = value.get(key) or ""
    if not isinstance(found, str):
        raise KubeconfigError(f"{key} in the kubeconfig is not text")
    return found


def _pem(entry: _Entry, key: str) -> str:
    """From `<key>-data`, else from the file that `<key>` names."""
    if data := _text(entry.value, f"{key}-data"):
        try:
            return base64.b64decode(data, validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError):
            raise KubeconfigError(f"{key}-data in the kubeconfig is not base64 of a PEM text") from None
    file = _text(entry.value, key)
    if not file:
        return ""
    path = entry.folder / file
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise KubeconfigError(f"{key} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KubeconfigError(f"{key} {path} is not a PEM text") from None


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "no context at all"
