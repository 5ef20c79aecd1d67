"""What a caller shows to a server, as it is now. Entry points: `Credentials`, `EndpointCredentials`.

Others rotate it under a program that runs: token files, certificate files, what a plugin gave for an hour. Nothing of
it is ever part of an error or a trace.
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
_NO_USE_SECONDS = 5.0  # a plugin that failed, or gave again what was refused, is not run again sooner
_UNUSABLE_SECONDS = 1.0  # a kubeconfig that cannot be read, perhaps half written, is not read again sooner


def is_token(text: str) -> bool:
    """Whether it can be one. Anything else must not get as far as a header, whose error would quote it."""
    return _TOKEN.fullmatch(text) is not None


class Credentials(Protocol):
    """Who is calling."""

    def authorization(self) -> str:
        """The value of the Authorization header; empty to send none."""
        ...

    def refused(self) -> bool:
        """Told that the server answered 401; true when there is something newer to try."""
        ...


class Shown(Struct, frozen=True):
    """Everything a server sees of its caller: a header, and the certificate of a connection with its key."""

    authorization: str = ""
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return "Shown()"


class Issued(Struct, frozen=True):
    """What a plugin gave; `expires` is None when it did not say."""

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires: datetime | None = None

    def __repr__(self) -> str:
        return "Issued()"


class EndpointCredentials:
    """The credentials of an endpoint. Files, the kubeconfig itself among them, are read again when they changed, a
    plugin is run again when what it gave has expired or was refused. May be shared between threads and by all
    transports that show the same.

    `interactive` allows a plugin to talk to the person at the terminal; without one it has `patience` seconds. Raises
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
        self._last = Shown()
        self._issued: Issued | None = None
        self._failure: KubeconfigError | None = None  # of the plugin's last run
        self._no_use_until = -math.inf

    def authorization(self) -> str:
        return self.shown().authorization

    def shown(self) -> Shown:
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
        """Whether `shown` answers at once; when not, it is for a thread of its own."""
        return self._configured.plugin is None or (self._issued is not None and self._valid(self._issued))

    def refused(self, shown: Shown | None = None) -> bool:
        """`shown` is what was refused, where several may be at once and the first of them renews it for all."""
        before = shown or self._last
        if self._kubeconfig is not None:
            self._kubeconfig.forget()
        configured = self._current()
        configured.forget()
        if configured.plugin is not None:
            with self._lock:
                if self._assembled() == before and self._monotonic() >= self._no_use_until:
                    self._run(configured.plugin)
                    if self._assembled() == before:
                        self._no_use_until = self._monotonic() + _NO_USE_SECONDS
        return self.shown() != before

    def _current(self) -> "_Configured":
        """What the kubeconfig says now; what it said before while it cannot be used."""
        endpoint = self._kubeconfig.newer() if self._kubeconfig is not None else None
        if endpoint is not None:
            if endpoint.plugin != self._configured.plugin:
                self._issued = None
            self._configured = _Configured(endpoint)
        return self._configured

    def _assembled(self) -> Shown:
        configured, issued = self._configured, self._issued or Issued()
        endpoint = configured.endpoint
        return Shown(
            self._authorization(configured, issued),
            endpoint.client_cert or configured.certificate.text() or issued.certificate,
            endpoint.client_key or configured.key.text() or issued.key,
        )

    def _authorization(self, configured: "_Configured", issued: Issued) -> str:
        endpoint = configured.endpoint
        if token := configured.file_token() or endpoint.token or issued.token:
            if not is_token(token):
                raise KubeconfigError(f"the token for {endpoint.server} is no token: it has spaces or odd characters")
            return f"Bearer {token}"
        if endpoint.username:
            return f"Basic {base64.b64encode(f'{endpoint.username}:{endpoint.password}'.encode()).decode()}"
        return ""

    def _run(self, plugin: Plugin) -> None:
        from datum_compute.kube.access.plugin import ask

        if self._failure is not None and self._monotonic() < self._no_use_until:
            raise self._failure
        try:
            issued = ask(plugin, self._configured.endpoint, interactive=self._interactive, patience=self._patience)
            named = f'the credential plugin "{os.path.basename(plugin.command)}"'
            if issued.token and not is_token(issued.token):
                raise KubeconfigError(f"{named} gave something that is no token")
            if not self._valid(issued):
                raise KubeconfigError(f"what {named} gave has already expired; check the clock of this machine")
            self._issued, self._failure = issued, None
        except KubeconfigError as error:
            self._failure, self._no_use_until = error, self._monotonic() + _NO_USE_SECONDS
            raise

    def _valid(self, issued: Issued) -> bool:
        return issued.expires is None or self._now() < issued.expires


class _Configured:
    """What one reading of a kubeconfig says about credentials, and the files that it names."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.token = _File(endpoint.token_file, "the token file")
        self.certificate = _File(endpoint.client_cert_file, "client-certificate")
        self.key = _File(endpoint.client_key_file, "client-key")
        known = endpoint.token or endpoint.token_file or endpoint.username
        self.plugin = None if known else endpoint.plugin

    def file_token(self) -> str:
        """What the file holds; when it cannot be had, a token that is known otherwise is as good."""
        try:
            token = self.token.text().strip()
            if token and not is_token(token):
                raise KubeconfigError(f"the token file {self.endpoint.token_file} holds something that is no token")
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
    """The kubeconfig that an endpoint came from: tokens and certificates inside it are rotated by replacing it."""

    def __init__(self, source: Source, monotonic: Callable[[], float]) -> None:
        self._source = source
        self._monotonic = monotonic
        self._versions = self._looked_at()
        self._not_before = -math.inf

    def newer(self) -> Endpoint | None:
        """What the files say, if they changed since the last time and can be used."""
        versions = self._looked_at()
        if versions == self._versions or self._monotonic() < self._not_before:
            return None
        try:
            endpoint = load(self._source.files, self._source.context)
        except KubeconfigError:
            self._not_before = self._monotonic() + _UNUSABLE_SECONDS
            return None
        self._versions = versions
        return endpoint

    def forget(self) -> None:
        """For a change that left no trace."""
        self._versions = ()

    def _looked_at(self) -> tuple[tuple[int, ...], ...]:
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
        """For a change that left no trace."""
        self._version = ()


def _version(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """Changes with the file; empty when it is not there, which reading it says in words."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size, found.st_ino
    return ()
