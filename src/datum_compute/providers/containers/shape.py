"""The containers for an Instance, as bodies for an engine. Entry points: `shape_of`, `Owner`, `Unmappable`."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil

from msgspec import Struct

from datum_compute.api.instance import Instance
from datum_compute.api.labels import (
    CITY_CODE,
    CONTAINER_CITY,
    CONTAINER_INSTANCE,
    CONTAINER_INSTANCE_UID,
    CONTAINER_NAME,
    CONTAINER_NAMESPACE,
    CONTAINER_PROJECT,
    CONTAINER_TEMPLATE_HASH,
    LOCAL,
    LOCAL_DIRECTORY,
    PLACEMENT_NAME,
    WORKLOAD_NAME,
)
from datum_compute.api.quantity import parse
from datum_compute.api.template import Container, EnvVar, Quantity, ResourceFieldReference, Sandbox
from datum_compute.federation.identity import Identity
from datum_compute.kube.meta import Json, as_dict
from datum_compute.providers import confinement
from datum_compute.providers.containers.variables import expanded
from datum_compute.providers.engine.interface import EngineInfo
from datum_compute.providers.shares import shares_of

GRACE_SECONDS = 10
PROCESSES = 512
LOOPBACK = "127.0.0.1"
_LOG_SIZE, _LOG_FILES = "10m", "2"
_LONGEST_HOST_NAME = 63
_FIELDS = frozenset({
    "name", "image", "command", "args", "workingDir", "env", "ports", "resources", "volumeAttachments",
})  # fmt: skip
_LABEL_PATH = re.compile(r"metadata\.labels\['([^']+)'\]")

Shares = Mapping[str, Mapping[str, Quantity]]  # by container


class Owner(Struct, frozen=True):
    """The local federation that containers belong to. Its id is the only thing that gives rights over a container."""

    id: str
    directory: str

    @property
    def labels(self) -> dict[str, str]:
        return {LOCAL: self.id}

    def owns(self, labels: Mapping[str, str]) -> bool:
        return labels.get(LOCAL) == self.id

    def network(self, city: str) -> str:
        return f"datum-{self.id[:8]}-{city.lower()}"


class Unmappable(Struct, frozen=True):
    """Why an engine cannot run what a spec asks for. `container` is empty where the field belongs to none."""

    container: str
    field: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"{f'Container {self.container} cannot run here: ' if self.container else ''}{self.field} {self.reason}"


class ContainerShape(Struct, frozen=True):
    """A container to create. All but the first one need the id of the first in their body."""

    container: str  # its name in the spec
    name: str  # its name in the engine
    image: str
    program: str  # the first word of its command; empty if the image decides
    memory: int  # MiB
    body: Json


class Shape(Struct, frozen=True):
    """Everything that runs for an Instance. The first container has the network, and all ports."""

    instance: str
    uid: str
    identity: Identity
    workload: str
    placement: str
    city: str
    network: str
    containers: tuple[ContainerShape, ...]
    ports: tuple[str, ...]  # such as 8080/tcp, in the order of the spec

    @property
    def place(self) -> dict[str, str]:
        """Labels that any container for an Instance of this name has, also one that was replaced."""
        return {
            CONTAINER_PROJECT: self.identity.project,
            CONTAINER_NAMESPACE: self.identity.namespace,
            CONTAINER_INSTANCE: self.instance,
        }

    def body(self, index: int, first: str) -> Json:
        """The body for a container; `first` is the id of the first one, whose network the others join."""
        body = self.containers[index].body
        mode = f"container:{first}" if index else self.network
        return body | {"HostConfig": body["HostConfig"] | {"NetworkMode": mode}}


def shape_of(instance: Instance, identity: Identity, owner: Owner, info: EngineInfo) -> Shape | Unmappable:
    """The containers of an Instance. They never change, because a changed template leads to a new Instance."""
    runtime = instance.spec.runtime
    sandbox = runtime.sandbox
    assert sandbox is not None
    if obstacle := _obstacle(instance, sandbox):
        return obstacle
    try:
        amounts = shares_of(runtime)
        for amount in amounts:
            for quantity in amount.values():
                parse(quantity)
    except ValueError as error:
        return Unmappable("", "The resources", f"cannot be read: {error}")
    shares = {container.name: amount for container, amount in zip(sandbox.containers, amounts, strict=True)}
    labels, name = _labels(instance, identity, owner), _name(instance, identity, owner)
    ports = tuple(dict.fromkeys(_port(port.port, port.protocol) for c in sandbox.containers for port in c.ports))
    city = instance.metadata.labels.get(CITY_CODE, "")
    shapes = []
    for index, container in enumerate(sandbox.containers):
        env = _environment(container, instance, shares)
        if isinstance(env, Unmappable):
            return env
        command = [expanded(word, env) for word in container.command]
        arguments = [expanded(word, env) for word in container.args]
        body: Json = {
            "Image": container.image,
            "Labels": labels | {CONTAINER_NAME: container.name},
            "Env": [f"{key}={value}" for key, value in env.items()],
            **({"Entrypoint": command} if command else {}),
            **({"Cmd": arguments} if command or arguments else {}),
            **({"WorkingDir": container.working_dir} if container.working_dir else {}),
            **(_networking(instance, ports, owner.network(city)) if index == 0 else {}),
            "Healthcheck": {"Test": ["NONE"]},
            "StopTimeout": GRACE_SECONDS,
            "HostConfig": {
                **(_bindings(ports) if index == 0 else {}),
                "RestartPolicy": {"Name": "no"},
                "LogConfig": _log_config(info),
                **_limits(shares[container.name], info),
                **confinement.host_config(),
            },
        }
        shapes.append(
            ContainerShape(
                container=container.name,
                name=f"{name}.{container.name}" if index else name,
                image=container.image,
                program=command[0] if command else "",
                memory=int(parse(shares[container.name]["memory"]) // (1024 * 1024)),
                body=body,
            )
        )
    return Shape(
        instance=instance.name,
        uid=instance.metadata.uid,
        identity=identity,
        workload=labels[WORKLOAD_NAME],
        placement=labels[PLACEMENT_NAME],
        city=city,
        network=owner.network(city),
        containers=tuple(shapes),
        ports=ports,
    )


def _obstacle(instance: Instance, sandbox: Sandbox) -> Unmappable | None:
    """The first field that an engine cannot honour; nothing is silently left out."""
    if sandbox.image_pull_secrets:
        secret = sandbox.image_pull_secrets[0].name
        return Unmappable(
            "", f"imagePullSecrets {secret}", "cannot be used here: images are pulled with the credentials of this user"
        )
    for container in sandbox.containers:
        if container.volume_attachments:
            volume = container.volume_attachments[0].name
            return Unmappable(container.name, f"volumeAttachments {volume}", "needs a volume, and there are none here")
        for port in container.ports:
            if port.protocol not in ("TCP", "UDP"):
                reason = f"is a port of {port.protocol}, and only TCP and UDP ports can be published"
                return Unmappable(container.name, f"ports {port.name}", reason)
    if instance.spec.volumes:
        return Unmappable("", f"volumes {instance.spec.volumes[0].name}", "cannot be used here: there are no volumes")
    for raw in as_dict(instance.spec.runtime_json)["sandbox"]["containers"]:
        for field, value in raw.items():
            if field not in _FIELDS and value:
                return Unmappable(str(raw["name"]), field, "is not supported by this provider")
    return None


# Names and labels


def _name(instance: Instance, identity: Identity, owner: Owner) -> str:
    return f"datum-{owner.id[:8]}-{identity.project}-{instance.name}-{instance.metadata.uid[:8]}"


def _labels(instance: Instance, identity: Identity, owner: Owner) -> dict[str, str]:
    of_instance, controller = instance.metadata.labels, instance.spec.controller
    return {
        LOCAL: owner.id,
        LOCAL_DIRECTORY: owner.directory,
        CONTAINER_PROJECT: identity.project,
        CONTAINER_NAMESPACE: identity.namespace,
        CONTAINER_CITY: of_instance.get(CITY_CODE, ""),
        WORKLOAD_NAME: of_instance.get(WORKLOAD_NAME, ""),
        PLACEMENT_NAME: of_instance.get(PLACEMENT_NAME, ""),
        CONTAINER_INSTANCE: instance.name,
        CONTAINER_INSTANCE_UID: instance.metadata.uid,
        CONTAINER_TEMPLATE_HASH: controller.template_hash if controller else "",
    }


# Network and ports


def _port(number: int, protocol: str) -> str:
    return f"{number}/{protocol.lower()}"


def _networking(instance: Instance, ports: Sequence[str], network: str) -> Json:
    """Only of the first container: engines refuse these fields where the network of another container is used."""
    return {
        "Hostname": instance.name[:_LONGEST_HOST_NAME].rstrip("-."),
        **({"ExposedPorts": {port: {} for port in ports}} if ports else {}),
        "NetworkingConfig": {"EndpointsConfig": {network: {}}},
    }


def _bindings(ports: Sequence[str]) -> Json:
    binding = {"HostIp": LOOPBACK, "HostPort": "0"}  # any free port
    return {"PortBindings": {port: [binding] for port in ports}} if ports else {}


# Limits


def _limits(share: Mapping[str, Quantity], info: EngineInfo) -> Json:
    """Only limits that the engine enforces: some engines refuse a container with others, some ignore them."""
    limits: Json = {}
    if info.limits_cpu and "cpu" in share:
        limits["NanoCpus"] = min(ceil(parse(share["cpu"]) * 10**9), info.cpus * 10**9)
    if info.limits_memory:
        memory = int(parse(share["memory"]))
        limits |= {"Memory": memory, "MemorySwap": memory}  # both the same: no swap
    if info.limits_processes:
        limits["PidsLimit"] = PROCESSES
    return limits


def _log_config(info: EngineInfo) -> Json:
    files = {} if info.product == "Podman" else {"max-file": _LOG_FILES}
    return {"Type": "json-file", "Config": {"max-size": _LOG_SIZE, **files}}


# Environment


def _environment(container: Container, instance: Instance, shares: Shares) -> dict[str, str] | Unmappable:
    """Each variable may refer to those before it."""
    env: dict[str, str] = {}
    for variable in container.env:
        if variable.value_from is None:
            env[variable.name] = expanded(variable.value, env)
            continue
        value = _sourced(variable, container, instance, shares)
        if isinstance(value, Unmappable):
            return value
        env[variable.name] = value
    return env


def _sourced(variable: EnvVar, container: Container, instance: Instance, shares: Shares) -> str | Unmappable:
    def unmappable(reason: str) -> Unmappable:
        return Unmappable(container.name, f"env {variable.name}", reason)

    source = variable.value_from
    assert source is not None
    if source.secret_key_ref is not None:
        return unmappable("takes its value from a Secret, and there are none here yet")
    if source.config_map_key_ref is not None:
        return unmappable("takes its value from a ConfigMap, and there are none here yet")
    if source.field_ref is not None:
        path = source.field_ref.field_path
        if path == "metadata.name":
            return instance.name
        if path == "metadata.uid":
            return instance.metadata.uid
        if match := _LABEL_PATH.fullmatch(path):
            return instance.metadata.labels.get(match[1], "")
        return unmappable(f"refers to the field {path}; use metadata.name, metadata.uid or metadata.labels['KEY']")
    if source.resource_field_ref is not None:
        amount = _resource(source.resource_field_ref, container, shares)
        return str(amount) if isinstance(amount, int) else unmappable(amount)
    return unmappable("has a source that is not supported by this provider")


def _resource(reference: ResourceFieldReference, container: Container, shares: Shares) -> int | str:
    """The limit in units of the divisor, rounded up; else the reason why there is none."""
    kind, _, resource = reference.resource.partition(".")
    if kind not in ("limits", "requests") or resource not in ("cpu", "memory"):
        return f"refers to the resource {reference.resource}; use limits.cpu or limits.memory"
    share = shares.get(reference.container_name or container.name)
    if share is None:
        return f"refers to container {reference.container_name}, which the instance does not have"
    if resource not in share:
        return f"refers to {reference.resource}, and the instance has no limit for it"
    try:
        divisor = parse(reference.divisor) or Fraction(1)
    except ValueError as error:
        return f"has a divisor that cannot be read: {error}"
    if divisor < 0:
        return "has a divisor below zero"
    return ceil(parse(share[resource]) / divisor)
