"""API calls as -v shows them, without values that may be secret. Entry points: `trace`, `redacted`."""

from collections.abc import Callable
from typing import Any

import msgspec

from datum_compute.cli.talk.redaction import HIDDEN, masked
from datum_compute.kube.blocking import Exchange

_LOGS = "/apis/o11y.miloapis.com/"  # whose answers have whatever instances write
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trace(level: int, write: Callable[[str], None]) -> Callable[[Exchange], None] | None:
    """Writes one line per call and, from level 2, its bodies; None at level 0."""
    if level < 1:
        return None

    def show(exchange: Exchange) -> None:
        call = exchange.call
        query = f"?{'&'.join(f'{key}={value}' for key, value in call.query.items())}" if call.query else ""
        outcome = masked(exchange.error) or exchange.code
        write(f"{call.method} {call.path}{query} {outcome} {exchange.seconds * 1000:.0f}ms")
        if level > 1:
            for arrow, body in ((">", call.body), ("<", exchange.body)):
                if body:
                    write(f"  {arrow} {f'({len(body)} bytes)' if _LOGS in call.path else redacted(body)}")

    return show


def redacted(body: bytes) -> str:
    """A JSON body without the values of variables, Secrets and ConfigMaps; of other bodies only the length."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"({len(body)} bytes)"
    return masked(msgspec.json.encode(_without_secrets(value)).decode())


def _without_secrets(value: Any) -> Any:
    match value:
        case {"kind": "Secret" | "ConfigMap"}:  # the history of a workload is a ConfigMap
            hidden = {key: _masked(value[key]) for key in ("data", "stringData") if key in value}
            return {key: _without_secrets(item) for key, item in value.items() if key not in hidden} | hidden
        case dict():
            return {key: _field(key, item) for key, item in value.items()}
        case list():
            return [_without_secrets(item) for item in value]
    return value


def _field(key: str, item: Any) -> Any:
    if key == _LAST_APPLIED:
        return HIDDEN  # a copy of the whole object
    if key == "env" and isinstance(item, list):
        return [_variable(variable) for variable in item]
    return _without_secrets(item)


def _variable(variable: Any) -> Any:
    return variable | {"value": HIDDEN} if isinstance(variable, dict) and "value" in variable else variable


def _masked(values: Any) -> Any:
    return dict.fromkeys(values, HIDDEN) if isinstance(values, dict) else HIDDEN
