"""Admission of Workloads: which are refused, with which cause, and what an update may keep."""

import re
from copy import deepcopy
from typing import Any

import pytest
import yaml

from datum_compute.api.validation import Facts, workload_violations

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILc2xw0W59jOszlAI3+3jNXrm6bks9FRrgHBOsaqsZLe ops@example"
KEYS = "spec.template.annotations[compute.datumapis.com/ssh-keys]"
T = "spec.template.spec"

SANDBOX = yaml.safe_load("""
apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata: {name: hello, namespace: default}
spec:
  template:
    metadata: {labels: {app: hello}}
    spec:
      runtime:
        resources: {instanceType: datumcloud/d1-standard-2}
        sandbox:
          containers:
          - name: web
            image: registry.example/hello:1
            ports: [{name: http, port: 8080}]
      networkInterfaces:
      - network: {name: default}
  placements:
  - name: main
    cityCodes: [DFW, LHR]
    scaleSettings: {minReplicas: 2}
""")

MACHINE = yaml.safe_load(f"""
apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata: {{name: vm1, namespace: default}}
spec:
  template:
    metadata:
      annotations: {{compute.datumapis.com/ssh-keys: "ops:{KEY}"}}
    spec:
      runtime:
        resources: {{instanceType: datumcloud/d1-standard-2}}
        virtualMachine:
          volumeAttachments: [{{name: boot}}]
          ports: [{{name: ssh, port: 22}}]
      networkInterfaces:
      - network: {{name: default}}
        networkPolicy: {{ingress: [{{ports: [{{port: 22}}], from: [{{ipBlock: {{cidr: 198.51.100.0/24}}}}]}}]}}
      volumes:
      - name: boot
        disk:
          template:
            spec:
              populator: {{image: {{name: datumcloud/ubuntu-2204-lts}}}}
              resources: {{requests: {{storage: 30Gi}}}}
  placements: [{{name: main, cityCodes: [DFW], scaleSettings: {{minReplicas: 1}}}}]
""")

# With what the two above lack: a filesystem, a ConfigMap, a Secret, pull secrets and metrics.
STORAGE = yaml.safe_load("""
metadata: {name: files, namespace: default}
spec:
  template:
    spec:
      runtime:
        resources: {instanceType: datumcloud/d1-standard-2}
        sandbox:
          containers:
          - name: web
            image: registry.example/hello:1
            volumeAttachments:
            - {name: data, mountPath: /data}
            - {name: config, mountPath: /etc/config}
            - {name: token}
          imagePullSecrets: [{name: registry}]
      networkInterfaces: [{network: {name: default}}]
      volumes:
      - name: data
        disk:
          template:
            spec: {populator: {filesystem: {type: ext4}}, resources: {requests: {storage: 20Gi}}}
      - name: config
        configMap: {name: settings, defaultMode: 420}
      - name: token
        secret: {secretName: token}
  placements:
  - name: main
    cityCodes: [DFW]
    scaleSettings:
      minReplicas: 1
      maxReplicas: 3
      metrics: [{resource: {name: cpu, target: {averageUtilization: 60}}}]
""")

FACTS = Facts(cities=("DFW", "LHR"))
ABSENT = object()


