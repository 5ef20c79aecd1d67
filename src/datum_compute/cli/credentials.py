"""Tokens from the program that started this plugin. Entry point: `HelperToken`."""

import threading
from collections.abc import Mapping, Sequence

from datum_compute.cli.failures import Exit, Failure
from datum_compute.cli.surroundings import Clock
from datum_compute.kube.credentials import is_token

_FRESH_SECONDS = 240.0  # tokens are short-lived; a command that watches for long needs a new one
_HELPER_SECONDS = 60.0


class HelperToken:
    """Asks `$DATUM_CREDENTIALS_HELPER auth get-token` when a token is first needed, when it is old or was refused."""

    def __init__(self, environ: Mapping[str, str], clock: Clock) -> None:
        helper = environ.get("DATUM_CREDENTIALS_HELPER", "")
        if not helper:
            raise Failure("DATUM_CREDENTIALS_HELPER is not set; is this plugin running via datumctl?")
        session = environ.get("DATUM_SESSION", "")
        self._command = [helper, "auth", "get-token", *(["--session", session] if session else [])]
        self._environ = dict(environ)
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._asked_at = 0.0

    def authorization(self) -> str:
        with self._lock:
            if not self._token or self._clock.monotonic() - self._asked_at >= _FRESH_SECONDS:
                self._ask()
            return f"Bearer {self._token}"

    def refused(self) -> bool:
        with self._lock:
            before = self._token
            self._ask()
            return self._token != before

    def _ask(self) -> None:
        self._token = _output(self._command, self._environ)
        self._asked_at = self._clock.monotonic()


def _output(command: Sequence[str], environ: Mapping[str, str]) -> str:
    import subprocess

    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_HELPER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"getting credentials: {error}", Exit.NOT_ALLOWED) from None
    if done.returncode or not done.stdout.strip():
        said = " ".join(done.stderr.split()) or f"{command[0]} gave no token"
        raise Failure(f"getting credentials: {said}", Exit.NOT_ALLOWED)
    token = done.stdout.strip()
    if not is_token(token):  # not what: it may hold the token
        raise Failure(f"getting credentials: {command[0]} gave something that is no token", Exit.NOT_ALLOWED)
    return token
