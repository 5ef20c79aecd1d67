"""The containers for an Instance."""

from typing import Any

import msgspec
import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.federation.identity import Identity
from datum_compute.kube.meta import Json, encode
from datum_compute.providers.containers.shape import Owner, Shape, Unmappable, shape_of
from datum_compute.providers.engine.interface import EngineInfo

UID = "0f9c7d3e-1111-4222-8333-444455556666"
OWNER = Owner("abcdef0123456789abcdef0123456789", "/home/user/.compute")
DOCKER = EngineInfo(
    product="Docker", version="29.3.0", api="1.44", address="unix:///run/docker.sock", cpus=4,
    limits_memory=True, limits_cpu=True, limits_processes=True,
)  # fmt: skip
PODMAN = msgspec.structs.replace(DOCKER, product="Podman", version="4.3.1", api="1.41")
D1 = {"instanceType": "datumcloud/d1-standard-2"}
LABELS = {
    "compute.datumapis.com/workload-name": "api",
    "compute.datumapis.com/placement-name": "default",
    "compute.datumapis.com/city-code": "DFW",
    "app": "web",
}
OURS = {
    "compute.datumapis.com/local": "abcdef0123456789abcdef0123456789",
    "compute.datumapis.com/local-directory": "/home/user/.compute",
    "compute.datumapis.com/project": "demo",
    "compute.datumapis.com/namespace": "default",
    "compute.datumapis.com/city": "DFW",
    "compute.datumapis.com/workload-name": "api",
    "compute.datumapis.com/placement-name": "default",
    "compute.datumapis.com/instance": "api-default-dfw-0",
    "compute.datumapis.com/instance-uid": UID,
    "compute.datumapis.com/container": "web",
    "compute.datumapis.com/template-hash": "0123456789",
}


def instance(*containers: Json, resources: Json = D1, sandbox: Json | None = None, **also: Any) -> Instance:
    body = INSTANCE.body("api-default-dfw-0", "ns-1", labels=LABELS, uid=UID)
    merged = [{"name": "web", "image": "registry.example/hello:1"} | container for container in containers or ({},)]
    spec: Json = {
        "runtime": {"resources": resources, "sandbox": {"containers": merged} | (sandbox or {})},
        "networkInterfaces": [{"network": {"name": "default"}}],
        "controller": {"templateHash": "0123456789"},
    } | also
    return INSTANCE.decode(encode(body | {"spec": spec}))


def shape(*containers: Json, info: EngineInfo = DOCKER, **also: Any) -> Shape:
    made = shape_of(instance(*containers, **also), Identity("demo", "default"), OWNER, info)
    assert isinstance(made, Shape), made
    return made


def body(container: Json, info: EngineInfo = DOCKER, **also: Any) -> Json:
    return shape(container, info=info, **also).body(0, "")


def obstacle(*containers: Json, **also: Any) -> str:
    made = shape_of(instance(*containers, **also), Identity("demo", "default"), OWNER, DOCKER)
    assert isinstance(made, Unmappable)
    return made.sentence


def test_the_smallest_instance() -> None:
    made = shape()
    assert [container.name for container in made.containers] == ["datum-abcdef01-demo-api-default-dfw-0-0f9c7d3e"]
    assert made.network == "datum-abcdef01-dfw"
    assert made.body(0, "") == {
        "Image": "registry.example/hello:1",
        "Hostname": "api-default-dfw-0",
        "Labels": OURS,
        "Env": [],
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": 10,
        "NetworkingConfig": {"EndpointsConfig": {"datum-abcdef01-dfw": {}}},
        "HostConfig": {
            "NetworkMode": "datum-abcdef01-dfw",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}},
            "NanoCpus": 1_000_000_000,
            "Memory": 2048 * 1024 * 1024,
            "MemorySwap": 2048 * 1024 * 1024,
            "PidsLimit": 512,
            "Privileged": False,
            "SecurityOpt": ["no-new-privileges"],
            "CapDrop": ["ALL"],
            "CapAdd": [
                *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"),
                *("KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"),
            ],
        },
    }


