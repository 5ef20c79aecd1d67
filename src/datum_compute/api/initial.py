"""Conditions before any controller has written them. Entry point: `initial`."""

from datum_compute.kube.meta import Json


def initial(type_: str, status: str, reason: str, message: str) -> Json:
    """A condition for a schema default. It is dated 1970, so its age means nothing."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }
