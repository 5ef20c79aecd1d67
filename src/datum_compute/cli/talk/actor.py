"""The user who runs the command, for the history of a workload. Entry point: `actor`."""

from datum_compute.cli.shell.run import Run
from datum_compute.kube.errors import ApiError
from datum_compute.kube.meta import Json, encode
from datum_compute.kube.transport import Call

_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def actor(run: Run) -> str:
    """A name for people to read, not a proof: the token is not verified. Empty if it is not known."""
    name = run.environment.environ.get("DATUM_COMPUTE_ACTOR", "")
    return name or claimed(run.project.transport.credentials.authorization()) or _reviewed(run)


def claimed(authorization: str) -> str:
    """The user named in the claims of a JSON Web Token; empty for other tokens."""
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return ""
    import base64
    import json

    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        claims = json.loads(base64.urlsafe_b64decode(padded))
    except ValueError:
        return ""
    if not isinstance(claims, dict):
        return ""
    return next((str(claims[name]) for name in ("email", "preferred_username", "sub") if claims.get(name)), "")


def _reviewed(run: Run) -> str:
    import json

    call = Call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=encode(_REVIEW))
    try:
        answer = run.project.transport.call(call)
        review: Json = json.loads(answer.body) if answer.code < 300 else {}
    except (ApiError, ValueError):
        return ""
    return str(((review.get("status") or {}).get("userInfo") or {}).get("username") or "")
