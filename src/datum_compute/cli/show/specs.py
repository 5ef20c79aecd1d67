"""Facts about what an instance runs, from its spec. Entry points: `image`, `short_image`, `runtime_facts`."""

from msgspec import Struct

from datum_compute.api.template import Container, EnvVar, InstanceSpec


def image(spec: InstanceSpec, otherwise: str) -> str:
    """The image of the first container; `otherwise` for a virtual machine."""
    sandbox = spec.runtime.sandbox
    return sandbox.containers[0].image if sandbox and sandbox.containers else otherwise


def container_names(spec: InstanceSpec) -> list[str]:
    """Empty for a virtual machine."""
    sandbox = spec.runtime.sandbox
    return [container.name for container in sandbox.containers] if sandbox else []


def short_image(name: str) -> str:
    """The image without the host of its registry, which is a first part with a dot or a port."""
    host, slash, rest = name.partition("/")
    return rest if slash and ("." in host or ":" in host) else name


def instance_type(spec: InstanceSpec) -> str:
    return spec.runtime.resources.instance_type


def is_machine(spec: InstanceSpec) -> bool:
    return spec.runtime.virtual_machine is not None


def has_web_port(spec: InstanceSpec) -> bool:
    """Whether a container listens on a TCP port."""
    sandbox = spec.runtime.sandbox
    return any(
        port.protocol == "TCP" for container in (sandbox.containers if sandbox else ()) for port in container.ports
    )


class Fact(Struct, frozen=True):
    label: str
    values: tuple[str, ...]


def runtime_facts(spec: InstanceSpec) -> list[Fact]:
    """Image, ports, variables and resources of the first container, or of the machine."""
    sandbox = spec.runtime.sandbox
    container = sandbox.containers[0] if sandbox and sandbox.containers else None
    machine = spec.runtime.virtual_machine
    ports = container.ports if container else machine.ports if machine else ()
    facts = [
        Fact("Image", (image(spec, "(virtual machine)"),)),
        Fact("Ports", tuple(f"{port.port}/{port.protocol}" for port in ports)),
        Fact("Env", tuple(map(_variable, container.env)) if container else ()),
        Fact("Resources", _resources(container)),
    ]
    return [fact for fact in facts if fact.values]


def _variable(variable: EnvVar) -> str:
    """A variable with its value or, for a value that is not in the spec, with its source."""
    source = variable.value_from
    if source is None:
        return f"{variable.name}={variable.value}"
    if source.secret_key_ref is not None:
        return f"{variable.name} from secret {source.secret_key_ref.name}"
    if source.config_map_key_ref is not None:
        return f"{variable.name} from configmap {source.config_map_key_ref.name}"
    if source.field_ref is not None:
        return f"{variable.name} from field {source.field_ref.field_path}"
    return f"{variable.name} from a resource of the instance"


def _resources(container: Container | None) -> tuple[str, ...]:
    resources = container.resources if container else None
    return tuple(f"{name} {amount}" for name, amount in sorted(resources.limits.items())) if resources else ()
