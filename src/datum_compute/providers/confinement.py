"""What an instance may do on the machine that runs it. Entry points: `container`, `pod`, and the constants.

One table for every provider that runs containers, so that they cannot drift apart.
"""

from datum_compute.kube.meta import Json

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""All that is left of root. With fewer, images that change their user at the start do not run."""

SECCOMP_PROFILE = "RuntimeDefault"


def pod() -> Json:
    """The `securityContext` of a Pod."""
    return {"seccompProfile": {"type": SECCOMP_PROFILE}}


def container() -> Json:
    """The `securityContext` of each of its containers."""
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
    }
