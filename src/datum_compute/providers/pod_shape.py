"""The Pod that an Instance becomes. Entry points: `pod_of`, `left_out`, `labels_of`, `runs_in_pod`."""

from collections.abc import Mapping, Sequence

from datum_compute.api.instance import Instance
from datum_compute.api.instance_types import CATALOG
from datum_compute.api.labels import COMPUTE_LABELS
from datum_compute.api.quantity import mebibytes, millicores
from datum_compute.api.template import Container, InstanceRuntime, Volume
from datum_compute.kube.meta import Json, as_dict, controller_reference
from datum_compute.providers import confinement
from datum_compute.providers.pod_settings import PodSettings
from datum_compute.providers.pod_state import POD

MANAGED_BY = "managed-by"
UPSTREAM_INSTANCE = "upstream.instance"
PROVIDER = "datum-compute-pods"
_DEFAULT_MEMORY = "1024Mi"
_AS_GIVEN = ("command", "args", "env", "envFrom")  # of a container, some only in later versions of the API


def runs_in_pod(instance: Instance) -> bool:
    """Containers do; a virtual machine is somebody else's."""
    return instance.spec.runtime.sandbox is not None


def pod_of(instance: Instance, settings: PodSettings) -> Json:
    """Made once and never changed: a template that changes makes a new Instance."""
    runtime, given = instance.spec.runtime, as_dict(instance.spec.runtime_json)
    sandbox = runtime.sandbox
    assert sandbox is not None
    mounted = {volume.name: volume for volume in instance.spec.volumes if _files(volume)}
    shares = _shares(runtime)
    raw = {container["name"]: container for container in given["sandbox"]["containers"]}
    containers = [
        _container(container, raw[container.name], mounted, share)
        for container, share in zip(sandbox.containers, shares, strict=True)
    ]
    pull_secrets = [{"name": secret.name} for secret in sandbox.image_pull_secrets]
    owner = controller_reference(instance)
    runtime_class = settings.runtime_class or given.get("class")
    spec: Json = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": confinement.pod(),
        "containers": containers,
        **({"volumes": [_volume(each, as_dict(instance.spec_json)) for each in mounted.values()]} if mounted else {}),
        **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
        **({"runtimeClassName": runtime_class} if runtime_class else {}),
        **({"nodeSelector": settings.node_selector} if settings.node_selector else {}),
        **({"tolerations": list(settings.tolerations)} if settings.tolerations else {}),
    }
    body = POD.body(instance.name, instance.namespace, labels=labels_of(instance), ownerReferences=[owner])
    return body | {"spec": spec}


def left_out(instance: Instance) -> list[str]:
    """The names of the volumes that the Pod is made without."""
    return [volume.name for volume in instance.spec.volumes if not _files(volume)]


def labels_of(instance: Instance) -> dict[str, str]:
    """Whose it is. Labels that users put on their templates stay out: services of the site may select by them."""
    carried = {key: value for key, value in instance.metadata.labels.items() if key in COMPUTE_LABELS}
    return {MANAGED_BY: PROVIDER, UPSTREAM_INSTANCE: instance.name} | carried


def _container(container: Container, given: Json, mounted: Mapping[str, Volume], share: Json) -> Json:
    ports = [{"name": port.name, "containerPort": port.port, "protocol": port.protocol} for port in container.ports]
    mounts = [
        {"name": attachment.name, "mountPath": attachment.mount_path}
        for attachment in container.volume_attachments
        if attachment.mount_path and attachment.name in mounted
    ]
    return {
        "name": container.name,
        "image": container.image,
        **{key: given[key] for key in _AS_GIVEN if given.get(key)},
        **({"ports": ports} if ports else {}),
        **({"volumeMounts": mounts} if mounts else {}),
        "resources": {"limits": share, "requests": share},
        "securityContext": confinement.container(),
    }


def _files(volume: Volume) -> bool:
    """Whether a Pod can have it; disks are not served here."""
    return volume.config_map is not None or volume.secret is not None


def _volume(volume: Volume, spec: Json) -> Json:
    given: Json = next(one for one in spec["volumes"] if one["name"] == volume.name)
    return {key: given[key] for key in ("name", "configMap", "secret") if key in given}


def _shares(runtime: InstanceRuntime) -> list[Json]:
    """What each container is given, by dimension: its own limit, else an equal part of what the instance is."""
    assert runtime.sandbox is not None
    limits = [container.resources.limits if container.resources else {} for container in runtime.sandbox.containers]
    found = CATALOG.get(runtime.resources.instance_type)
    asked = runtime.resources.requests
    cpu = millicores(asked["cpu"]) if "cpu" in asked else found.millicores if found else None
    memory = mebibytes(asked["memory"]) if "memory" in asked else found.mebibytes if found else None
    parts = {
        "cpu": f"{cpu // _without(limits, 'cpu')}m" if cpu else None,
        "memory": f"{memory // _without(limits, 'memory')}Mi" if memory else _DEFAULT_MEMORY,
    }
    return [
        {key: own.get(key, part) for key, part in parts.items() if own.get(key, part) is not None} for own in limits
    ]


def _without(limits: Sequence[Mapping[str, int | str]], key: str) -> int:
    """How many containers have to share; at least one, so that nobody divides by zero."""
    return max(1, sum(key not in own for own in limits))
