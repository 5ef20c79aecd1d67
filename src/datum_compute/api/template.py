"""The template and spec of instances. Entry points: `InstanceTemplate`, `InstanceSpec`."""

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
"""A Kubernetes quantity: 2, "500m", "2Gi"."""


def as_received(description: str, holds: type[Struct]) -> Meta:
    """For a field that is kept as JSON, because it is passed on to other planes unchanged; `holds` is its schema."""
    return Meta(description=description, extra={"holds": holds})


_BY_NAME = {"list_type": "map", "list_map_keys": ["name"]}


class TemplateMeta(Struct, frozen=True, rename="camel"):
    labels: Annotated[dict[str, str], schema("Labels of the objects created from the template.")] = {}
    annotations: Annotated[dict[str, str], schema("Annotations of the objects created from the template.")] = {}
    finalizers: Annotated[tuple[str, ...], schema("Accepted, but ignored.")] = ()
    name: Annotated[str, schema("Accepted, but ignored: names are generated.")] = ""
    namespace: Annotated[str, schema("Accepted, but ignored.")] = ""


class LocationReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Location.")]
    namespace: Annotated[str, schema("Always empty: a Location has no namespace.")]


class SchedulingGate(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the gate, such as Network or Quota.")]


class InstanceController(Struct, frozen=True, rename="camel"):
    template_hash: Annotated[str, schema("Digest of the template from which the instance was created.")]
    scheduling_gates: Annotated[
        tuple[SchedulingGate, ...],
        schema("Gates that keep the instance from starting until all are removed.", **_BY_NAME),
    ] = ()


class KeyReference(Struct, frozen=True, rename="camel"):
    key: Annotated[str, schema("Key to read the value from.")]
    name: Annotated[str, schema("Name of the ConfigMap or Secret.", default="")] = ""
    optional: Annotated[bool, schema("Whether the ConfigMap or Secret, or its key, may be missing.")] = False


class FieldReference(Struct, frozen=True, rename="camel"):
    field_path: Annotated[str, schema("Path of the field to read.")]
    api_version: Annotated[str, schema("Version of the API that fieldPath refers to.")] = ""


class ResourceFieldReference(Struct, frozen=True, rename="camel"):
    resource: Annotated[str, schema("Name of the resource, such as limits.cpu.")]
    container_name: Annotated[str, schema("Name of the container that has the resource.")] = ""
    divisor: Annotated[Quantity, schema("Unit of the value. 1 if not set.")] = 0


class EnvVarSource(Struct, frozen=True, rename="camel"):
    config_map_key_ref: Annotated[
        KeyReference | None, schema("Takes the value from a key of a ConfigMap.", map_type="atomic")
    ] = None
    secret_key_ref: Annotated[
        KeyReference | None, schema("Takes the value from a key of a Secret.", map_type="atomic")
    ] = None
    field_ref: Annotated[
        FieldReference | None, schema("Takes the value from a field of the instance.", map_type="atomic")
    ] = None
    resource_field_ref: Annotated[
        ResourceFieldReference | None,
        schema("Takes the value from a resource of a container.", map_type="atomic"),
    ] = None


class EnvVar(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the variable.")]
    value: Annotated[str, schema("Value of the variable.")] = ""
    value_from: Annotated[EnvVarSource | None, schema("Source of the value, instead of value.")] = None


class Port(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the port, unique within its container or virtual machine.")]
    port: Annotated[int, schema("Port number.", minimum=1, maximum=65535)]
    protocol: Annotated[str, schema("Protocol of the port: TCP (the default), UDP or SCTP.")] = "TCP"


class VolumeAttachment(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the volume to attach.")]
    mount_path: Annotated[str, schema("Path at which the filesystem of the volume is mounted.")] = ""


class ContainerResources(Struct, frozen=True, rename="camel"):
    limits: Annotated[dict[str, Quantity], schema("Maximum amount of each resource that the container may use.")] = {}
    requests: Annotated[dict[str, Quantity], schema("Minimum amount of each resource that the container needs.")] = {}


class Container(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the container, a DNS label that is unique within the instance.")]
    image: Annotated[str, schema("Image to run, such as example.com/web:1.0.")]
    command: Annotated[
        tuple[str, ...],
        schema("Program to run, with its first arguments. The entrypoint of the image if not set.", list_type="atomic"),
    ] = ()
    args: Annotated[
        tuple[str, ...],
        schema(
            "Arguments of the program. If not set, those of the image, unless command is set.",
            list_type="atomic",
        ),
    ] = ()
    working_dir: Annotated[
        str, schema("Directory in which the program starts, an absolute path. That of the image if not set.")
    ] = ""
    env: Annotated[tuple[EnvVar, ...], schema("Environment variables of the container.", **_BY_NAME)] = ()
    ports: Annotated[tuple[Port, ...], schema("Ports that the container listens on.", **_BY_NAME)] = ()
    resources: Annotated[
        ContainerResources | None,
        schema("Not supported: the instance type determines the resources."),
    ] = None
    volume_attachments: Annotated[tuple[VolumeAttachment, ...], schema("Volumes attached to the container.")] = ()


class SecretReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Secret.")]


class Sandbox(Struct, frozen=True, rename="camel"):
    containers: Annotated[tuple[Container, ...], schema("Containers to run.", minItems=1, **_BY_NAME)]
    image_pull_secrets: Annotated[
        tuple[SecretReference, ...], schema("Secrets with the credentials for pulling the images.")
    ] = ()


class VirtualMachine(Struct, frozen=True, rename="camel"):
    volume_attachments: Annotated[
        tuple[VolumeAttachment, ...],
        schema("Volumes attached to the virtual machine, which boots from the first one.", minItems=1),
    ]
    ports: Annotated[tuple[Port, ...], schema("Ports that the virtual machine listens on.", **_BY_NAME)] = ()


class RuntimeResources(Struct, frozen=True, rename="camel"):
    instance_type: Annotated[str, schema("Type of the instance, such as datumcloud/d1-standard-2.")]
    requests: Annotated[
        dict[str, Quantity], schema("Overrides of the resources of the instance type. Not supported.")
    ] = {}


class InstanceRuntime(Struct, frozen=True, rename="camel"):
    resources: Annotated[RuntimeResources, schema("Compute resources of the instance.")]
    sandbox: Annotated[
        Sandbox | None, schema("Runs containers. Exactly one of sandbox and virtualMachine must be set.")
    ] = None
    virtual_machine: Annotated[
        VirtualMachine | None, schema("Runs a virtual machine. Exactly one of sandbox and virtualMachine must be set.")
    ] = None


class NetworkReference(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the Network.")]
    namespace: Annotated[str, schema("Accepted, but ignored: the namespace of the Workload is used.")] = ""


class PolicyPort(Struct, frozen=True, rename="camel"):
    port: Annotated[int | str, schema("Number or name of the port. All ports if not set.")] = ""
    end_port: Annotated[int | None, schema("Last port of the range that starts at port.")] = None
    protocol: Annotated[str, schema("Protocol of the port: TCP (the default), UDP or SCTP.")] = "TCP"


class IPBlock(Struct, frozen=True, rename="camel"):
    cidr: Annotated[str, schema("Range of addresses in CIDR notation, such as 198.51.100.0/24.")]
    except_: Annotated[tuple[str, ...], schema("Ranges within cidr that are excluded.")] = field(
        default=(), name="except"
    )


class PolicyPeer(Struct, frozen=True, rename="camel"):
    ip_block: Annotated[IPBlock | None, schema("Range of addresses that may connect.")] = None


class IngressRule(Struct, frozen=True, rename="camel"):
    ports: Annotated[
        tuple[PolicyPort, ...], schema("Ports that accept connections. All ports if not set.", list_type="atomic")
    ] = ()
    from_: Annotated[
        tuple[PolicyPeer, ...], schema("Sources that may connect. All sources if not set.", list_type="atomic")
    ] = field(default=(), name="from")


class InterfacePolicy(Struct, frozen=True, rename="camel"):
    ingress: Annotated[tuple[IngressRule, ...], schema("Rules that allow incoming connections.")] = ()


class NetworkInterface(Struct, frozen=True, rename="camel"):
    network: Annotated[NetworkReference, schema("Network that the interface is attached to.")]
    network_policy: Annotated[InterfacePolicy | None, schema("Policy for the traffic of the interface.")] = None


class DiskResources(Struct, frozen=True, rename="camel"):
    requests: Annotated[dict[str, Quantity], schema("Size of the disk, as the resource storage.")] = {}


class ImagePopulator(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the image.")]


class FilesystemPopulator(Struct, frozen=True, rename="camel"):
    type: Annotated[str, schema("Type of the filesystem.", enum=["ext4"])]


class DiskPopulator(Struct, frozen=True, rename="camel"):
    image: Annotated[ImagePopulator | None, schema("Fills the disk with the contents of an image.")] = None
    filesystem: Annotated[FilesystemPopulator | None, schema("Creates an empty filesystem on the disk.")] = None


class DiskSpec(Struct, frozen=True, rename="camel"):
    type: Annotated[str, schema("Type of the disk.", default="pd-standard")] = "pd-standard"
    resources: Annotated[DiskResources | None, schema("Resources of the disk.")] = None
    populator: Annotated[DiskPopulator | None, schema("Initial contents of the disk.")] = None


class DiskTemplate(Struct, frozen=True, rename="camel"):
    spec: Annotated[DiskSpec, schema("Specification of the disk.")]
    metadata: Annotated[TemplateMeta, schema("Metadata of the disk.")] = TemplateMeta()


class Disk(Struct, frozen=True, rename="camel"):
    template: Annotated[DiskTemplate, schema("Template from which the disk is created.")]
    device_name: Annotated[str, schema("Name of the device within the instance. Generated if not set.")] = ""


class KeyToPath(Struct, frozen=True, rename="camel"):
    key: Annotated[str, schema("Key whose value is written to the file.")]
    path: Annotated[str, schema("Path of the file, relative to where the volume is mounted.")]
    mode: Annotated[int | None, schema("Permissions of the file. Those of the volume if not set.")] = None


class ConfigMapVolume(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the ConfigMap.", default="")] = ""
    items: Annotated[
        tuple[KeyToPath, ...], schema("Keys to provide as files. All of them if not set.", list_type="atomic")
    ] = ()
    default_mode: Annotated[int | None, schema("Permissions of the files.")] = None
    optional: Annotated[bool, schema("Whether the ConfigMap may be missing.")] = False


class SecretVolume(Struct, frozen=True, rename="camel"):
    secret_name: Annotated[str, schema("Name of the Secret.")] = ""
    items: Annotated[
        tuple[KeyToPath, ...], schema("Keys to provide as files. All of them if not set.", list_type="atomic")
    ] = ()
    default_mode: Annotated[int | None, schema("Permissions of the files.")] = None
    optional: Annotated[bool, schema("Whether the Secret may be missing.")] = False


class Volume(Struct, frozen=True, rename="camel"):
    name: Annotated[str, schema("Name of the volume, a DNS label that is unique within the instance.")]
    disk: Annotated[Disk | None, schema("Disk that is created for each instance.")] = None
    config_map: Annotated[
        ConfigMapVolume | None, schema("Provides the keys of a ConfigMap as files.", map_type="atomic")
    ] = None
    secret: Annotated[SecretVolume | None, schema("Provides the keys of a Secret as files.")] = None


class InstanceSpec(Struct, frozen=True, rename="camel", dict=True):
    """Desired state of the instance."""

    # Decoded on demand, because it is the largest part of an instance and caches hold many of them.
    runtime_json: Annotated[
        Raw, as_received("Runtime of the instance: what it runs, and its resources.", InstanceRuntime)
    ] = field(name="runtime")
    network_interfaces: Annotated[
        tuple[NetworkInterface, ...], schema("Network interfaces of the instance.", minItems=1)
    ]
    volumes: Annotated[
        tuple[Volume, ...], schema("Volumes for containers or the virtual machine to attach.", **_BY_NAME)
    ] = ()
    location: Annotated[LocationReference | None, schema("Location of the instance. Set by controllers.")] = None
    controller: Annotated[
        InstanceController | None, schema("State kept by controllers. Not to be set in a template.")
    ] = None

    runtime = part("runtime_json", InstanceRuntime)


class InstanceTemplate(Struct, frozen=True, rename="camel"):
    spec: Annotated[InstanceSpec, schema("Specification of the instances.")]
    metadata: Annotated[TemplateMeta, schema("Metadata of the instances.")] = TemplateMeta()
