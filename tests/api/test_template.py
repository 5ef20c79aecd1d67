"""Reading a template, whatever else it contains."""

import json
from typing import Any

from datum_compute.api.template import (
    InstanceController,
    InstanceSpec,
    InstanceTemplate,
    LocationReference,
    Port,
    SchedulingGate,
)
from datum_compute.kube.meta import decode


def read(template: Any) -> InstanceTemplate:
    return decode(json.dumps(template).encode(), InstanceTemplate)


def test_the_template_of_a_sandbox_is_decoded() -> None:
    template = read(
        {
            "metadata": {"labels": {"app": "hello"}},
            "spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2", "requests": {"cpu": 2, "memory": "2Gi"}},
                    "sandbox": {
                        "containers": [
                            {
                                "name": "web",
                                "image": "registry.example/hello:1",
                                "ports": [{"name": "http", "port": 8080}],
                                "env": [
                                    {"name": "A", "value": "1"},
                                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                                ],
                            }
                        ],
                        "imagePullSecrets": [{"name": "pull"}],
                    },
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            },
        }
    )
    assert template.metadata.labels == {"app": "hello"}
    runtime = template.spec.runtime
    assert runtime.resources.requests == {"cpu": 2, "memory": "2Gi"}
    assert runtime.virtual_machine is None
    assert runtime.sandbox is not None
    [container] = runtime.sandbox.containers
    assert container.ports == (Port("http", 8080, "TCP"),)
    assert container.env[0].value == "1"
    source = container.env[1].value_from
    assert source is not None
    assert source.secret_key_ref is not None
    assert (source.secret_key_ref.name, source.secret_key_ref.key) == ("s", "k")
    assert template.spec.network_interfaces[0].network.name == "default"


def test_the_template_of_a_virtual_machine_is_decoded() -> None:
    template = read(
        {
            "spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "virtualMachine": {"volumeAttachments": [{"name": "boot"}], "ports": [{"name": "ssh", "port": 22}]},
                },
                "networkInterfaces": [
                    {
                        "network": {"name": "default"},
                        "networkPolicy": {
                            "ingress": [
                                {
                                    "ports": [{"port": 22}, {"port": "ssh", "endPort": 30}],
                                    "from": [{"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.9/32"]}}],
                                }
                            ]
                        },
                    }
                ],
                "volumes": [
                    {
                        "name": "boot",
                        "disk": {
                            "template": {
                                "spec": {
                                    "populator": {"image": {"name": "datumcloud/ubuntu-2204-lts"}},
                                    "resources": {"requests": {"storage": "30Gi"}},
                                }
                            }
                        },
                    },
                    {"name": "config", "configMap": {"name": "c", "defaultMode": 420}},
                    {"name": "keys", "secret": {"secretName": "s", "items": [{"key": "a", "path": "b"}]}},
                ],
            }
        }
    )
    machine = template.spec.runtime.virtual_machine
    assert machine is not None
    assert [attachment.name for attachment in machine.volume_attachments] == ["boot"]
    policy = template.spec.network_interfaces[0].network_policy
    assert policy is not None
    [rule] = policy.ingress
    assert [port.port for port in rule.ports] == [22, "ssh"]
    [peer] = rule.from_
    assert peer.ip_block is not None
    assert peer.ip_block.except_ == ("198.51.100.9/32",)
    boot, config, keys = template.spec.volumes
    assert boot.disk is not None
    assert boot.disk.template.spec.type == "pd-standard"
    assert boot.disk.template.spec.resources is not None
    assert boot.disk.template.spec.resources.requests == {"storage": "30Gi"}
    assert config.config_map is not None
    assert config.config_map.default_mode == 420
    assert keys.secret is not None
    assert keys.secret.items[0].path == "b"


def test_fields_of_the_controllers_are_decoded() -> None:
    spec = decode(
        b"""{
          "runtime": {"resources": {"instanceType": "x"}},
          "networkInterfaces": [{"network": {"name": "default"}}],
          "location": {"name": "dfw-1", "namespace": ""},
          "controller": {"templateHash": "7f9c6b5d84", "schedulingGates": [{"name": "Network"}, {"name": "Quota"}]}
        }""",
        InstanceSpec,
    )
    assert spec.location == LocationReference("dfw-1", "")
    assert spec.controller == InstanceController("7f9c6b5d84", (SchedulingGate("Network"), SchedulingGate("Quota")))


def test_a_constraint_of_the_schema_never_fails_a_read() -> None:
    template = read(
        {
            "spec": {
                "runtime": {
                    "resources": {"instanceType": "", "requests": {"cpu": "no quantity"}},
                    "sandbox": {"containers": []},
                    "virtualMachine": {"volumeAttachments": [], "ports": [{"name": "", "port": 0, "protocol": "X"}]},
                },
                "networkInterfaces": [],
                "volumes": [
                    {
                        "name": "",
                        "disk": {"template": {"spec": {"type": "?", "populator": {"filesystem": {"type": "?"}}}}},
                    }
                ],
            }
        }
    )
    assert template.spec.network_interfaces == ()


def test_unknown_fields_are_ignored() -> None:
    template = read(
        {
            "later": 1,
            "metadata": {"later": 1},
            "spec": {
                "later": [{}],
                "runtime": {"class": "c", "resources": {"instanceType": "x", "later": {}}},
                "networkInterfaces": [{"name": "eth0", "network": {"name": "default", "later": True}}],
            },
        }
    )
    assert template.spec.runtime.resources.instance_type == "x"
