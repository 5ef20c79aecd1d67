"""What an instance is made from: its template and spec. Entry points: `InstanceTemplate`, `InstanceSpec`."""

from typing import Annotated

from msgspec import Meta, Raw, Struct, field

from datum_compute.kube.meta import part, schema

Quantity = Annotated[
    int | str,
    schema(
        pattern=r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
        r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
    ),
]
"""An amount as Kubernetes writes it: 2, "500m", "2Gi"."""


def as_received(description: str, holds: type[Struct]) -> Meta:
    """For a field kept as JSON because it travels to other planes as it came; `holds` is what its schema says."""
    return Meta(description=description, extra={"holds": holds})


_BY_NAME = {"list_type": "map", "list_map_keys": ["name"]}


class TemplateMeta(Struct, frozen=True, rename="camel"):
    labels: Annotated[dict[str, str], schema("Labels of each object made from the template.")] = {}
    annotations: Annotated[dict[str, str], schema("Annotations of each object made from the template.")] = {}
    finalizers: Annotated[tuple[str, ...], schema("Accepted and not used.")] = ()
    name: Annotated[str, schema("Accepted and not used; names are derived.")] = ""
    namespace: Annotated[str, schema("Accepted and not used.")] = ""


class LocationReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Location.")]
    namespace: Annotated[str, schema("Empty, because Locations belong to no namespace.")]


class SchedulingGate(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("What the instance waits for, such as Network or Quota.")]


class InstanceController(Struct, frozen=True, rename="camel"):
    template_hash: Annotated[str, schema("Digest of the template that the instance was made from.")]
    scheduling_gates: Annotated[
        tuple[SchedulingGate, ...], schema("A provider starts the instance only when none is left.", **_BY_NAME)
    ] = ()


class KeyReference(Struct, frozen=True, rename="camel"):
    key: Annotated[str, schema("The key whose value is taken.")]
    name: Annotated[str, schema("Name of the ConfigMap or Secret.", default="")] = ""
    optional: Annotated[bool, schema("Whether the object or the key may be missing.")] = False


class FieldReference(Struct, frozen=True, rename="camel"):
    field_path: Annotated[str, schema("Path of the field of the instance.")]
    api_version: Annotated[str, schema("Version of the schema that the path is written for.")] = ""


class ResourceFieldReference(Struct, frozen=True, rename="camel"):
    resource: Annotated[str, schema("The resource, such as limits.cpu.")]
    container_name: Annotated[str, schema("The container that it belongs to.")] = ""
    divisor: Annotated[Quantity, schema("The unit in which the value is given.")] = 0


class EnvVarSource(Struct, frozen=True, rename="camel"):
    config_map_key_ref: Annotated[KeyReference | None, schema("A key of a ConfigMap.", map_type="atomic")] = None
    secret_key_ref: Annotated[KeyReference | None, schema("A key of a Secret.", map_type="atomic")] = None
    field_ref: Annotated[FieldReference | None, schema("A field of the instance.", map_type="atomic")] = None
    resource_field_ref: Annotated[
        ResourceFieldReference | None, schema("A resource of a container.", map_type="atomic")
    ] = None


