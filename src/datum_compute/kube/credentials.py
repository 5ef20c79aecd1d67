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

from datum_compute.kube.kubeconfig import Endpoint, KubeconfigError, Plugin, text_of

_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header can carry
_NO_USE_SECONDS = 5.0  # a plugin that failed, or gave again what was refused, is not run again sooner


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
    """The credentials of an endpoint. Files are read again when they changed, a plugin is run again when what it gave
    has expired or was refused. May be shared between threads and by all transports that show the same.

    `interactive` allows a plugin to talk to the person at the terminal. Raises `KubeconfigError`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        interactive: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._token = _File(endpoint.token_file, "the token file")
        self._certificate = _File(endpoint.client_cert_file, "client-certificate")
        self._key = _File(endpoint.client_key_file, "client-key")
        known = endpoint.token or endpoint.token_file or endpoint.username
        self._plugin = None if known else endpoint.plugin
        self._interactive = interactive
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
        if self._plugin is not None and not self.ready:
            with self._lock:
                if not self.ready:
                    self._run(self._plugin)
        self._last = self._assembled()
        return self._last

    @property
    def ready(self) -> bool:
        """Whether `shown` answers at once; when not, it is for a thread of its own."""
        return self._plugin is None or (self._issued is not None and self._valid(self._issued))

    def refused(self, shown: Shown | None = None) -> bool:
        """`shown` is what was refused, where several may be at once and the first of them renews it for all."""
        before = shown or self._last
        for file in (self._token, self._certificate, self._key):
            file.forget()
        if self._plugin is not None:
            with self._lock:
                if self._assembled() == before and self._monotonic() >= self._no_use_until:
                    self._run(self._plugin)
                    if self._assembled() == before:
                        self._no_use_until = self._monotonic() + _NO_USE_SECONDS
        return self.shown() != before

    def _assembled(self) -> Shown:
        endpoint, issued = self._endpoint, self._issued or Issued()
        return Shown(
            self._authorization(issued),
            endpoint.client_cert or self._certificate.text() or issued.certificate,
            endpoint.client_key or self._key.text() or issued.key,
        )

    def _authorization(self, issued: Issued) -> str:
        endpoint = self._endpoint
        if token := self._file_token() or endpoint.token or issued.token:
            if not is_token(token):
                raise KubeconfigError(f"the token for {endpoint.server} is no token: it has spaces or odd characters")
            return f"Bearer {token}"
        if endpoint.username:
            return f"Basic {base64.b64encode(f'{endpoint.username}:{endpoint.password}'.encode()).decode()}"
        return ""

    def _file_token(self) -> str:
        """What the file holds; when it cannot be had, a token that is known otherwise is as good."""
        try:
            token = self._token.text().strip()
            if token and not is_token(token):
                raise KubeconfigError(f"the token file {self._endpoint.token_file} holds something that is no token")
        except KubeconfigError:
            if self._endpoint.token:
                return ""
            raise
        if self._endpoint.token_file and not token and not self._endpoint.token:
            raise KubeconfigError(f"the token file {self._endpoint.token_file} is empty")
        return token

    def _run(self, plugin: Plugin) -> None:
        from datum_compute.kube.plugin import ask

        if self._failure is not None and self._monotonic() < self._no_use_until:
            raise self._failure
        try:
            issued = ask(plugin, self._endpoint, interactive=self._interactive)
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
        version: tuple[int, ...] = ()
        with suppress(OSError):  # whatever it is, reading says it in words
            found = os.stat(self._path)
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
        if not version or version != self._version:
            self._text, self._version = text_of(self._path, self._what), version
        return self._text

    def forget(self) -> None:
        """For a change that left no trace."""
        self._version = ()