def changed(workload: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with new values by path (`spec.placements.0.name`, `T` for the template's spec)."""
    copy = deepcopy(workload)
    for path, value in changes.items():
        *parents, last = re.sub(r"^T\.", f"{T}.", path).split(".")
        at: Any = copy
        for key in parents:
            at = at[int(key)] if isinstance(at, list) else at[key]
        if value is ABSENT:
            del at[last]
        elif isinstance(at, list):
            at[int(last) : int(last) + 1] = [value]
        else:
            at[last] = value
    return copy


def causes(
    workload: dict[str, Any], facts: Facts = FACTS, before: dict[str, Any] | None = None
) -> list[tuple[str, str]]:
    return [(cause.field, cause.reason) for cause in workload_violations(workload, facts, before)]


def messages(workload: dict[str, Any], facts: Facts = FACTS) -> list[str]:
    return [cause.message for cause in workload_violations(workload, facts)]


@pytest.mark.parametrize("workload", [SANDBOX, MACHINE, STORAGE])
def test_a_valid_workload_is_admitted(workload: dict[str, Any]) -> None:
    assert workload_violations(workload, FACTS) == []


def test_a_rejection_lists_its_causes() -> None:
    workload = changed(
        MACHINE, {"spec.placements.0.cityCodes": ["XXX"], "spec.placements.0.scaleSettings.minReplicas": 0}
    )
    facts = Facts(cities=("DFW",))
    assert causes(workload, facts) == [
        ("spec.placements[0].cityCodes[0]", "FieldValueNotSupported"),
        ("spec.placements[0].scaleSettings.minReplicas", "FieldValueInvalid"),
    ]
    assert messages(workload, facts) == [
        'Unsupported value: "XXX": supported values: "DFW"',
        "Invalid value: 0: must be a whole number from 1 to 1000",
    ]


PLACEMENT = "spec.placements.0"
SCALE = f"{PLACEMENT}.scaleSettings"
METRIC = f"{SCALE}.metrics.0.resource"
TARGET = f"{METRIC}.target"
CONTAINER = "T.runtime.sandbox.containers.0"
ATTACHMENT = f"{CONTAINER}.volumeAttachments.0"
SSH_KEYS = "spec.template.metadata.annotations"
DISK = "T.volumes.0.disk.template"
NAME = "compute.datumapis.com/ssh-keys"
LONG = "a" * 64
MAIN = MACHINE["spec"]["placements"][0]


def ports(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "port": 80} for name in names]


# Name, workload, changes, and field and reason (without "FieldValue") of the only cause.
ROWS: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("placements: none", SANDBOX, {"spec.placements": []}, "spec.placements", "Required"),
    ("placements: absent", SANDBOX, {"spec.placements": ABSENT}, "spec.placements", "Required"),
    ("placement name: empty", SANDBOX, {f"{PLACEMENT}.name": ""}, "spec.placements[0].name", "Required"),
    ("placement name: no label", SANDBOX, {f"{PLACEMENT}.name": "Main"}, "spec.placements[0].name", "Invalid"),
    ("placement name: too long", SANDBOX, {f"{PLACEMENT}.name": LONG}, "spec.placements[0].name", "Invalid"),
    ("placement name: hyphen at the end", SANDBOX, {f"{PLACEMENT}.name": "a-"}, "spec.placements[0].name", "Invalid"),
    ("placement name: line break", SANDBOX, {f"{PLACEMENT}.name": "a\n"}, "spec.placements[0].name", "Invalid"),
    ("placement name: taken", MACHINE, {"spec.placements": [MAIN, MAIN]}, "spec.placements[1].name", "Duplicate"),
    ("cities: none", SANDBOX, {f"{PLACEMENT}.cityCodes": []}, "spec.placements[0].cityCodes", "Required"),
    ("city: unknown", SANDBOX, {f"{PLACEMENT}.cityCodes.1": "XXX"}, "spec.placements[0].cityCodes[1]", "NotSupported"),
    ("city: case", SANDBOX, {f"{PLACEMENT}.cityCodes.0": "dfw"}, "spec.placements[0].cityCodes[0]", "NotSupported"),
    ("city: empty", SANDBOX, {f"{PLACEMENT}.cityCodes.0": ""}, "spec.placements[0].cityCodes[0]", "NotSupported"),
    ("city: twice", SANDBOX, {f"{PLACEMENT}.cityCodes.1": "DFW"}, "spec.placements[0].cityCodes[1]", "Duplicate"),
    ("replicas: none", SANDBOX, {f"{SCALE}.minReplicas": 0}, f"{SCALE}.minReplicas", "Invalid"),
    ("replicas: negative", SANDBOX, {f"{SCALE}.minReplicas": -1}, f"{SCALE}.minReplicas", "Invalid"),
    ("replicas: too many", SANDBOX, {f"{SCALE}.minReplicas": 1001}, f"{SCALE}.minReplicas", "Invalid"),
    ("replicas: most below least", STORAGE, {f"{SCALE}.minReplicas": 4}, f"{SCALE}.maxReplicas", "Invalid"),
    ("policy", SANDBOX, {f"{SCALE}.instanceManagementPolicy": "Parallel"}, f"{SCALE}.instanceManagementPolicy",
     "NotSupported"),
    ("metrics: maxReplicas without", SANDBOX, {f"{SCALE}.maxReplicas": 3}, f"{SCALE}.metrics", "Required"),
    ("metrics: maxReplicas with none", STORAGE, {f"{SCALE}.metrics": []}, f"{SCALE}.metrics", "Required"),
    ("metric: no resource", STORAGE, {f"{SCALE}.metrics": [{}]}, METRIC, "Required"),
    ("metric: name", STORAGE, {f"{METRIC}.name": "memory"}, f"{METRIC}.name", "NotSupported"),
    ("metric: no target", STORAGE, {TARGET: {}}, TARGET, "Required"),
    ("metric: second target", STORAGE, {TARGET: {"value": 1, "averageValue": 1}}, f"{TARGET}.averageValue",
     "Forbidden"),
    ("metric: second target in percent", STORAGE, {TARGET: {"averageValue": 1, "averageUtilization": 0}},
     f"{TARGET}.averageUtilization", "Forbidden"),
    ("metric: value", STORAGE, {TARGET: {"value": "0"}}, f"{TARGET}.value", "Invalid"),
    ("metric: no quantity", STORAGE, {TARGET: {"value": "1e1.5"}}, f"{TARGET}.value", "Invalid"),
    ("metric: averageValue", STORAGE, {TARGET: {"averageValue": "-5m"}}, f"{TARGET}.averageValue", "Invalid"),
    ("metric: averageUtilization", STORAGE, {f"{TARGET}.averageUtilization": 0}, f"{TARGET}.averageUtilization",
     "Invalid"),
    ("ssh keys: no annotation", MACHINE, {SSH_KEYS: {}}, KEYS, "Required"),
    ("ssh keys: no metadata", MACHINE, {"spec.template.metadata": ABSENT}, KEYS, "Required"),
    ("ssh keys: blank", MACHINE, {SSH_KEYS: {NAME: " \n"}}, KEYS, "Required"),
    ("ssh keys: no colon", MACHINE, {SSH_KEYS: {NAME: "ops"}}, f"{KEYS}[0]", "Invalid"),
    ("ssh keys: no user", MACHINE, {SSH_KEYS: {NAME: f":{KEY}"}}, f"{KEYS}[0]", "Required"),
    ("ssh keys: no key", MACHINE, {SSH_KEYS: {NAME: f"a:{KEY}\n\nb:ssh-rsa"}}, f"{KEYS}[2]", "Invalid"),
    ("runtime: none", SANDBOX, {"T.runtime.sandbox": ABSENT}, f"{T}.runtime", "Required"),
    ("runtime: both", SANDBOX, {"T.runtime.virtualMachine": {"volumeAttachments": []}}, f"{T}.runtime.virtualMachine",
     "Forbidden"),
    ("instance type", SANDBOX, {"T.runtime.resources.instanceType": "d9"}, f"{T}.runtime.resources", "NotSupported"),
    ("requests", SANDBOX, {"T.runtime.resources.requests": {"cpu": 1}}, f"{T}.runtime.resources.requests",
     "Forbidden"),
    ("containers: none", SANDBOX, {"T.runtime.sandbox.containers": []}, f"{T}.runtime.sandbox.containers", "Required"),
    ("container name: empty", SANDBOX, {f"{CONTAINER}.name": ""}, f"{CONTAINER}.name", "Required"),
    ("container name: no label", SANDBOX, {f"{CONTAINER}.name": "a.b"}, f"{CONTAINER}.name", "Invalid"),
    ("container name: taken", SANDBOX, {"T.runtime.sandbox.containers": [{"name": "a", "image": "i"}] * 2},
     f"{T}.runtime.sandbox.containers[1].name", "Duplicate"),
    ("container image", SANDBOX, {f"{CONTAINER}.image": ""}, f"{CONTAINER}.image", "Required"),
    ("working directory", SANDBOX, {f"{CONTAINER}.workingDir": "srv"}, f"{CONTAINER}.workingDir", "Invalid"),
    ("container resources", SANDBOX, {f"{CONTAINER}.resources": {"limits": {"cpu": 1}}}, f"{CONTAINER}.resources",
     "Forbidden"),
    ("port name: empty", SANDBOX, {f"{CONTAINER}.ports": ports("")}, f"{CONTAINER}.ports[0].name", "Required"),
    ("port name: long", SANDBOX, {f"{CONTAINER}.ports": ports("a" * 16)}, f"{CONTAINER}.ports[0].name", "Invalid"),
    ("port name: case", SANDBOX, {f"{CONTAINER}.ports": ports("Http")}, f"{CONTAINER}.ports[0].name", "Invalid"),
    ("port name: no letter", SANDBOX, {f"{CONTAINER}.ports": ports("80-1")}, f"{CONTAINER}.ports[0].name", "Invalid"),
    ("port name: start", SANDBOX, {f"{CONTAINER}.ports": ports("-a")}, f"{CONTAINER}.ports[0].name", "Invalid"),
    ("port name: end", SANDBOX, {f"{CONTAINER}.ports": ports("a-")}, f"{CONTAINER}.ports[0].name", "Invalid"),
    ("port name: hyphens", SANDBOX, {f"{CONTAINER}.ports": ports("a--b")}, f"{CONTAINER}.ports[0].name", "Invalid"),
    ("port name: taken", SANDBOX, {f"{CONTAINER}.ports": ports("a", "a")}, f"{CONTAINER}.ports[1].name", "Duplicate"),
    ("port name: taken in a machine", MACHINE, {"T.runtime.virtualMachine.ports": ports("a", "a")},
     f"{T}.runtime.virtualMachine.ports[1].name", "Duplicate"),
    ("port: none", SANDBOX, {f"{CONTAINER}.ports.0.port": 0}, f"{CONTAINER}.ports[0].port", "Invalid"),
    ("port: large", MACHINE, {"T.runtime.virtualMachine.ports.0.port": 65536},
     f"{T}.runtime.virtualMachine.ports[0].port", "Invalid"),
    ("pull secret", STORAGE, {"T.runtime.sandbox.imagePullSecrets.0.name": ""},
     f"{T}.runtime.sandbox.imagePullSecrets[0].name", "Required"),
    ("machine without a volume", MACHINE, {"T.runtime.virtualMachine.volumeAttachments": [], "T.volumes": []},
     f"{T}.runtime.virtualMachine.volumeAttachments", "Required"),
    ("boot: no image", MACHINE, {f"{DISK}.spec.populator": {"filesystem": {"type": "ext4"}}},
     f"{T}.runtime.virtualMachine.volumeAttachments[0].name", "Required"),
    ("boot: no disk", MACHINE, {"T.volumes": [{"name": "boot", "configMap": {"name": "c"}}]},
     f"{T}.runtime.virtualMachine.volumeAttachments[0].name", "Required"),
    ("attachment: of a container", SANDBOX, {f"{CONTAINER}.volumeAttachments": [{"name": "x"}]},
     f"{ATTACHMENT}.name", "NotFound"),
    ("attachment: of a machine", MACHINE, {"T.runtime.virtualMachine.volumeAttachments": [{"name": "boot"}, {}]},
     f"{T}.runtime.virtualMachine.volumeAttachments[1].name", "NotFound"),
    ("mount: no populator", STORAGE, {f"{DISK}.spec.populator": ABSENT}, f"{ATTACHMENT}.mountPath", "NotFound"),
    ("mount: taken", STORAGE, {f"{CONTAINER}.volumeAttachments.1.mountPath": "/data"},
     f"{CONTAINER}.volumeAttachments[1].mountPath", "Duplicate"),
    ("interfaces: none", SANDBOX, {"T.networkInterfaces": []}, f"{T}.networkInterfaces", "Required"),
    ("network name", SANDBOX, {"T.networkInterfaces.0.network.name": "a_b"}, f"{T}.networkInterfaces[0].network.name",
     "Invalid"),
    ("network name: empty", SANDBOX, {"T.networkInterfaces.0.network.name": ""},
     f"{T}.networkInterfaces[0].network.name", "Invalid"),
    ("volume name: not attached", STORAGE, {"T.volumes.3": {"name": "x", "secret": {}}}, f"{T}.volumes[3].name",
     "Required"),
    ("volume name: empty", STORAGE, {"T.volumes.3": {"name": "", "secret": {}}}, f"{T}.volumes[3].name", "Required"),
    ("volume name: no label", STORAGE, {"T.volumes.2.name": "a_b", f"{CONTAINER}.volumeAttachments.2.name": "a_b"},
     f"{T}.volumes[2].name", "Invalid"),
    ("volume name: taken", STORAGE, {"T.volumes.3": {"name": "data", "secret": {}}}, f"{T}.volumes[3].name",
     "Duplicate"),
    ("volume: no source", STORAGE, {"T.volumes.2": {"name": "token"}}, f"{T}.volumes[2]", "Required"),
    ("volume: disk and configMap", STORAGE, {"T.volumes.0.configMap": {}}, f"{T}.volumes[0].configMap", "Forbidden"),
    ("volume: configMap and secret", STORAGE, {"T.volumes.1.secret": {}}, f"{T}.volumes[1].secret", "Forbidden"),
    ("device: default taken", STORAGE, {"T.volumes.0.disk.deviceName": "persistent-disk-1"},
     f"{T}.volumes[1].disk.deviceName", "Duplicate"),
    ("disk: no template", STORAGE, {f"{CONTAINER}.volumeAttachments.0": {"name": "data"}, "T.volumes.0.disk": {}},
     f"{T}.volumes[0].disk.template", "Required"),
    ("disk: type", STORAGE, {f"{DISK}.spec.type": "ssd"}, f"{DISK}.spec.type", "NotSupported"),
    ("disk: image", MACHINE, {f"{DISK}.spec.populator.image.name": "x"}, f"{DISK}.populator.image.name",
     "NotSupported"),
    ("disk: filesystem", STORAGE, {f"{DISK}.spec.populator.filesystem.type": "xfs"},
     f"{DISK}.populator.filesystem.type", "NotSupported"),
    ("disk: two populators", MACHINE, {f"{DISK}.spec.populator.filesystem": {"type": "ext4"}},
     f"{DISK}.populator.filesystem", "Forbidden"),
    ("disk: no size", STORAGE, {f"{DISK}.spec.resources": ABSENT}, f"{DISK}.spec.resources", "Required"),
    ("disk: no requests", STORAGE, {f"{DISK}.spec.resources": {}}, f"{DISK}.spec.resources.requests", "Required"),
    ("disk: no storage", STORAGE, {f"{DISK}.spec.resources.requests": {"cpu": 1}},
     f"{DISK}.spec.resources.requests[storage]", "Required"),
    *(
        (f"disk: storage {size}", workload, {f"{DISK}.spec.resources.requests.storage": size},
         f"{DISK}.spec.resources.requests[storage]", "Invalid")
        for workload, sizes in (
            (STORAGE, (0, "-20Gi", "9Gi", "101Gi", "10.5Gi", "20G", "1e300", "x", 10 * 1024**3 - 1)),
            (MACHINE, ("24Gi", "101Gi")),
        )
        for size in sizes
    ),
    ("configMap: name", STORAGE, {"T.volumes.1.configMap.name": ""}, f"{T}.volumes[1].configMap.name", "Required"),
    ("configMap: mode", STORAGE, {"T.volumes.1.configMap.defaultMode": 0o1000}, f"{T}.volumes[1].configMap.defaultMode",
     "Invalid"),
    ("configMap: negative mode", STORAGE, {"T.volumes.1.configMap.defaultMode": -1},
     f"{T}.volumes[1].configMap.defaultMode", "Invalid"),
    ("configMap: items", STORAGE, {"T.volumes.1.configMap.items": [{"key": "a", "path": "a"}]},
     f"{T}.volumes[1].configMap.items", "Forbidden"),
    ("workload name", SANDBOX, {"metadata.name": "web.example"}, "metadata.name", "Invalid"),
    ("workload name: too long", SANDBOX, {"metadata.name": LONG}, "metadata.name", "Invalid"),
]  # fmt: skip


