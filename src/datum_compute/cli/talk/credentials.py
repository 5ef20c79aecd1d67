"""Tokens from the program that started this plugin. Entry point: `HelperToken`."""

import threading
from collections.abc import Mapping, Sequence

from datum_compute.cli.shell.environment import Clock
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.kube.access.credentials import is_token

_FRESH_SECONDS = 240.0  # tokens are short-lived; a command that watches for long needs a new one


class HelperToken:
    """Asks `$DATUM_CREDENTIALS_HELPER auth get-token` when a token is first needed, when it is old or was refused.

    `patience` is how many seconds it is given.
    """

    def __init__(self, environ: Mapping[str, str], clock: Clock, patience: float) -> None:
        helper = environ.get("DATUM_CREDENTIALS_HELPER", "")
        if not helper:
            raise Failure("DATUM_CREDENTIALS_HELPER is not set; is this plugin running via datumctl?")
        session = environ.get("DATUM_SESSION", "")
        self._command = [helper, "auth", "get-token", *(["--session", session] if session else [])]
        self._environ = dict(environ)
        self._clock = clock
        self._patience = patience
        self._lock = threading.Lock()
        self._token = ""
        self._asked_at = 0.0

    def authorization(self) -> str:
        with self._lock:
            if not self._token or self._clock.monotonic() - self._asked_at >= _FRESH_SECONDS:
                self._ask()
            return f"Bearer {self._token}"

    def renew(self) -> bool:
        with self._lock:
            before = self._token
            self._ask()
            return self._token != before

    def _ask(self) -> None:
        self._token = _output(self._command, self._environ, self._patience)
        self._asked_at = self._clock.monotonic()


def _output(command: Sequence[str], environ: Mapping[str, str], patience: float) -> str:
    import shlex
    import subprocess

    from datum_compute.cli.show.durations import compact

    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        told = f"getting credentials: {command[0]} gave no token in {compact(patience)}; run it by hand to see why"
        raise Failure(told, Exit.NOT_ALLOWED, advice=shlex.join(command)) from None
    except OSError as error:
        raise Failure(f"getting credentials: {error}", Exit.NOT_ALLOWED) from None
    if done.returncode or not done.stdout.strip():
        said = " ".join(done.stderr.split()) or f"{command[0]} gave no token"
        raise Failure(f"getting credentials: {said}", Exit.NOT_ALLOWED)
    token = done.stdout.strip()
    if not is_token(token):  # not what: it may hold the token
        raise Failure(f"getting credentials: {command[0]} gave something that is no token", Exit.NOT_ALLOWED)
    return token
