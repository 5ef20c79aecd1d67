"""How a condition reads before any controller has written it. Entry point: `initial`."""

from datum_compute.kube.meta import Json


def initial(type_: str, status: str, reason: str, message: str) -> Json:
    """A condition for the default of a schema; dated 1970, so its time is no evidence of age."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }
