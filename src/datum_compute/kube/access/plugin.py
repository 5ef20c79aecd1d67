"""Programs that give credentials. Entry point: `ask`."""

import base64
import os
import re
import subprocess
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from datum_compute.kube.access.credentials import Issued
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, Plugin
from datum_compute.kube.meta import Json

_PERSON_SECONDS = 300.0  # for who has to sign in first, in a browser perhaps
_LONGEST_COMPLAINT = 400
_TOKEN = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*")  # any JSON web token


class _Status(Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Credential(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


def ask(plugin: Plugin, endpoint: Endpoint, *, interactive: bool, patience: float = 60.0) -> Issued:
    """Runs the program and takes what it prints. Raises `KubeconfigError` with what it complained about.

    `patience` is for a program that talks to nobody.
    """
    name = f'the credential plugin "{os.path.basename(plugin.command)}"'
    interactive = interactive and plugin.interactive_mode != "Never"
    if plugin.interactive_mode == "Always" and not interactive:
        raise KubeconfigError(f"{name} needs a person at a terminal (interactiveMode Always), and there is none")
    environ = {**os.environ, **dict(plugin.environ), "KUBERNETES_EXEC_INFO": _info(plugin, endpoint, interactive)}
    seconds = max(patience, _PERSON_SECONDS) if interactive else patience
    try:
        done = subprocess.run(
            [plugin.command, *plugin.args],
            env=environ,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise KubeconfigError(f"{name} gave nothing in {seconds:.0f} seconds; run it by hand to see why") from None
    except OSError as error:
        hint = f"; {' '.join(plugin.install_hint.split())}" if plugin.install_hint else ""
        raise KubeconfigError(f"{name} cannot be run: {error.strerror}{hint}") from None
    if done.returncode:
        said = _complaint(done.stderr or b"", done.stdout)
        raise KubeconfigError(f"{name} failed with code {done.returncode}{said}")
    return _issued(name, plugin, done.stdout)


def _info(plugin: Plugin, endpoint: Endpoint, interactive: bool) -> str:
    spec: Json = {"interactive": interactive}
    if plugin.provide_cluster_info:
        told: Json = {
            "server": endpoint.server,
            "tls-server-name": endpoint.server_name,
            "insecure-skip-tls-verify": endpoint.insecure,
            "certificate-authority-data": base64.b64encode(endpoint.ca_pem.encode()).decode(),
            "proxy-url": endpoint.proxy,
            "config": plugin.config,
        }
        spec["cluster"] = {key: value for key, value in told.items() if value}
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(info).decode()


def _issued(name: str, plugin: Plugin, output: bytes) -> Issued:
    try:
        credential = msgspec.json.decode(output, type=_Credential)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise KubeconfigError(f"{name} printed no ExecCredential") from None  # not what: it may be a secret
    if (credential.kind, credential.api_version) != ("ExecCredential", plugin.api_version):
        raise KubeconfigError(f"{name} printed no ExecCredential of {plugin.api_version}")
    status = credential.status or _Status()
    certificate, key = status.client_certificate_data, status.client_key_data
    if bool(certificate) != bool(key):
        raise KubeconfigError(f"{name} gave a client certificate without its key, or a key without its certificate")
    if not status.token and not certificate:
        raise KubeconfigError(f"{name} gave neither a token nor a client certificate")
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return Issued(status.token, certificate, key, expires)


def _complaint(errors: bytes, output: bytes) -> str:
    """What the program said, on one line and without a token that it may have said as well."""
    said = " ".join(errors.decode(errors="replace").split())
    try:
        status = msgspec.json.decode(output, type=_Credential).status or _Status()
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status()
    if status.token:
        said = said.replace(status.token, "…")
    said = _TOKEN.sub("…", said)
    return f": {said[:_LONGEST_COMPLAINT]}" if said else ""
