"""Manifests of workloads. Entry points: `parsed`, `applied`, `saved_text`, `overwrite_problem`.

A manifest has the name, labels, annotations and spec of a workload; everything else belongs to the server.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from datum_compute.api.images import is_image
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.flags import is_dns_label, not_an_image
from datum_compute.cli.show.documents import json_text, yaml_text
from datum_compute.cli.workload.edits import containers
from datum_compute.kube import untrusted_yaml
from datum_compute.kube.meta import Json
from datum_compute.kube.tracing import without_mark

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_HEADER = "# Managed by `datumctl compute deploy`."

# The fields that this program reads, and their types; an empty string stands for text. The server validates the rest.
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


# The fields outside the spec, which the server validates. Those that the server sets are accepted and dropped.
_TOP = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_METADATA = frozenset({
    "name", "namespace", "labels", "annotations", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "ownerReferences", "managedFields", "selfLink",
    "generateName",
})  # fmt: skip


def parsed(text: str, source: str) -> Json:
    """The only Workload in the text, without fields that the server sets; `source` names the text in errors."""
    documents = [document for document in _documents(text, source) if document is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict) or documents[0].get("kind") != WORKLOAD.name:
        raise Failure("manifest must contain exactly one Workload")
    body = documents[0]
    version = body.get("apiVersion")
    if version != WORKLOAD.api_version:
        raise _wrong(source, f'unknown apiVersion "{version}"; use {WORKLOAD.api_version}')
    _check_known(body, _TOP, source, "")
    _check_shape(body, _SHAPE, source, "")
    _check_known(body.get("metadata") or {}, _METADATA, source, "metadata.")
    metadata, spec = body.get("metadata") or {}, body.get("spec")
    name = metadata.get("name")
    if name is None or name == "":
        raise _wrong(source, "metadata.name is missing")
    if not isinstance(name, str):
        raise _wrong(source, f"metadata.name {json_text(name, indent=0).strip()} must be text; put it in quotes")
    if not is_dns_label(name):
        raise _wrong(
            source,
            f'metadata.name "{name}" is not a valid workload name: '
            "use at most 63 lower-case letters, digits and hyphens",
        )
    if not spec:
        raise _wrong(source, "spec is missing")
    for index, container in enumerate(containers(spec)):
        if container.get("image") and not is_image(container["image"]):
            path = f"spec.template.spec.runtime.sandbox.containers[{index}].image"
            raise _wrong(source, f"{path}: {not_an_image(container['image'])}")
    maps = {key: _texts(metadata.get(key) or {}, source, key) for key in ("labels", "annotations")}
    maps["annotations"] = without_mark(maps["annotations"])  # of the change that it was saved after
    return WORKLOAD.body(name, "default", **maps) | {"spec": spec}


def applied(manifest: Json) -> Callable[[Json], Json]:
    """The edit that applies a manifest to a live workload; other labels and annotations are kept."""
    wanted = manifest["metadata"]

    def edit(body: Json) -> Json:
        metadata = body["metadata"]
        merged = {key: (metadata.get(key) or {}) | wanted[key] for key in ("labels", "annotations") if wanted.get(key)}
        return body | {"metadata": metadata | merged, "spec": manifest["spec"]}

    return edit


def manifest_of(body: Json) -> Json:
    """The manifest of a live workload, without fields that the server sets."""
    metadata = body["metadata"]
    others = without_mark(metadata.get("annotations") or {})
    annotations = {key: text for key, text in others.items() if key != LAST_APPLIED}
    manifest = WORKLOAD.body(
        metadata["name"],
        metadata.get("namespace", ""),
        labels=metadata.get("labels") or {},
        annotations=annotations,
    )
    return manifest | {"spec": body["spec"]}


def saved_text(body: Json, apply_with: str) -> str:
    """The manifest of a live workload as a file, with a header that marks it as ours."""
    return f"{_HEADER}\n# Apply with `{apply_with}`.\n{yaml_text(manifest_of(body))}"


def overwrite_problem(text: str, name: str) -> str:
    """Why a file with this text must not be overwritten by the manifest of a workload; empty if it may."""
    if text.partition("\n")[0].strip() != _HEADER:
        return "it was not saved by this program"
    try:
        other = parsed(text, "file")["metadata"]["name"]
    except Failure:
        return "it does not contain exactly one workload"
    return "" if other == name else f'it contains workload "{other}"'


def _documents(text: str, source: str) -> list[Any]:
    if text.lstrip().startswith("{"):
        import json

        try:
            return [json.loads(text)]
        except (ValueError, RecursionError):
            pass  # it may still be YAML, and if not, the YAML error has a line number
    import yaml

    try:
        untrusted_yaml.check(text)
        with untrusted_yaml.building():
            return list(yaml.load_all(text, Loader=_loader()))
    except untrusted_yaml.TooMuch as error:
        raise _wrong(source, f"it is {error}") from None
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise _wrong(source, f"{where}{error.problem or 'this is not YAML'}") from None
    except (yaml.YAMLError, ValueError):
        raise _wrong(source, "this is neither YAML nor JSON") from None


def _loader() -> Any:
    """A loader that follows YAML 1.2: the city code NO is not false, dates are text, and duplicate keys are errors."""
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
                raise yaml.constructor.ConstructorError(None, None, f'"{twice}" occurs twice', node.start_mark)
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
