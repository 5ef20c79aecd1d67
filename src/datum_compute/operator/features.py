"""Feature gates: what can be switched on or off by name. Entry point: `gates`."""

NETWORKING_INTEGRATION = "NetworkingIntegration"
DEFAULTS = {NETWORKING_INTEGRATION: False}


class GateError(Exception):
    """One sentence on a gate that makes no sense."""


def gates(text: str) -> dict[str, bool]:
    """Every gate, as the defaults and `Name=true,Other=false` say; the last word on a name counts."""
    chosen = dict(DEFAULTS)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        if name not in DEFAULTS:
            raise GateError(f'feature gate "{name}" is not known; there is {", ".join(DEFAULTS)}')
        if not separator or value.lower() not in ("true", "false"):
            raise GateError(f'feature gate "{part}" needs a value: {name}=true or {name}=false')
        chosen[name] = value.lower() == "true"
    return chosen
