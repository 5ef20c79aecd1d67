"""Reads the bodies and query options of requests. Entry points: `object_of`, `change_of`, `configuration_of`,
`delete_options`, `dry_run`, `manager_of`, `force`, `flag`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec
import yaml
from msgspec import Struct

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.embedded.plane import protobuf
from datum_compute.embedded.schemas.structural import MAX_DEPTH
from datum_compute.kube import patches, untrusted_yaml
from datum_compute.kube.errors import BadRequest, Cause, Invalid, Subject, UnsupportedMediaType
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Call

_LONGEST_MANAGER = 128  # bytes

Propagation = Literal["", "Background", "Foreground", "Orphan"]


def object_of(call: Call) -> Json:
    """The object of a create or an update."""
    match _media_type(call):
        case "" | "application/json":
            return json_object(call.body)
        case "application/yaml" | "application/x-yaml":
            value = _yaml(call.body)
            if not isinstance(value, dict):
                raise BadRequest("the body of the request is not an object")
            return value
        case protobuf.MEDIA_TYPE if (value := protobuf.decode(call.body)) is not None:
            return value
    raise _unsupported("application/json", "application/yaml")


def change_of(served: ServedKind, call: Call) -> Callable[[Json], Json]:
    """The change that a patch makes; strategic patches are for built-in kinds, as on any API server."""
    match _media_type(call):
        case patches.MERGE:
            change = json_object(call.body)
            return lambda current: patches.merge(current, change)
        case patches.JSON:
            operations = _json(call.body)
            if not isinstance(operations, list):
                raise BadRequest("a JSON patch is a list of operations")
            return lambda current: patches.apply_json_patch(current, operations)
        case patches.STRATEGIC if served.builtin:
            change = json_object(call.body)
            return lambda current: patches.strategic(current, change)
    strategic = [patches.STRATEGIC] if served.builtin else []
    raise _unsupported(patches.JSON, patches.MERGE, *strategic, patches.APPLY)


def applies(call: Call) -> bool:
    return _media_type(call) == patches.APPLY


def configuration_of(call: Call) -> Json:
    """The configuration of an apply: the fields that the applier wants to set."""
    value = _yaml(call.body)
    if not isinstance(value, dict):
        raise BadRequest("error decoding YAML: the body of the request is not an object")
    return value


def manager_of(call: Call, agent: str) -> str:
    """The field manager of a write: as named in the query, or the program that sent it."""
    name = call.query.get("fieldManager", "")
    if len(name.encode()) > _LONGEST_MANAGER:
        message = f"Too long: may not be more than {_LONGEST_MANAGER} bytes"
        raise _invalid_patch_option("FieldValueTooLong", message, "fieldManager")
    if not name.isprintable():
        raise _invalid_patch_option("FieldValueInvalid", f"Invalid value: {name!r}: invalid character", "fieldManager")
    if name or applies(call):
        return name
    return "".join(filter(str.isprintable, agent.partition("/")[0]))[:_LONGEST_MANAGER] or "unknown"


def force(call: Call) -> bool:
    """Whether an apply takes over fields of other owners."""
    if not applies(call) and "force" in call.query:
        raise _invalid_patch_option(
            "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch", "force"
        )
    if applies(call) and not call.query.get("fieldManager"):
        message = "Required value: is required for apply patch"
        raise _invalid_patch_option("FieldValueRequired", message, "fieldManager")
    return flag(call.query, "force")


def _invalid_patch_option(reason: str, message: str, option: str) -> Invalid:
    sentence = f'PatchOptions.meta.k8s.io "" is invalid: {option}: {message}'
    return Invalid(sentence, causes=[Cause(reason, message, option)], about=Subject("", "meta.k8s.io", "PatchOptions"))


class _Preconditions(Struct, frozen=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(Struct, frozen=True, rename="camel"):
    preconditions: _Preconditions | None = None
    propagation_policy: Propagation | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None
    grace_period_seconds: int | None = None  # accepted and ignored: nothing here is deleted gracefully
    kind: Literal["DeleteOptions"] = "DeleteOptions"

    @property
    def uid(self) -> str | None:
        return self.preconditions.uid if self.preconditions else None

    @property
    def revision(self) -> str | None:
        return self.preconditions.resource_version if self.preconditions else None

    @property
    def propagation(self) -> Propagation:
        if self.orphan_dependents is not None:  # the deprecated option
            return "Orphan" if self.orphan_dependents else "Background"
        return self.propagation_policy or ""


def delete_options(call: Call) -> DeleteOptions:
    """The options in the body, or in the query when there is none."""
    options = object_of(call) if call.body else {"propagationPolicy": call.query.get("propagationPolicy")}
    policy = options.get("propagationPolicy")
    if isinstance(policy, str) and policy not in get_args(Propagation):
        message = f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan"'
        raise invalid_option("FieldValueNotSupported", message, "propagationPolicy")
    if policy and options.get("orphanDependents") is not None:
        message = f'Invalid value: "{policy}": orphanDependents and propagationPolicy cannot both be set'
        raise invalid_option("FieldValueInvalid", message, "propagationPolicy")
    try:
        return msgspec.convert(options, DeleteOptions)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the delete options cannot be read: {error}") from None


def invalid_option(reason: str, message: str, option: str) -> Invalid:
    return Invalid(f"{option}: {message}", causes=[Cause(reason, message, option)])


def dry_run(query: Mapping[str, str], options: DeleteOptions | None = None) -> bool:
    """Whether the request is to be checked and not written."""
    values = [*((options and options.dry_run) or ()), *([query["dryRun"]] if query.get("dryRun") else [])]
    for value in values:
        if value != "All":
            message = f'Unsupported value: ["{value}"]: supported values: "All"'
            raise invalid_option("FieldValueNotSupported", message, "dryRun")
    return bool(values)


def flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean option as API servers read it: everything but false and 0 is true."""
    return query.get(name, "false").lower() not in ("false", "0")


def json_object(body: bytes) -> Json:
    value = _json(body)
    if not isinstance(value, dict):
        raise BadRequest("the body of the request is not a JSON object")
    return value


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body of the request is not JSON: {error}") from None


def _media_type(call: Call) -> str:
    return call.content_type.partition(";")[0].strip().lower()


def _unsupported(*accepted: str) -> UnsupportedMediaType:
    listed = ", ".join(accepted)
    return UnsupportedMediaType(
        f"the body of the request was in an unknown format - accepted media types include: {listed}"
    )


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: timestamps stay strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _yaml(body: bytes) -> Any:
    try:
        untrusted_yaml.check(body, MAX_DEPTH)
        with untrusted_yaml.building():
            value = yaml.load(body, Loader=_Loader)
        return _as_json(value)
    except untrusted_yaml.TooMuch as error:
        raise BadRequest(f"the body of the request is {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise BadRequest(f"the body of the request is not YAML: {error}") from None


def _as_json(value: Any) -> Any:
    match value:
        case dict():
            return {_key(key): _as_json(item) for key, item in value.items()}
        case list():
            return [_as_json(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
    raise BadRequest(f"the body of the request is YAML with a value that JSON cannot hold: {type(value).__name__}")


def _key(key: Any) -> str:
    match key:
        case str():
            return key
        case bool():
            return str(key).lower()
        case int() | float():
            return str(key)
    raise BadRequest(f"the body of the request is YAML with a key that is not a string: {key!r}")