def kubernetes_path(path: str) -> str:
    """Some of the rows above have the path of the change as the expected field."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", re.sub(r"^T\.", f"{T}.", path))


@pytest.mark.parametrize(
    ("workload", "changes", "field", "reason"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_an_invalid_workload_is_refused(
    workload: dict[str, Any], changes: dict[str, Any], field: str, reason: str
) -> None:
    assert causes(changed(workload, changes)) == [(kubernetes_path(field), f"FieldValue{reason}")]


@pytest.mark.parametrize(
    ("workload", "changes"),
    [
        (SANDBOX, {f"{SCALE}.minReplicas": 1}),
        (SANDBOX, {f"{SCALE}.minReplicas": 1000}),
        (STORAGE, {f"{SCALE}.maxReplicas": 1}),
        (SANDBOX, {f"{SCALE}.instanceManagementPolicy": "OrderedReady"}),
        (SANDBOX, {f"{SCALE}.metrics": [{}]}),  # metrics are checked only with maxReplicas
        (STORAGE, {TARGET: {"value": "500m"}}),
        (STORAGE, {f"{TARGET}.averageUtilization": 1}),
        (MACHINE, {SSH_KEYS: {NAME: f"\n a : {KEY} \r\n\nb:{KEY}\n"}}),
        (SANDBOX, {"spec.template.metadata.annotations": {NAME: "no key"}}),  # ignored by a sandbox
        (SANDBOX, {"T.runtime.resources.requests": {}}),
        (SANDBOX, {f"{CONTAINER}.ports": [{"name": "a", "port": 1}, {"name": "9-a-0", "port": 65535}]}),
        (SANDBOX, {f"{CONTAINER}.ports": ports("a" * 15, "a-a-a-a-a-a-a-a")}),
        (SANDBOX, {f"{CONTAINER}.name": "a" * 63}),
        (STORAGE, {f"{DISK}.spec.resources.requests.storage": 10 * 1024**3}),
        (STORAGE, {f"{DISK}.spec.resources.requests.storage": "10Gi"}),
        (STORAGE, {f"{DISK}.spec.resources.requests.storage": "100Gi"}),
        (STORAGE, {f"{DISK}.spec.type": "pd-standard"}),
        (MACHINE, {f"{DISK}.spec.resources.requests.storage": "25Gi"}),
        (MACHINE, {f"{DISK}.spec.resources": ABSENT}),  # the image has a size
        (STORAGE, {f"{CONTAINER}.volumeAttachments.0": {"name": "data"}, f"{DISK}.spec.populator": ABSENT}),
        (STORAGE, {"T.volumes.1.configMap.defaultMode": 0o777, "T.volumes.1.configMap.items": []}),
        (STORAGE, {"T.volumes.2.secret.items": [{"key": "a", "path": "a"}]}),
        (SANDBOX, {"T.networkInterfaces.0.network.namespace": "elsewhere"}),
        (SANDBOX, {"metadata.name": "0-web"}),
        (SANDBOX, {"metadata": {"generateName": "web-"}}),
    ],
)
def test_values_at_the_limits_are_admitted(workload: dict[str, Any], changes: dict[str, Any]) -> None:
    assert causes(changed(workload, changes)) == []


def test_mount_paths_need_to_be_unique_only_within_a_container() -> None:
    containers = [
        {"name": name, "image": "i", "volumeAttachments": [{"name": "data", "mountPath": "/data"}]} for name in "ab"
    ]
    volumes = STORAGE["spec"]["template"]["spec"]["volumes"][:1]
    assert causes(changed(STORAGE, {"T.runtime.sandbox.containers": containers, "T.volumes": volumes})) == []


def test_a_volume_of_a_second_runtime_counts_as_attached() -> None:
    sandbox = SANDBOX["spec"]["template"]["spec"]["runtime"]["sandbox"]
    assert causes(changed(MACHINE, {"T.runtime.sandbox": sandbox})) == [
        (f"{T}.runtime.virtualMachine", "FieldValueForbidden")
    ]


def test_a_missing_boot_volume_is_reported_as_missing() -> None:
    assert causes(changed(MACHINE, {"T.volumes": []})) == [
        (f"{T}.runtime.virtualMachine.volumeAttachments[0].name", "FieldValueNotFound")
    ]


def test_no_two_cities_share_a_deployment_name() -> None:
    scale = {"minReplicas": 1}
    placements = [
        {"name": "a-b", "cityCodes": ["C", "c"], "scaleSettings": scale},
        {"name": "a", "cityCodes": ["B-C"], "scaleSettings": scale},
    ]
    workload = changed(SANDBOX, {"spec.placements": placements})
    causes = workload_violations(workload, Facts(cities=("B-C", "C", "c")))
    assert [(cause.field, cause.message) for cause in causes] == [
        (
            "spec.placements[0].cityCodes[1]",
            'Duplicate value: "c": would share deployment hello-a-b-c with city "C" of placement "a-b";'
            " rename the placement",
        ),
        (
            "spec.placements[1].cityCodes[0]",
            'Duplicate value: "B-C": would share deployment hello-a-b-c with city "C" of placement "a-b";'
            " rename the placement",
        ),
    ]


def test_a_long_deployment_name_is_shortened_instead_of_refused() -> None:
    """No rule is needed, because `deployment_name` never exceeds 57 characters."""
    workload = changed(SANDBOX, {"metadata.name": "w" * 63, f"{PLACEMENT}.name": "p" * 63})
    assert causes(workload) == []


def test_networks_that_the_user_may_not_use_are_refused() -> None:
    interfaces = [{"network": {"name": name}} for name in ("default", "secret", "odd")]
    facts = Facts(cities=None, denied_networks=("secret",), failed_reviews={"odd": "the server\x1b[31m timed out"})
    causes = workload_violations(changed(SANDBOX, {"T.networkInterfaces": interfaces}), facts)
    assert [(cause.field, cause.reason, cause.message) for cause in causes] == [
        (
            f"{T}.networkInterfaces[1].network",
            "FieldValueForbidden",
            'Forbidden: you may not use network "secret"; ask for "use" on it, or take another',
        ),
        (
            f"{T}.networkInterfaces[2].network",
            "InternalError",
            r"Internal error: the server\x1b[31m timed out",
        ),
    ]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(cities=None), []),
        (Facts(cities=("DFW", "LHR")), []),
        (Facts(cities=("AMS", "LHR")), ['Unsupported value: "DFW": supported values: "AMS", "LHR"']),
        (
            Facts(cities=("AMS", "DFW", "LHR"), unavailable={"DFW": "SiteDown: no power"}),
            ['Unsupported value: "DFW": not available now: SiteDown: no power; supported values: "AMS", "LHR"'],
        ),
        (
            Facts(cities=("AMS", "LHR"), unavailable={"AMS": "SiteDown"}),
            ['Unsupported value: "DFW": supported values: "LHR"'],
        ),
        (
            Facts(cities=()),
            [f'Unsupported value: "{city}": no city is available to this project' for city in ("DFW", "LHR")],
        ),
        (
            Facts(cities=("DFW", "LHR"), unavailable={"DFW": "SiteDown", "LHR": "Full"}),
            [
                'Unsupported value: "DFW": not available now: SiteDown',
                'Unsupported value: "LHR": not available now: Full',
            ],
        ),
    ],
)
def test_a_new_workload_may_only_name_available_cities(facts: Facts, expected: list[str]) -> None:
    assert messages(SANDBOX, facts) == expected


def test_all_violations_are_reported_together_in_a_fixed_order() -> None:
    workload = changed(
        STORAGE,
        {
            "T.volumes.1.configMap.name": "",
            "T.networkInterfaces": [],
            f"{CONTAINER}.image": "",
            "T.runtime.resources.instanceType": "x",
            f"{SCALE}.minReplicas": 0,
            f"{PLACEMENT}.cityCodes": ["XXX"],
            f"{PLACEMENT}.name": "",
            "metadata.name": "X",
        },
    )
    assert causes(workload) == [
        ("metadata.name", "FieldValueInvalid"),
        ("spec.placements[0].name", "FieldValueRequired"),
        ("spec.placements[0].cityCodes[0]", "FieldValueNotSupported"),
        ("spec.placements[0].scaleSettings.minReplicas", "FieldValueInvalid"),
        (f"{T}.runtime.resources", "FieldValueNotSupported"),
        (f"{T}.runtime.sandbox.containers[0].image", "FieldValueRequired"),
        (f"{T}.networkInterfaces", "FieldValueRequired"),
        (f"{T}.volumes[1].configMap.name", "FieldValueRequired"),
    ]


@pytest.mark.parametrize(
    ("workload", "changes", "message"),
    [
        (SANDBOX, {f"{PLACEMENT}.name": ""}, "Required value: give the placement a name"),
        (SANDBOX, {f"{CONTAINER}.ports": ports("a", "a")}, 'Duplicate value: "a"'),
        (SANDBOX, {f"{CONTAINER}.volumeAttachments": [{"name": "x"}]},
         'Not found: "x": the template has no volume of that name'),
        (STORAGE, {"T.volumes.0.configMap": {}}, "Forbidden: only one source is allowed, and disk is set"),
        (STORAGE, {f"{DISK}.spec.resources.requests.storage": "5Gi"},
         'Invalid value: "5Gi": must be a whole number of Gi from 10Gi to 100Gi'),
        (SANDBOX, {"T.runtime.resources.instanceType": "big"},
         'Unsupported value: "big": supported values: "datumcloud/d1-standard-2"'),
        (MACHINE, {SSH_KEYS: {NAME: "-----BEGIN OPENSSH PRIVATE KEY-----"}},
         'Invalid value: "...": must be written as "user:public key"'),
        (MACHINE, {SSH_KEYS: {NAME: "ops:b3BlbnNzaC1rZXk"}},
         'Invalid value: "ops:...": must hold an SSH public key after the colon, such as'
         ' "ssh-ed25519 AAAA... comment"'),
    ],
)  # fmt: skip
def test_a_message_says_what_to_do(workload: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert messages(changed(workload, changes)) == [message]


def test_an_update_that_leaves_the_spec_unchanged_is_admitted() -> None:
    before = changed(SANDBOX, {f"{SCALE}.minReplicas": 0})
    after = changed(before, {"metadata": {"name": "hello", "labels": {"a": "b"}}})
    assert causes(after, before=before) == []


def test_an_update_of_a_workload_being_deleted_is_admitted() -> None:
    before = changed(SANDBOX, {"metadata.deletionTimestamp": "2026-06-10T12:00:00Z"})
    assert causes(changed(before, {f"{SCALE}.minReplicas": 0}), before=before) == []


def test_an_update_cannot_pretend_that_the_workload_is_being_deleted() -> None:
    after = changed(SANDBOX, {"metadata.deletionTimestamp": "2026-06-10T12:00:00Z", f"{SCALE}.minReplicas": 0})
    assert causes(after, before=SANDBOX) == [("spec.placements[0].scaleSettings.minReplicas", "FieldValueInvalid")]


@pytest.mark.parametrize(
    ("workload", "changes", "field", "reason"),
    [row[1:] for row in ROWS if not row[0].startswith("workload name")],
    ids=[row[0] for row in ROWS if not row[0].startswith("workload name")],
)
def test_an_update_of_the_spec_is_checked_by_the_same_rules(
    workload: dict[str, Any], changes: dict[str, Any], field: str, reason: str
) -> None:
    assert causes(changed(workload, changes), before=workload) == [(kubernetes_path(field), f"FieldValue{reason}")]


@pytest.mark.parametrize("facts", [Facts(cities=("AMS",)), Facts(cities=()), Facts(cities=("AMS", "DFW", "LHR"))])
def test_an_update_keeps_cities_that_are_no_longer_offered(facts: Facts) -> None:
    facts = Facts(cities=facts.cities, unavailable={"DFW": "SiteDown", "LHR": "SiteDown"})
    assert causes(changed(SANDBOX, {f"{SCALE}.minReplicas": 3}), facts, before=SANDBOX) == []
    moved = changed(SANDBOX, {f"{PLACEMENT}.name": "other"})
    assert causes(moved, facts, before=SANDBOX) == []


def test_an_update_adds_only_cities_that_are_offered() -> None:
    facts = Facts(cities=("AMS",), unavailable={"AMS": "SiteDown"})
    added = changed(SANDBOX, {f"{PLACEMENT}.cityCodes": ["LHR", "AMS", "XXX"]})
    causes = workload_violations(added, facts, SANDBOX)
    assert [(cause.field, cause.message) for cause in causes] == [
        ("spec.placements[0].cityCodes[2]", 'Unsupported value: "XXX": supported values: "AMS"')
    ]


def test_the_name_of_a_workload_is_checked_only_while_it_can_be_chosen() -> None:
    before = changed(SANDBOX, {"metadata.name": "web.example"})
    assert causes(changed(before, {f"{SCALE}.minReplicas": 3}), before=before) == []
