"""The current credentials of a caller. Entry points: `Credentials`, `EndpointCredentials`.

They change while a program runs: token and certificate files are rotated, and what a plugin issued expires. No part of
them is ever in an error or a trace.
"""

import base64
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

from msgspec import Struct

from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, Plugin, Source, load, text_of

_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can carry
_PLUGIN_PAUSE_SECONDS = 5.0  # before a plugin is run again that failed, or repeated what was refused
_KUBECONFIG_PAUSE_SECONDS = 1.0  # before a kubeconfig is read again that cannot be used, perhaps half written


def is_token(text: str) -> bool:
    """Whether a text can be a token. Anything else must not reach a header, whose error would quote it."""
    return _TOKEN.fullmatch(text) is not None


class Credentials(Protocol):
    """Who is calling."""

    def authorization(self) -> str:
        """The value of the Authorization header; empty to send none."""
        ...

    def renew(self) -> bool:
        """Called after a 401; true when there is a newer credential to try."""
        ...


class Credential(Struct, frozen=True):
    """What is presented to a server: a header, and a client certificate with its key."""

    authorization: str = ""
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return "Credential()"


class PluginCredential(Struct, frozen=True):
    """What a plugin issued; `expires` is None when it did not say."""

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires: datetime | None = None

    def __repr__(self) -> str:
        return "PluginCredential()"


class EndpointCredentials:
    """The credentials of an endpoint. Files, including the kubeconfig itself, are read again when they change; a plugin
    is run again when what it issued has expired or was refused. May be shared between threads and transports.

    `interactive` lets a plugin talk to the user at the terminal; otherwise it has `patience` seconds. Raises
    `KubeconfigError`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        interactive: bool = False,
        patience: float = 60.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configured = _Configured(endpoint)
        self._kubeconfig = _Kubeconfig(endpoint.source, monotonic) if endpoint.source is not None else None
        self._interactive = interactive
        self._patience = patience
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last = Credential()
        self._issued: PluginCredential | None = None
        self._failure: KubeconfigError | None = None  # of the plugin's last run
        self._plugin_pause_until = -math.inf

    def authorization(self) -> str:
        return self.current().authorization

    def current(self) -> Credential:
        """May run a plugin; see `ready`."""
        plugin = self._current().plugin
        if plugin is not None and not self.ready:
            with self._lock:
                if not self.ready:
                    self._run(plugin)
        self._last = self._assembled()
        return self._last

    @property
    def ready(self) -> bool:
        """Whether `current` returns at once; if not, call it in a thread."""
        return self._configured.plugin is None or (self._issued is not None and self._valid(self._issued))

    def renew(self, refused: Credential | None = None) -> bool:
        """`refused` is for concurrent callers: the first of them renews the credential for all."""
        before = refused or self._last
        if self._kubeconfig is not None:
            self._kubeconfig.forget()
        configured = self._current()
        configured.forget()
        if configured.plugin is not None:
            with self._lock:
                if self._assembled() == before and self._monotonic() >= self._plugin_pause_until:
                    self._run(configured.plugin)
                    if self._assembled() == before:
                        self._plugin_pause_until = self._monotonic() + _PLUGIN_PAUSE_SECONDS
        return self.current() != before

    def _current(self) -> "_Configured":
        """The latest usable content of the kubeconfig."""
        endpoint = self._kubeconfig.newer() if self._kubeconfig is not None else None
        if endpoint is not None:
            if endpoint.plugin != self._configured.plugin:
                self._issued = None
            self._configured = _Configured(endpoint)
        return self._configured

    def _assembled(self) -> Credential:
        configured, issued = self._configured, self._issued or PluginCredential()
        endpoint = configured.endpoint
        return Credential(
            self._authorization(configured, issued),
            endpoint.client_cert or configured.certificate.text() or issued.certificate,
            endpoint.client_key or configured.key.text() or issued.key,
        )

    def _authorization(self, configured: "_Configured", issued: PluginCredential) -> str:
        endpoint = configured.endpoint
        if token := configured.file_token() or endpoint.token or issued.token:
            if not is_token(token):
                raise KubeconfigError(f"the token for {endpoint.server} is invalid: it has spaces or odd characters")
            return f"Bearer {token}"
        if endpoint.username:
            return f"Basic {base64.b64encode(f'{endpoint.username}:{endpoint.password}'.encode()).decode()}"
        return ""

    def _run(self, plugin: Plugin) -> None:
        from datum_compute.kube.access.plugin import run

        if self._failure is not None and self._monotonic() < self._plugin_pause_until:
            raise self._failure
        try:
            issued = run(plugin, self._configured.endpoint, interactive=self._interactive, patience=self._patience)
            name = f'the credential plugin "{os.path.basename(plugin.command)}"'
            if issued.token and not is_token(issued.token):
                raise KubeconfigError(f"{name} printed something that is not a token")
            if not self._valid(issued):
                raise KubeconfigError(f"what {name} printed has already expired; check the clock of this machine")
            self._issued, self._failure = issued, None
        except KubeconfigError as error:
            self._failure, self._plugin_pause_until = error, self._monotonic() + _PLUGIN_PAUSE_SECONDS
            raise

    def _valid(self, issued: PluginCredential) -> bool:
        return issued.expires is None or self._now() < issued.expires


class _Configured:
    """The credentials in one version of a kubeconfig, and the files that it names."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.token = _File(endpoint.token_file, "the token file")
        self.certificate = _File(endpoint.client_cert_file, "client-certificate")
        self.key = _File(endpoint.client_key_file, "client-key")
        has_own = endpoint.token or endpoint.token_file or endpoint.username
        self.plugin = None if has_own else endpoint.plugin

    def file_token(self) -> str:
        """The content of the token file; empty when that cannot be read and there is another token."""
        try:
            token = self.token.text().strip()
            if token and not is_token(token):
                raise KubeconfigError(f"the token file {self.endpoint.token_file} does not contain a token")
        except KubeconfigError:
            if self.endpoint.token:
                return ""
            raise
        if self.endpoint.token_file and not token and not self.endpoint.token:
            raise KubeconfigError(f"the token file {self.endpoint.token_file} is empty")
        return token

    def forget(self) -> None:
        for file in (self.token, self.certificate, self.key):
            file.forget()