def test_a_full_instance_of_two_containers() -> None:
    web = {
        "command": ["/bin/web"],
        "args": ["--port", "$(PORT)"],
        "workingDir": "/srv",
        "env": [{"name": "PORT", "value": "8080"}, {"name": "URL", "value": "http://$(HOST):$(PORT)"}],
        "ports": [{"name": "http", "port": 8080}],
    }
    helper = {"name": "helper", "image": "helper", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}
    made = shape(web, helper)
    assert made.ports == ("8080/tcp", "53/udp")
    first, second = made.body(0, ""), made.body(1, "id-of-the-first")
    assert {key: first[key] for key in ("Entrypoint", "Cmd", "WorkingDir", "Env", "ExposedPorts")} == {
        "Entrypoint": ["/bin/web"],
        "Cmd": ["--port", "8080"],
        "WorkingDir": "/srv",
        "Env": ["PORT=8080", "URL=http://$(HOST):8080"],
        "ExposedPorts": {"8080/tcp": {}, "53/udp": {}},
    }
    anywhere = [{"HostIp": "127.0.0.1", "HostPort": "0"}]
    assert first["HostConfig"]["PortBindings"] == {"8080/tcp": anywhere, "53/udp": anywhere}
    limits = {"NanoCpus": 500_000_000, "Memory": 1024 * 1024 * 1024, "MemorySwap": 1024 * 1024 * 1024, "PidsLimit": 512}
    assert first["HostConfig"].items() >= limits.items()
    assert made.containers[1].name == "datum-abcdef01-demo-api-default-dfw-0-0f9c7d3e.helper"
    assert second == {
        "Image": "helper",
        "Labels": OURS | {"compute.datumapis.com/container": "helper"},
        "Env": [],
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": 10,
        "HostConfig": {
            "NetworkMode": "container:id-of-the-first",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}},
            "Privileged": False,
            "SecurityOpt": ["no-new-privileges"],
            "CapDrop": ["ALL"],
            "CapAdd": first["HostConfig"]["CapAdd"],
        }
        | limits,
    }


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({}, {}),
        ({"command": ["sh"]}, {"Entrypoint": ["sh"], "Cmd": []}),
        ({"args": ["-v"]}, {"Cmd": ["-v"]}),
        ({"command": ["sh"], "args": ["-c", "true"]}, {"Entrypoint": ["sh"], "Cmd": ["-c", "true"]}),
    ],
)
def test_without_a_command_the_image_decides(container: Json, expected: Json) -> None:
    made = body(container)
    assert {key: made[key] for key in ("Entrypoint", "Cmd") if key in made} == expected


def test_a_command_may_refer_to_variables() -> None:
    made = body(
        {
            "command": ["$(SHELL)", "$$(SHELL)"],
            "args": ["$(LATE)"],
            "env": [{"name": "SHELL", "value": "/bin/sh"}, {"name": "EARLY", "value": "$(LATE)"},
                    {"name": "LATE", "value": "x"}],
        }
    )  # fmt: skip
    assert (made["Entrypoint"], made["Cmd"]) == (["/bin/sh", "$(SHELL)"], ["x"])
    assert made["Env"] == ["SHELL=/bin/sh", "EARLY=$(LATE)", "LATE=x"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"fieldRef": {"fieldPath": "metadata.name"}}, "api-default-dfw-0"),
        ({"fieldRef": {"fieldPath": "metadata.uid"}}, UID),
        ({"fieldRef": {"fieldPath": "metadata.labels['app']"}}, "web"),
        ({"fieldRef": {"fieldPath": "metadata.labels['compute.datumapis.com/city-code']"}}, "DFW"),
        ({"fieldRef": {"fieldPath": "metadata.labels['absent']"}}, ""),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "1"),
        ({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}, "1000"),
        ({"resourceFieldRef": {"resource": "limits.memory"}}, str(2048 * 1024 * 1024)),
        ({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi", "containerName": "web"}}, "2048"),
        ({"resourceFieldRef": {"resource": "limits.memory", "divisor": "3Gi"}}, "1"),
    ],
)
def test_a_variable_may_come_from_the_instance(source: Json, expected: str) -> None:
    made = body({"env": [{"name": "A", "valueFrom": source}, {"name": "B", "value": "<$(A)>"}]})
    assert made["Env"] == [f"A={expected}", f"B=<{expected}>"]


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, {"NanoCpus": 1_000_000_000, "Memory": 2**31, "MemorySwap": 2**31, "PidsLimit": 512}),
        ({"limits_cpu": False}, {"Memory": 2**31, "MemorySwap": 2**31, "PidsLimit": 512}),
        ({"limits_memory": False, "limits_processes": False}, {"NanoCpus": 1_000_000_000}),
    ],
)
def test_only_limits_that_the_engine_enforces_are_sent(info: dict[str, Any], expected: Json) -> None:
    config = body({}, info=msgspec.structs.replace(DOCKER, **info))["HostConfig"]
    assert {key: config[key] for key in ("NanoCpus", "Memory", "MemorySwap", "PidsLimit") if key in config} == expected


