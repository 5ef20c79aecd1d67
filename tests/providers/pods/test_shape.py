"""The Pod for an Instance."""

from typing import Any

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import COMPUTE_LABELS
from datum_compute.kube.meta import Json, encode
from datum_compute.providers.pods.settings import PodSettings
from datum_compute.providers.pods.shape import labels_of, pod_of, runs_in_pod

D1 = {"instanceType": "datumcloud/d1-standard-2"}
LABELS = {key: f"of-{number}" for number, key in enumerate(COMPUTE_LABELS)}


def instance(
    *containers: Json, resources: Json = D1, volumes: list[Json] | None = None, labels: dict[str, str] | None = None,
    sandbox: Json | None = None, **runtime: Any,
) -> Instance:  # fmt: skip
    body = INSTANCE.body("web-0", "ns", labels=labels or LABELS, uid="1234", annotations={"user.example/x": "y"})
    merged = [{"name": "web", "image": "registry.example/hello:1"} | container for container in containers or ({},)]
    spec: Json = {
        "runtime": {"resources": resources, "sandbox": {"containers": merged} | (sandbox or {})} | runtime,
        "networkInterfaces": [{"network": {"name": "default"}}],
    }
    return INSTANCE.decode(encode(body | {"spec": spec | ({"volumes": volumes} if volumes else {})}))


def spec(*containers: Json, **also: Any) -> Json:
    result: Json = pod_of(instance(*containers, **also), PodSettings())["spec"]
    return result


def test_the_smallest_instance() -> None:
    assert pod_of(instance(), PodSettings()) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-0",
            "namespace": "ns",
            "labels": {"managed-by": "datum-compute-pods", "upstream.instance": "web-0"} | LABELS,
            "ownerReferences": [
                {
                    "apiVersion": "compute.datumapis.com/v1alpha",
                    "kind": "Instance",
                    "name": "web-0",
                    "uid": "1234",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "web",
                    "image": "registry.example/hello:1",
                    "resources": {
                        "limits": {"cpu": "1000m", "memory": "2048Mi"},
                        "requests": {"cpu": "1000m", "memory": "2048Mi"},
                    },
                    "securityContext": {
                        "privileged": False,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {
                            "drop": ["ALL"],
                            "add": [
                                *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"),
                                *("KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"),
                            ],
                        },
                    },
                }
            ],
        },
    }


def test_labels_of_users_are_left_out() -> None:
    assert labels_of(instance(labels=LABELS | {"app": "nginx", "service": "of-the-site"})) == labels_of(instance())


def test_environment_variables_are_passed_on_unchanged() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "b", "optional": True}}},
        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
    ]
    assert spec({"env": env})["containers"][0]["env"] == env


def test_the_entry_point_is_passed_on_unchanged() -> None:
    entry_point = {"command": ["sh"], "args": ["-c", "exit $(CODE)", ""], "workingDir": "/srv"}
    (container,) = spec(entry_point)["containers"]
    assert {key: container[key] for key in entry_point} == entry_point


def test_without_an_entry_point_the_image_decides() -> None:
    (container,) = spec({"command": [], "args": [], "workingDir": ""})["containers"]
    assert not {"command", "args", "workingDir"} & set(container)


def test_fields_of_later_versions_are_passed_on() -> None:
    (container,) = spec({"envFrom": [{"secretRef": {"name": "keys"}}]})["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]


def test_ports_have_name_number_and_protocol() -> None:
    ports = [{"name": "http", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    assert spec({"ports": ports})["containers"][0]["ports"] == [
        {"name": "http", "containerPort": 8080, "protocol": "TCP"},
        {"name": "dns", "containerPort": 53, "protocol": "UDP"},
    ]


@pytest.mark.parametrize(
    ("containers", "resources", "expected"),
    [
        ([{}], D1, [{"cpu": "1000m", "memory": "2048Mi"}]),
        (
            [{"resources": {"limits": {"cpu": "250m", "memory": "1Gi"}}}],
            D1,
            [{"cpu": "250m", "memory": "1Gi"}],
        ),
        ([{"resources": {"limits": {"cpu": 2}}}], D1, [{"cpu": 2, "memory": "2048Mi"}]),
        ([{}], {"instanceType": "someone/elses"}, [{"memory": "1024Mi"}]),
        ([{}], D1 | {"requests": {"cpu": "500m", "memory": "512Mi"}}, [{"cpu": "500m", "memory": "512Mi"}]),
        ([{}, {"name": "b"}], D1, [{"cpu": "500m", "memory": "1024Mi"}] * 2),
        (
            [{"resources": {"limits": {"memory": "64Mi"}}}, {"name": "b"}],
            D1,
            [{"cpu": "500m", "memory": "64Mi"}, {"cpu": "500m", "memory": "2048Mi"}],
        ),
    ],
)
def test_a_container_gets_its_limits_or_an_equal_share_of_the_instance(
    containers: list[Json], resources: Json, expected: list[Json]
) -> None:
    actual = [container["resources"] for container in spec(*containers, resources=resources)["containers"]]
    assert actual == [{"limits": share, "requests": share} for share in expected]


FILES: list[Json] = [
    {"name": "conf", "configMap": {"name": "app", "defaultMode": 256, "items": [{"key": "a", "path": "b"}]}},
    {"name": "keys", "secret": {"secretName": "app", "optional": True}},
]
DISK: Json = {"name": "disk", "disk": {"template": {"spec": {}}}}


def test_files_are_mounted_and_disks_are_left_out() -> None:
    attached = [
        {"name": "conf", "mountPath": "/etc/app"},
        {"name": "keys", "mountPath": "/keys"},
        {"name": "disk", "mountPath": "/data"},
        {"name": "keys"},
    ]
    made = spec({"volumeAttachments": attached}, volumes=[*FILES, DISK])
    assert made["volumes"] == FILES
    assert made["containers"][0]["volumeMounts"] == [
        {"name": "conf", "mountPath": "/etc/app"},
        {"name": "keys", "mountPath": "/keys"},
    ]


def test_pull_secrets_and_the_runtime_class_are_passed_on() -> None:
    made = spec(sandbox={"imagePullSecrets": [{"name": "registry"}]}, **{"class": "gvisor"})
    assert made["imagePullSecrets"] == [{"name": "registry"}]
    assert made["runtimeClassName"] == "gvisor"


def test_the_settings_of_the_site_apply_to_every_pod() -> None:
    tolerations: list[Json] = [{"key": "edge", "operator": "Exists"}]
    settings = PodSettings(runtime_class="gvisor", node_selector={"pool": "tenants"}, tolerations=tuple(tolerations))
    named: Any = {"class": "runc"}
    made = pod_of(instance(**named), settings)["spec"]
    assert made["runtimeClassName"] == "gvisor"
    assert made["nodeSelector"] == {"pool": "tenants"}
    assert made["tolerations"] == tolerations


def test_every_container_is_confined() -> None:
    made = spec({}, {"name": "sidecar"})
    assert [container["securityContext"]["allowPrivilegeEscalation"] for container in made["containers"]] == [
        False,
        False,
    ]
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & made.keys()


def test_a_virtual_machine_does_not_run_in_a_pod() -> None:
    body = INSTANCE.body("web-0", "ns")
    runtime = {"resources": D1, "virtualMachine": {"volumeAttachments": [{"name": "boot"}]}}
    machine = body | {"spec": {"runtime": runtime, "networkInterfaces": [{"network": {"name": "default"}}]}}
    assert not runs_in_pod(INSTANCE.decode(encode(machine)))
    assert runs_in_pod(instance())
