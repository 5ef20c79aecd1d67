"""The phase in which following a plane failed, and what to check then. Entry points: `phase_of`, `advice`."""

from enum import Enum

from datum_compute.kube.client import Unreadable
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, Unauthorized, Unavailable
from datum_compute.kube.transport import NoCredentials, Untrusted


class Phase(Enum):
    """The steps towards a current cache, in order: a later failure has passed the earlier steps."""

    CONNECT = "connect"
    TLS = "TLS"
    AUTHENTICATION = "authentication"
    AUTHORIZATION = "authorization"
    LIST = "list"
    WATCH = "watch"
    DECODE = "decode"


def phase_of(error: ApiError, doing: Phase) -> Phase:
    """The phase in which a list or watch (`doing`) failed."""
    match error:
        case Untrusted():
            return Phase.TLS
        case Unauthorized() | NoCredentials():
            return Phase.AUTHENTICATION
        case Forbidden():
            return Phase.AUTHORIZATION
        case Unreadable():
            return Phase.DECODE
        case Unavailable(answered=False):
            return Phase.CONNECT
    return doing


def advice(error: ApiError, phase: Phase, resource: str, verbs: str = "list and watch") -> str:
    """What to check, for the log."""
    match phase:
        case Phase.CONNECT:
            return "check the server's address, that it runs, and the network and any proxy on the way"
        case Phase.TLS:
            return "check the certificate authority in the kubeconfig and the certificate of the server"
        case Phase.AUTHENTICATION:
            return "check that the token or client certificate in the kubeconfig is valid and has not expired"
        case Phase.AUTHORIZATION:
            return f"check that the role of this process may {verbs} {resource}"
        case Phase.DECODE:
            return f"check that the address is that of a Kubernetes API and that it serves {resource} as defined here"
        case Phase.LIST | Phase.WATCH if isinstance(error, NotFound):
            return f"check the path in the server's address, and that {resource} is installed there"
        case Phase.LIST:
            return "check the log of the server"
        case Phase.WATCH:
            return "check the log of the server, and that no proxy on the way ends or buffers long answers"
