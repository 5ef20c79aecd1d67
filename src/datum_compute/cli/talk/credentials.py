"""Tokens from datumctl, which started this plugin. Entry point: `HelperToken`."""

import threading
from collections.abc import Mapping, Sequence

from datum_compute.cli.shell.environment import Clock
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.kube.access.credentials import is_token

_FRESH_SECONDS = 240.0  # tokens are short-lived; a long watch needs new ones


class HelperToken:
    """Runs `$DATUM_CREDENTIALS_HELPER auth get-token` for the first token, and when the last one is old or was refused.

    `timeout` is in seconds.
    """

    def __init__(self, environ: Mapping[str, str], clock: Clock, timeout: float) -> None:
        helper = environ.get("DATUM_CREDENTIALS_HELPER", "")
        if not helper:
            raise Failure("DATUM_CREDENTIALS_HELPER is not set; is this plugin running via datumctl?")
        session = environ.get("DATUM_SESSION", "")
        self._command = [helper, "auth", "get-token", *(["--session", session] if session else [])]
        self._environ = dict(environ)
        self._clock = clock
        self._timeout = timeout
        self._lock = threading.Lock()
        self._token = ""
        self._fetched_at = 0.0

    def authorization(self) -> str:
        with self._lock:
            if not self._token or self._clock.monotonic() - self._fetched_at >= _FRESH_SECONDS:
                self._fetch()
            return f"Bearer {self._token}"

    def renew(self) -> bool:
        with self._lock:
            before = self._token
            self._fetch()
            return self._token != before

    def _fetch(self) -> None:
        self._token = _output(self._command, self._environ, self._timeout)
        self._fetched_at = self._clock.monotonic()


def _output(command: Sequence[str], environ: Mapping[str, str], timeout: float) -> str:
    import shlex
    import subprocess

    from datum_compute.cli.show.durations import compact

    try:
        process = subprocess.run(
            command,
            env=dict(environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"getting credentials: {command[0]} gave no token in {compact(timeout)}; run it by hand to see why"
        raise Failure(text, Exit.NOT_ALLOWED, advice=shlex.join(command)) from None
    except OSError as error:
        raise Failure(f"getting credentials: {error}", Exit.NOT_ALLOWED) from None
    if process.returncode or not process.stdout.strip():
        message = " ".join(process.stderr.split()) or f"{command[0]} gave no token"
        raise Failure(f"getting credentials: {message}", Exit.NOT_ALLOWED)
    token = process.stdout.strip()
    if not is_token(token):  # not printed, because it may contain the token
        raise Failure(f"getting credentials: {command[0]} printed something that is not a token", Exit.NOT_ALLOWED)
    return token