class EnvVar(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the variable.")]
    value: Annotated[str, schema("Its value.")] = ""
    value_from: Annotated[EnvVarSource | None, schema("Where the value comes from, instead of value.")] = None


class Port(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the port, unique in its container or virtual machine.")]
    port: Annotated[int, schema("Port number.", minimum=1, maximum=65535)]
    protocol: Annotated[str, schema("TCP, UDP or SCTP; TCP when absent.")] = "TCP"


class VolumeAttachment(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of one of the volumes.")]
    mount_path: Annotated[str, schema("Where a volume with a filesystem is mounted.")] = ""


class ContainerResources(Struct, frozen=True, rename="camel"):
    limits: Annotated[dict[str, Quantity], schema("The most that the container may use.")] = {}
    requests: Annotated[dict[str, Quantity], schema("What the container needs at least.")] = {}


class Container(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the container.")]
    image: Annotated[str, schema("Full name of the image.")]
    env: Annotated[tuple[EnvVar, ...], schema("Environment variables.", **_BY_NAME)] = ()
    ports: Annotated[tuple[Port, ...], schema("Ports that the container listens on.", **_BY_NAME)] = ()
    resources: Annotated[ContainerResources | None, schema("Resources of this container.")] = None
    volume_attachments: Annotated[tuple[VolumeAttachment, ...], schema("Volumes that the container sees.")] = ()


class SecretReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Secret.")]


class Sandbox(Struct, frozen=True, rename="camel"):
    containers: Annotated[tuple[Container, ...], schema("Containers to run.", minItems=1, **_BY_NAME)]
    image_pull_secrets: Annotated[tuple[SecretReference, ...], schema("Secrets for pulling the images.")] = ()


class VirtualMachine(Struct, frozen=True, rename="camel"):
    volume_attachments: Annotated[
        tuple[VolumeAttachment, ...], schema("Volumes of the machine; it boots from the first.", minItems=1)
    ]
    ports: Annotated[tuple[Port, ...], schema("Ports that the machine listens on.", **_BY_NAME)] = ()


class RuntimeResources(Struct, frozen=True, rename="camel"):
    instance_type: Annotated[str, schema("Size of the instance, such as datumcloud/d1-standard-2.")]
    requests: Annotated[dict[str, Quantity], schema("Changes to what the instance type offers.")] = {}


class InstanceRuntime(Struct, frozen=True, rename="camel"):
    resources: Annotated[RuntimeResources, schema("What each instance is given.")]
    sandbox: Annotated[Sandbox | None, schema("Runs containers; either this or virtualMachine.")] = None
    virtual_machine: Annotated[VirtualMachine | None, schema("Boots an image; either this or sandbox.")] = None


class NetworkReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Network.")]
    namespace: Annotated[str, schema("Accepted and ignored; the workload's own namespace is used.")] = ""


class PolicyPort(Struct, frozen=True, rename="camel"):
    port: Annotated[int | str, schema("Number or name of the port; all when absent.")] = ""
    end_port: Annotated[int | None, schema("Last port of a range that starts at port.")] = None
    protocol: Annotated[str, schema("TCP, UDP or SCTP; TCP when absent.")] = "TCP"


class IPBlock(Struct, frozen=True, rename="camel"):
    cidr: Annotated[str, schema("Range of addresses, such as 198.51.100.0/24.")]
    except_: Annotated[tuple[str, ...], schema("Ranges inside cidr that are left out.")] = field(
        default=(), name="except"
    )


class PolicyPeer(Struct, frozen=True, rename="camel"):
    ip_block: Annotated[IPBlock | None, schema("A range of addresses.")] = None


class IngressRule(Struct, frozen=True, rename="camel"):
    ports: Annotated[tuple[PolicyPort, ...], schema("Ports to open; all when absent.", list_type="atomic")] = ()
    from_: Annotated[tuple[PolicyPeer, ...], schema("Who may connect; anyone when absent.", list_type="atomic")] = (
        field(default=(), name="from")
    )


class InterfacePolicy(Struct, frozen=True, rename="camel"):
    ingress: Annotated[tuple[IngressRule, ...], schema("Connections to let in.")] = ()


class NetworkInterface(Struct, frozen=True, rename="camel"):
    network: Annotated[NetworkReference, schema("The network to attach to.")]
    network_policy: Annotated[InterfacePolicy | None, schema("What may reach this interface.")] = None


class DiskResources(Struct, frozen=True, rename="camel"):
    requests: Annotated[dict[str, Quantity], schema("Size of the disk, under the key storage.")] = {}


class ImagePopulator(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the image.")]


class FilesystemPopulator(Struct, frozen=True, rename="camel"):
    type: Annotated[str, schema("Kind of filesystem.", enum=["ext4"])]


class DiskPopulator(Struct, frozen=True, rename="camel"):
    image: Annotated[ImagePopulator | None, schema("Fills the disk from an image.")] = None
    filesystem: Annotated[FilesystemPopulator | None, schema("Makes an empty filesystem.")] = None


class DiskSpec(Struct, frozen=True, rename="camel"):
    type: Annotated[str, schema("Kind of disk.", default="pd-standard")] = "pd-standard"
    resources: Annotated[DiskResources | None, schema("What the disk is given.")] = None
    populator: Annotated[DiskPopulator | None, schema("What is on the disk at first.")] = None


class DiskTemplate(Struct, frozen=True, rename="camel"):
    spec: Annotated[DiskSpec, schema("The disk.")]
    metadata: Annotated[TemplateMeta, schema("Metadata of the disk.")] = TemplateMeta()


class Disk(Struct, frozen=True, rename="camel"):
    template: Annotated[DiskTemplate, schema("The disk to make.")]
    device_name: Annotated[str, schema("Name of the device in the instance; derived when absent.")] = ""


class KeyToPath(Struct, frozen=True, rename="camel"):
    key: Annotated[str, schema("The key to take.")]
    path: Annotated[str, schema("File to write it to, relative to the mount.")]
    mode: Annotated[int | None, schema("Permission bits of the file.")] = None


class ConfigMapVolume(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the ConfigMap.", default="")] = ""
    items: Annotated[tuple[KeyToPath, ...], schema("Keys to take; all when absent.", list_type="atomic")] = ()
    default_mode: Annotated[int | None, schema("Permission bits of the files.")] = None
    optional: Annotated[bool, schema("Whether the ConfigMap may be missing.")] = False


class SecretVolume(Struct, frozen=True, rename="camel"):
    secret_name: Annotated[str, schema("Name of the Secret.")] = ""
    items: Annotated[tuple[KeyToPath, ...], schema("Keys to take; all when absent.", list_type="atomic")] = ()
    default_mode: Annotated[int | None, schema("Permission bits of the files.")] = None
    optional: Annotated[bool, schema("Whether the Secret may be missing.")] = False


class Volume(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the volume.")]
    disk: Annotated[Disk | None, schema("A disk made for each instance.")] = None
    config_map: Annotated[ConfigMapVolume | None, schema("Files from a ConfigMap.", map_type="atomic")] = None
    secret: Annotated[SecretVolume | None, schema("Files from a Secret.")] = None


class InstanceSpec(Struct, frozen=True, rename="camel", dict=True):
    """What the instance is."""

    # Most of an instance, and rarely looked at: decoded only then, because caches hold many instances.
    runtime_json: Annotated[Raw, as_received("What runs, and how large it is.", InstanceRuntime)] = field(
        name="runtime"
    )
    network_interfaces: Annotated[
        tuple[NetworkInterface, ...], schema("Networks that the instance is attached to.", minItems=1)
    ]
    volumes: Annotated[tuple[Volume, ...], schema("Volumes that containers or the machine attach.", **_BY_NAME)] = ()
    location: Annotated[LocationReference | None, schema("Where the instance runs; set by controllers.")] = None
    controller: Annotated[InstanceController | None, schema("Owned by controllers.")] = None

    runtime = part("runtime_json", InstanceRuntime)


class InstanceTemplate(Struct, frozen=True, rename="camel"):
    spec: Annotated[InstanceSpec, schema("The instances.")]
    metadata: Annotated[TemplateMeta, schema("Labels and annotations of the instances.")] = TemplateMeta()
