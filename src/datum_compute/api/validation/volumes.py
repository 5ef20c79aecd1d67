"""Rules for volumes and their attachments. Entry points: `volume_violations`, `attachment_violations`."""

from collections.abc import Collection, Iterator
from fractions import Fraction

from msgspec import Struct

from datum_compute.api import quantity
from datum_compute.api.validation.fields import Field, name_violations
from datum_compute.kube.errors import Cause

_SOURCES = ("disk", "configMap", "secret")
_POPULATORS = ("image", "filesystem")
_DISK_TYPES = ("pd-standard",)
_IMAGES = ("datumcloud/ubuntu-2204-lts",)
_FILESYSTEMS = ("ext4",)
_LEAST_DISK, _LEAST_IMAGE_DISK, _LARGEST_DISK = 10, 25, 100  # GiB
_GIB = 1024**3


class Volumes(Struct, frozen=True):
    """The volumes of a template by name; the first one if several have the same name."""

    by_name: dict[str, Field]

    @classmethod
    def of(cls, volumes: Field) -> "Volumes":
        return cls({volume["name"].text: volume for volume in reversed(volumes.elements) if volume["name"].text})

    def __getitem__(self, name: Field) -> Field | None:
        return self.by_name.get(name.text)


def boot_violations(attachments: Field, volumes: Volumes) -> Iterator[Cause]:
    """A virtual machine must be able to boot from its first volume. A missing volume is reported elsewhere."""
    if not attachments.elements:
        yield attachments.required("attach the disk to boot from")
    for attachment in attachments.elements[:1]:
        volume = volumes[attachment["name"]]
        if volume is not None and not _populator(volume["disk"])["image"].is_object:
            yield attachment["name"].required("a virtual machine boots from a disk with an image populator")


def attachment_violations(attachments: Field, volumes: Volumes) -> Iterator[Cause]:
    mounted: set[str] = set()
    for attachment in attachments.elements:
        name, path = attachment["name"], attachment["mountPath"]
        volume = volumes[name]
        if volume is None:
            yield name.not_found("the template has no volume of that name")
        if not path.text:
            continue
        if volume is not None and volume["disk"].is_object and not _is_populated(volume["disk"]):
            yield path.not_found("a disk without a populator has no filesystem to mount")
        if path.text in mounted:
            yield path.duplicate()
        mounted.add(path.text)


def volume_violations(volumes: Field, attached: Collection[str]) -> Iterator[Cause]:
    names: set[str] = set()
    devices: set[str] = set()
    for index, volume in enumerate(volumes.elements):
        yield from name_violations(volume["name"], names, "volume")
        if volume["name"].text and volume["name"].text not in attached:
            yield volume["name"].required("attach the volume to the runtime, or leave it out")
        yield from _source_violations(volume)
        device = volume["disk"]["deviceName"].text or f"persistent-disk-{index}"
        if device in devices:
            yield Field(volume["disk"]["deviceName"].path, device).duplicate("each volume needs a device of its own")
        devices.add(device)


def _source_violations(volume: Field) -> Iterator[Cause]:
    sources = [source for source in _SOURCES if volume[source].is_object]
    if not sources:
        yield volume.required(f"give one of {', '.join(_SOURCES)}")
        return
    match sources[0]:
        case "disk":
            yield from _disk_violations(volume["disk"]["template"])
        case "configMap":
            yield from _config_map_violations(volume["configMap"])
    for other in sources[1:]:
        yield volume[other].forbidden(f"only one source is allowed, and {sources[0]} is set")


def _config_map_violations(source: Field) -> Iterator[Cause]:
    if not source["name"].text:
        yield source["name"].required("name the ConfigMap")
    mode = source["defaultMode"]
    if mode.present and (mode.integer is None or not 0 <= mode.integer <= 0o777):
        yield mode.invalid("must be from 0 to 0777 (octal), which is 511 in decimal")
    if source["items"].value:
        yield source["items"].forbidden("choosing keys is not supported; all keys of the ConfigMap become files")


def _disk_violations(template: Field) -> Iterator[Cause]:
    if not template.is_object:
        yield template.required("describe the disk to make")
        return
    kind = template["spec"]["type"]
    if kind.present and kind.text not in _DISK_TYPES:
        yield kind.unsupported(_DISK_TYPES)
    # Upstream's paths omit spec.
    populator = template["spec"]["populator"].reported_as(template["populator"].path)
    yield from _populator_violations(populator)
    yield from _size_violations(template["spec"]["resources"], populator["image"])


def _populator_violations(populator: Field) -> Iterator[Cause]:
    image, filesystem = populator["image"], populator["filesystem"]
    if image.is_object and image["name"].text not in _IMAGES:
        yield image["name"].unsupported(_IMAGES)
    if image.is_object and filesystem.is_object:
        yield filesystem.forbidden("only one populator is allowed, and image is set")
    elif filesystem.is_object and filesystem["type"].text not in _FILESYSTEMS:
        yield filesystem["type"].unsupported(_FILESYSTEMS)


def _size_violations(resources: Field, image: Field) -> Iterator[Cause]:
    storage = resources["requests"].entry("storage")
    if not resources.is_object:
        if not image.is_object:  # an image has a size
            yield resources.required("say how large the disk is, under requests.storage")
    elif not resources["requests"].value:
        yield resources["requests"].required("say how large the disk is, under storage")
    elif not storage.present:
        yield storage.required("say how large the disk is, such as 20Gi")
    else:
        yield from _storage_violations(storage, _LEAST_IMAGE_DISK if image.is_object else _LEAST_DISK)


def _storage_violations(storage: Field, least: int) -> Iterator[Cause]:
    try:
        size = quantity.parse(storage.value) / _GIB
    except ValueError:
        size = Fraction(0)
    if size.denominator != 1 or not least <= size <= _LARGEST_DISK:
        yield storage.invalid(f"must be a whole number of Gi from {least}Gi to {_LARGEST_DISK}Gi")


def _populator(disk: Field) -> Field:
    return disk["template"]["spec"]["populator"]


def _is_populated(disk: Field) -> bool:
    return any(_populator(disk)[kind].is_object for kind in _POPULATORS)
