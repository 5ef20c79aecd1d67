"""A workload in a file of the user's. Entry points: `parsed`, `applied`, `saved_text`, `names_other`.

What a manifest says of a workload is its name, labels, annotations and spec; everything else is the server's.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from datum_compute.api.images import is_image
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.flags import is_name, no_image
from datum_compute.cli.show.documents import json_text, yaml_text
from datum_compute.cli.workload.edits import containers
from datum_compute.kube import untrusted_yaml
from datum_compute.kube.meta import Json

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_HEADER = "# Managed by `datumctl compute deploy`."

# The shape of what this program looks at itself; a text stands for text. The rest is for the server to judge.
_SHAPE: Any = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {
        "template": {
            "metadata": {"annotations": {}},
            "spec": {
                "runtime": {
                    "resources": {},
                    "sandbox": {"containers": [{"image": "", "env": [{}], "ports": [{}]}]},
                },
                "networkInterfaces": [{"network": {}}],
            },
        },
        "placements": [{"cityCodes": [""], "scaleSettings": {}}],
    },
}


# What an object may have outside its spec; the server judges the spec. What it fills in itself is left out again.
_TOP = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_METADATA = frozenset({
    "name", "namespace", "labels", "annotations", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "ownerReferences", "managedFields", "selfLink",
    "generateName",
})  # fmt: skip


def parsed(text: str, source: str) -> Json:
    """The one Workload in the text, as it is to be asked for; `source` names the text in errors."""
    documents = [one for one in _documents(text, source) if one is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict) or documents[0].get("kind") != WORKLOAD.name:
        raise Failure("manifest must contain exactly one Workload")
    body = documents[0]
    version = body.get("apiVersion")
    if version != WORKLOAD.api_version:
        raise _wrong(source, f'apiVersion "{version}" is not known; use {WORKLOAD.api_version}')
    _check_known(body, _TOP, source, "")
    _check_shape(body, _SHAPE, source, "")
    _check_known(body.get("metadata") or {}, _METADATA, source, "metadata.")
    metadata, spec = body.get("metadata") or {}, body.get("spec")
    name = metadata.get("name")
    if name is None or name == "":
        raise _wrong(source, "metadata.name is missing")
    if not isinstance(name, str):
        raise _wrong(source, f"metadata.name {json_text(name, indent=0).strip()} must be text; put it in quotes")
    if not is_name(name):
        raise _wrong(
            source,
            f'metadata.name "{name}" is no workload name: '
            "use lower-case letters, digits and hyphens, at most 63 of them",
        )
    if not spec:
        raise _wrong(source, "spec is missing")
    for index, container in enumerate(containers(spec)):
        if container.get("image") and not is_image(container["image"]):
            path = f"spec.template.spec.runtime.sandbox.containers[{index}].image"
            raise _wrong(source, f"{path}: {no_image(container['image'])}")
    maps = {key: _texts(metadata.get(key) or {}, source, key) for key in ("labels", "annotations")}
    return WORKLOAD.body(name, "default", **maps) | {"spec": spec}


def applied(manifest: Json) -> Callable[[Json], Json]:
    """The edit that makes a live workload what the manifest asks for: labels and annotations of others stay."""
    asked = manifest["metadata"]

    def edit(body: Json) -> Json:
        metadata = body["metadata"]
        merged = {key: (metadata.get(key) or {}) | asked[key] for key in ("labels", "annotations") if asked.get(key)}
        return body | {"metadata": metadata | merged, "spec": manifest["spec"]}

    return edit


def asked_for(body: Json) -> Json:
    """The part of a live workload that somebody asked for, without what the server keeps about it."""
    metadata = body["metadata"]
    annotations = {key: text for key, text in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED}
    kept = WORKLOAD.body(
        metadata["name"],
        metadata.get("namespace", ""),
        labels=metadata.get("labels") or {},
        annotations=annotations,
    )
    return kept | {"spec": body["spec"]}


def saved_text(body: Json, apply_with: str) -> str:
    """A live workload as a manifest to keep, under a header by which it is known again."""
    return f"{_HEADER}\n# Apply with `{apply_with}`.\n{yaml_text(asked_for(body))}"


def names_other(text: str, name: str) -> str:
    """Why a file with this text must not be overwritten by the workload `name`; empty when it may."""
    if text.partition("\n")[0].strip() != _HEADER:
        return "it was not saved by this program"
    try:
        other = parsed(text, "file")["metadata"]["name"]
    except Failure:
        return "it holds something else than one workload"
    return "" if other == name else f'it holds workload "{other}"'


def _documents(text: str, source: str) -> list[Any]:
    if text.lstrip().startswith("{"):
        import json

        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # it may still be YAML, and if not, YAML tells the line
    import yaml

    try:
        untrusted_yaml.check(text)
        with untrusted_yaml.building():
            return list(yaml.load_all(text, Loader=_loader()))
    except untrusted_yaml.TooMuch as error:
        raise _wrong(source, f"it is {error}") from None
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise _wrong(source, f"{where}{error.problem or 'this is no YAML'}") from None
    except (yaml.YAMLError, ValueError):
        raise _wrong(source, "this is neither YAML nor JSON") from None


def _loader() -> Any:
    """As YAML 1.2 has it: a city code NO is no false and a date is text; a key that is there twice is an error."""
    import yaml

    changed = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag not in changed]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
            if twice is not None:
                raise yaml.constructor.ConstructorError(None, None, f'"{twice}" is there twice', node.start_mark)
            return super().construct_mapping(node, deep=deep)

    words = re.compile("^(?:true|True|TRUE|false|False|FALSE)$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", words, list("tTfF"))
    return Loader


def _check_known(value: Json, known: Collection[str], source: str, path: str) -> None:
    if unknown := sorted(str(key) for key in value if key not in known):
        raise _wrong(source, f'unknown field "{path}{unknown[0]}"')


def _check_shape(value: Any, shape: Any, source: str, path: str) -> None:
    if value is None:
        return
    match shape:
        case dict():
            if not isinstance(value, dict):
                raise _wrong(source, f"{path} must be a map of fields")
            for key, inner in shape.items():
                _check_shape(value.get(key), inner, source, f"{path}.{key}".lstrip("."))
        case [inner]:
            if not isinstance(value, list):
                raise _wrong(source, f"{path} must be a list")
            for index, item in enumerate(value):
                if item is None:
                    raise _wrong(source, f"{path}[{index}] is empty")
                _check_shape(item, inner, source, f"{path}[{index}]")
        case _:
            if not isinstance(value, str):
                raise _wrong(source, f"{path} must be text")


def _texts(values: Json, source: str, key: str) -> dict[str, str]:
    for name, text in values.items():
        if not isinstance(text, str):
            raise _wrong(source, f'metadata.{key}: "{name}" must be text; put it in quotes')
    return values


def _wrong(source: str, problem: str) -> Failure:
    return Failure(f"{source}: {problem}")
