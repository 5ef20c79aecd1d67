"""What an instance may do on its machine. Entry points: `container`, `pod`, and the constants.

All providers that run containers use these settings, so that they cannot diverge.
"""

from datum_compute.kube.meta import Json

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""The capabilities that root keeps. With fewer, images that change their user at startup would not run."""

SECCOMP_PROFILE = "RuntimeDefault"


def pod() -> Json:
    """The `securityContext` of a Pod."""
    return {"seccompProfile": {"type": SECCOMP_PROFILE}}


def container() -> Json:
    """The `securityContext` of each container."""
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
    }