def test_no_more_processors_than_the_engine_has() -> None:
    config = body({"resources": {"limits": {"cpu": 16}}})["HostConfig"]
    assert config["NanoCpus"] == 4_000_000_000


def test_podman_keeps_one_log_file() -> None:
    assert body({}, info=PODMAN)["HostConfig"]["LogConfig"]["Config"] == {"max-size": "10m"}


def test_nothing_of_the_machine_is_shared() -> None:
    config = body({}).keys() | body({})["HostConfig"].keys()
    forbidden = {"Binds", "Mounts", "Volumes", "VolumesFrom", "Devices", "PidMode", "IpcMode", "UsernsMode", "Init"}
    assert not config & (forbidden | {"Ulimits"})


@pytest.mark.parametrize(
    ("container", "also", "expected"),
    [
        (
            {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {},
            "Container web cannot run here: env KEY takes its value from a Secret, and there are none here yet",
        ),
        (
            {"env": [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}]},
            {},
            "Container web cannot run here: env KEY takes its value from a ConfigMap, and there are none here yet",
        ),
        (
            {"env": [{"name": "KEY", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
            {},
            "Container web cannot run here: env KEY refers to the field status.podIP; "
            "use metadata.name, metadata.uid or metadata.labels['KEY']",
        ),
        (
            {"env": [{"name": "KEY", "valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}}]},
            {},
            "Container web cannot run here: env KEY refers to the resource limits.gpu; use limits.cpu or limits.memory",
        ),
        (
            {
                "env": [
                    {
                        "name": "KEY",
                        "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "x"}},
                    }
                ]
            },
            {},
            "Container web cannot run here: env KEY refers to container x, which the instance does not have",
        ),
        (
            {"ports": [{"name": "sip", "port": 9, "protocol": "SCTP"}]},
            {},
            "Container web cannot run here: ports sip is a port of SCTP, and only TCP and UDP ports can be published",
        ),
        (
            {"volumeAttachments": [{"name": "data", "mountPath": "/data"}]},
            {"volumes": [{"name": "data", "disk": {"template": {"spec": {}}}}]},
            "Container web cannot run here: volumeAttachments data needs a volume, and there are none here",
        ),
        ({}, {"volumes": [{"name": "conf", "configMap": {"name": "c"}}]},
         "volumes conf cannot be used here: there are no volumes"),
        (
            {},
            {"sandbox": {"imagePullSecrets": [{"name": "key"}]}},
            "imagePullSecrets key cannot be used here: images are pulled with the credentials of this user",
        ),
        (
            {"envFrom": [{"secretRef": {"name": "keys"}}]},
            {},
            "Container web cannot run here: envFrom is not supported by this provider",
        ),
        (
            {"resources": {"limits": {"memory": "much"}}},
            {},
            'The resources cannot be read: "much" is not a quantity; write it like 2, 500m or 2Gi',
        ),
    ],
)  # fmt: skip
def test_what_an_engine_cannot_run_is_named(container: Json, also: Json, expected: str) -> None:
    assert obstacle(container, **also) == expected


def test_a_long_name_still_is_a_host_name() -> None:
    named = msgspec.structs.replace(
        instance(), metadata=msgspec.structs.replace(instance().metadata, name="a" * 62 + "-b")
    )
    made = shape_of(named, Identity("demo", "default"), OWNER, DOCKER)
    assert isinstance(made, Shape)
    assert made.body(0, "")["Hostname"] == "a" * 62
