"""Providers that run containers confine them alike."""

from datum_compute.kube.meta import Json
from datum_compute.providers import confinement

CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"]


def test_a_container_of_an_engine() -> None:
    assert confinement.host_config() == {
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "CapAdd": CAPABILITIES,
    }


def test_a_container_of_a_pod() -> None:
    assert confinement.security_context() == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": CAPABILITIES},
    }
    assert confinement.pod_security_context() == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_what_a_caller_does_with_its_settings_changes_nobody_elses() -> None:
    for settings in (confinement.host_config, confinement.security_context):
        changed: Json = settings()
        changed.clear()
        assert settings() != {}
        capabilities: list[str] = confinement.host_config()["CapAdd"]
        capabilities.clear()
    assert confinement.host_config()["CapAdd"] == CAPABILITIES
