"""What an instance may do on its machine. Entry points: `host_config`, `security_context`, `pod_security_context`.

All providers that run containers use these settings, so that they cannot diverge. None gives a container files, devices
or namespaces of its machine.
"""

from datum_compute.kube.meta import Json

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""The capabilities that root keeps. With fewer, images that change their user at startup would not run."""

SECCOMP_PROFILE = "RuntimeDefault"


def pod_security_context() -> Json:
    """The `securityContext` of a Pod."""
    return {"seccompProfile": {"type": SECCOMP_PROFILE}}


def security_context() -> Json:
    """The `securityContext` of each container of a Pod."""
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
    }


def host_config() -> Json:
    """The part of `HostConfig` that confines a container of an engine, which applies its own seccomp profile."""
    return {
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
    }
