"""Credential plugins. Entry point: `run`."""

import base64
import os
import re
import subprocess
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from datum_compute.kube.access.credentials import PluginCredential
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, Plugin
from datum_compute.kube.meta import Json

_SIGN_IN_SECONDS = 300.0  # for a user who may have to sign in first, perhaps in a browser
_LONGEST_OUTPUT = 400
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


def run(plugin: Plugin, endpoint: Endpoint, *, interactive: bool, patience: float = 60.0) -> PluginCredential:
    """Runs the program and reads what it prints. Raises `KubeconfigError` with its error output.

    `patience` is the time limit for a program that does not talk to the user.
    """
    name = f'the credential plugin "{os.path.basename(plugin.command)}"'
    interactive = interactive and plugin.interactive_mode != "Never"
    if plugin.interactive_mode == "Always" and not interactive:
        raise KubeconfigError(f"{name} needs a user at a terminal (interactiveMode Always), and there is none")
    environ = {**os.environ, **dict(plugin.environ), "KUBERNETES_EXEC_INFO": _info(plugin, endpoint, interactive)}
    seconds = max(patience, _SIGN_IN_SECONDS) if interactive else patience
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
        raise KubeconfigError(f"{name} printed nothing in {seconds:.0f} seconds; run it by hand to see why") from None
    except OSError as error:
        hint = f"; {' '.join(plugin.install_hint.split())}" if plugin.install_hint else ""
        raise KubeconfigError(f"{name} cannot be run: {error.strerror}{hint}") from None
    if done.returncode:
        output = _error_output(done.stderr or b"", done.stdout)
        raise KubeconfigError(f"{name} failed with code {done.returncode}{output}")
    return _issued(name, plugin, done.stdout)


def _info(plugin: Plugin, endpoint: Endpoint, interactive: bool) -> str:
    spec: Json = {"interactive": interactive}
    if plugin.provide_cluster_info:
        cluster: Json = {
            "server": endpoint.server,
            "tls-server-name": endpoint.server_name,
            "insecure-skip-tls-verify": endpoint.insecure,
            "certificate-authority-data": base64.b64encode(endpoint.ca_pem.encode()).decode(),
            "proxy-url": endpoint.proxy,
            "config": plugin.config,
        }
        spec["cluster"] = {key: value for key, value in cluster.items() if value}
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return msgspec.json.encode(info).decode()


def _issued(name: str, plugin: Plugin, output: bytes) -> PluginCredential:
    try:
        credential = msgspec.json.decode(output, type=_Credential)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise KubeconfigError(f"{name} printed no ExecCredential") from None  # the output may be a secret
    if (credential.kind, credential.api_version) != ("ExecCredential", plugin.api_version):
        raise KubeconfigError(f"{name} printed no ExecCredential of {plugin.api_version}")
    status = credential.status or _Status()
    certificate, key = status.client_certificate_data, status.client_key_data
    if bool(certificate) != bool(key):
        raise KubeconfigError(f"{name} printed a client certificate without its key, or a key without its certificate")
    if not status.token and not certificate:
        raise KubeconfigError(f"{name} printed neither a token nor a client certificate")
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return PluginCredential(status.token, certificate, key, expires)


def _error_output(errors: bytes, output: bytes) -> str:
    """The program's error output on one line, without any token that is in it."""
    text = " ".join(errors.decode(errors="replace").split())
    try:
        status = msgspec.json.decode(output, type=_Credential).status or _Status()
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status()
    if status.token:
        text = text.replace(status.token, "…")
    text = _TOKEN.sub("…", text)
    return f": {text[:_LONGEST_OUTPUT]}" if text else ""
