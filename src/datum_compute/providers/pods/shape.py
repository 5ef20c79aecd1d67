"""The Pod for an Instance. Entry points: `pod_of`, `unsupported_volumes`, `labels_of`, `runs_in_pod`."""

from collections.abc import Mapping

from datum_compute.api.instance import Instance
from datum_compute.api.labels import COMPUTE_LABELS
from datum_compute.api.template import Container, Volume
from datum_compute.kube.meta import Json, as_dict, controller_reference
from datum_compute.providers import confinement
from datum_compute.providers.pods.settings import PodSettings
from datum_compute.providers.pods.state import POD
from datum_compute.providers.shares import shares_of

MANAGED_BY = "managed-by"
UPSTREAM_INSTANCE = "upstream.instance"
PROVIDER = "datum-compute-pods"
_COPIED = ("command", "args", "workingDir", "env", "envFrom")  # envFrom only in later versions of the API


def runs_in_pod(instance: Instance) -> bool:
    """Whether the Instance consists of containers; virtual machines need another provider."""
    return instance.spec.runtime.sandbox is not None


def pod_of(instance: Instance, settings: PodSettings) -> Json:
    """The Pod to create. It never changes, because a changed template leads to a new Instance."""
    runtime, raw = instance.spec.runtime, as_dict(instance.spec.runtime_json)
    sandbox = runtime.sandbox
    assert sandbox is not None
    mounted = {volume.name: volume for volume in instance.spec.volumes if _has_files(volume)}
    shares = shares_of(runtime)
    raw_containers = {container["name"]: container for container in raw["sandbox"]["containers"]}
    containers = [
        _container(container, raw_containers[container.name], mounted, share)
        for container, share in zip(sandbox.containers, shares, strict=True)
    ]
    pull_secrets = [{"name": secret.name} for secret in sandbox.image_pull_secrets]
    owner = controller_reference(instance)
    runtime_class = settings.runtime_class or raw.get("class")
    spec: Json = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": confinement.pod_security_context(),
        "containers": containers,
        **(
            {"volumes": [_volume(volume, as_dict(instance.spec_json)) for volume in mounted.values()]}
            if mounted
            else {}
        ),
        **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
        **({"runtimeClassName": runtime_class} if runtime_class else {}),
        **({"nodeSelector": settings.node_selector} if settings.node_selector else {}),
        **({"tolerations": list(settings.tolerations)} if settings.tolerations else {}),
    }
    body = POD.body(instance.name, instance.namespace, labels=labels_of(instance), ownerReferences=[owner])
    return body | {"spec": spec}


def unsupported_volumes(instance: Instance) -> list[str]:
    """Names of the volumes that the Pod does not get."""
    return [volume.name for volume in instance.spec.volumes if not _has_files(volume)]


def labels_of(instance: Instance) -> dict[str, str]:
    """Labels that identify the Instance. Not those of users, because services at the site may select by them."""
    copied = {key: value for key, value in instance.metadata.labels.items() if key in COMPUTE_LABELS}
    return {MANAGED_BY: PROVIDER, UPSTREAM_INSTANCE: instance.name} | copied


def _container(container: Container, raw: Json, mounted: Mapping[str, Volume], share: Json) -> Json:
    ports = [{"name": port.name, "containerPort": port.port, "protocol": port.protocol} for port in container.ports]
    mounts = [
        {"name": attachment.name, "mountPath": attachment.mount_path}
        for attachment in container.volume_attachments
        if attachment.mount_path and attachment.name in mounted
    ]
    return {
        "name": container.name,
        "image": container.image,
        **{key: raw[key] for key in _COPIED if raw.get(key)},
        **({"ports": ports} if ports else {}),
        **({"volumeMounts": mounts} if mounts else {}),
        "resources": {"limits": share, "requests": share},
        "securityContext": confinement.security_context(),
    }


def _has_files(volume: Volume) -> bool:
    """Whether a Pod can mount the volume, which must not be a disk."""
    return volume.config_map is not None or volume.secret is not None


def _volume(volume: Volume, spec: Json) -> Json:
    raw: Json = next(entry for entry in spec["volumes"] if entry["name"] == volume.name)
    return {key: raw[key] for key in ("name", "configMap", "secret") if key in raw}
