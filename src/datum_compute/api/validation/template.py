"""Rules for the template of instances. Entry point: `template_violations`."""

import re
from collections.abc import Iterator

from datum_compute.api.instance_types import CATALOG
from datum_compute.api.labels import SSH_KEYS
from datum_compute.api.validation.facts import Facts
from datum_compute.api.validation.fields import Field, clipped, label_violations, name_violations
from datum_compute.api.validation.metadata import metadata_violations
from datum_compute.api.validation.ssh import is_public_key
from datum_compute.api.validation.volumes import Volumes, attachment_violations, boot_violations, volume_violations
from datum_compute.kube.errors import Cause

_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9](-?[a-z0-9]){0,14}")
_LONGEST_PORT_NAME = 15


def template_violations(template: Field, facts: Facts, before: Field) -> Iterator[Cause]:
    """`before` is the previous template; empty when the workload is being created."""
    yield from metadata_violations(template["metadata"], before["metadata"])
    runtime, volumes = template["spec"]["runtime"], template["spec"]["volumes"]
    sandbox, machine = runtime["sandbox"], runtime["virtualMachine"]
    if machine.is_object and not sandbox.is_object:
        yield from _ssh_key_violations(template)
    yield from _runtime_violations(runtime, Volumes.of(volumes))
    yield from _interface_violations(template["spec"]["networkInterfaces"], facts)
    runtimes = [*sandbox["containers"].elements, machine]
    attachments = [attachment for runtime in runtimes for attachment in runtime["volumeAttachments"].elements]
    attached = {attachment["name"].text for attachment in attachments}
    yield from volume_violations(volumes, attached)


def _ssh_key_violations(template: Field) -> Iterator[Cause]:
    # Upstream's path omits metadata.
    annotation = template["metadata"]["annotations"].entry(SSH_KEYS)
    keys = annotation.reported_as(f"{template.path}.annotations[{SSH_KEYS}]")
    if not keys.text.strip():
        yield keys.required('a virtual machine needs lines of "user:public key" to be reached')
    for index, line in enumerate(keys.text.split("\n")):
        if not line.strip():
            continue
        user, colon, key = line.strip().partition(":")
        # A private key pasted by mistake must not appear in a message, which is logged.
        redacted = Field(f"{keys.path}[{index}]", f"{user}:..." if colon else "...")
        if not colon:
            yield redacted.invalid('must be written as "user:public key"')
            continue
        if not user.strip():
            yield redacted.required("name the user before the colon")
        if not is_public_key(key):
            yield redacted.invalid('must hold an SSH public key after the colon, such as "ssh-ed25519 AAAA... comment"')


def _runtime_violations(runtime: Field, volumes: Volumes) -> Iterator[Cause]:
    sandbox, machine, resources = runtime["sandbox"], runtime["virtualMachine"], runtime["resources"]
    if not sandbox.is_object and not machine.is_object:
        yield runtime.required("give either sandbox or virtualMachine")
    if sandbox.is_object and machine.is_object:
        yield machine.forbidden("only one runtime is allowed, and sandbox is set")
    if resources["instanceType"].text not in CATALOG:
        yield resources["instanceType"].reported_as(resources.path).unsupported(sorted(CATALOG))
    if resources["requests"].value:
        yield resources["requests"].forbidden("the instance type decides what an instance is given")
    if sandbox.is_object:
        yield from _sandbox_violations(sandbox, volumes)
    elif machine.is_object:
        yield from _port_violations(machine["ports"])
        yield from boot_violations(machine["volumeAttachments"], volumes)
        yield from attachment_violations(machine["volumeAttachments"], volumes)


def _sandbox_violations(sandbox: Field, volumes: Volumes) -> Iterator[Cause]:
    if not sandbox["containers"].elements:
        yield sandbox["containers"].required("give at least one container")
    names: set[str] = set()
    for container in sandbox["containers"].elements:
        yield from name_violations(container["name"], names, "container")
        if not container["image"].text:
            yield container["image"].required("name the image to run")
        if container["workingDir"].text and not container["workingDir"].text.startswith("/"):
            yield container["workingDir"].invalid('must be an absolute path, such as "/srv"')
        if container["resources"].present:
            yield container["resources"].forbidden("the instance type decides what a container is given")
        yield from _port_violations(container["ports"])
        yield from attachment_violations(container["volumeAttachments"], volumes)
    for secret in sandbox["imagePullSecrets"].elements:
        if not secret["name"].text:
            yield secret["name"].required("name the Secret")


def _port_violations(ports: Field) -> Iterator[Cause]:
    names: set[str] = set()
    for entry in ports.elements:
        name, port = entry["name"], entry["port"]
        if not name.text:
            yield name.required("give the port a name")
        elif len(name.text) > _LONGEST_PORT_NAME or not _PORT_NAME.fullmatch(name.text):
            yield name.invalid(
                f"must be at most {_LONGEST_PORT_NAME} lower-case letters, digits and single hyphens,"
                " with at least one letter and no hyphen at an end"
            )
        if name.text and name.text in names:
            yield name.duplicate()
        names.add(name.text)
        if port.integer is None or not 1 <= port.integer <= 65535:
            yield port.invalid("must be a whole number from 1 to 65535")


def _interface_violations(interfaces: Field, facts: Facts) -> Iterator[Cause]:
    if not interfaces.elements:
        yield interfaces.required("attach the instances to at least one network")
    for interface in interfaces.elements:
        network = interface["network"]
        name = network["name"].text
        yield from label_violations(network["name"])
        if name in facts.failed_reviews:
            yield network.unknown(facts.failed_reviews[name])
        elif name in facts.denied_networks:
            yield network.forbidden(f'you may not use network "{clipped(name)}"; ask for "use" on it, or take another')