class _Kubeconfig:
    """The kubeconfig that an endpoint came from; tokens and certificates in it are rotated by replacing the file."""

    def __init__(self, source: Source, monotonic: Callable[[], float]) -> None:
        self._source = source
        self._monotonic = monotonic
        self._versions = self._stat_all()
        self._not_before = -math.inf

    def newer(self) -> Endpoint | None:
        """The endpoint from the files, if they have changed and can be used."""
        versions = self._stat_all()
        if versions == self._versions or self._monotonic() < self._not_before:
            return None
        try:
            endpoint = load(self._source.files, self._source.context)
        except KubeconfigError:
            self._not_before = self._monotonic() + _KUBECONFIG_PAUSE_SECONDS
            return None
        self._versions = versions
        return endpoint

    def forget(self) -> None:
        """For a change that the file's attributes do not show."""
        self._versions = ()

    def _stat_all(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_version(path) for path in self._source.files)


class _File:
    """The text of a file that others replace, read again when it has changed."""

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what
        self._version: tuple[int, ...] = ()
        self._text = ""

    def text(self) -> str:
        if not self._path:
            return ""
        version = _version(self._path)
        if not version or version != self._version:
            self._text, self._version = text_of(self._path, self._what), version
        return self._text

    def forget(self) -> None:
        """For a change that the file's attributes do not show."""
        self._version = ()


def _version(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """Changes with the file; empty when it is missing, which reading it reports."""
    with suppress(OSError):
        stat = os.stat(path)
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
    return ()
