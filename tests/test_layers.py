"""Imports point downwards only, and the wire, the runtime and the embedded engine know nothing about compute."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "datum_compute"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE

SIBLINGS = frozenset({"management", "cell", "platform", "providers", "admission", "telemetry"})
SHARED = frozenset({"kube", "runtime", "api", "federation", "karmada"})
ALL = SHARED | SIBLINGS | {"answers", "embedded"}

# What a layer may import besides itself.
BELOW: dict[str, frozenset[str]] = {
    "kube": frozenset(),
    "runtime": frozenset({"kube"}),
    "api": frozenset({"kube"}),
    "embedded": frozenset({"kube", "runtime"}),
    "federation": frozenset({"kube", "runtime", "api"}),
    "answers": frozenset({"kube", "api", "federation"}),
    "karmada": frozenset({"kube", "runtime", "api", "federation"}),
    **dict.fromkeys(SIBLINGS, SHARED),
    "operator": ALL,
    "local": ALL | {"operator"},
    "cli": ALL | {"operator", "local"},
}

# Some only as whole words (cityCode, CITY, cities): "capacity" contains no city and "cancelled" no cell.
_WORDS = "city|cities|cells?|hubs?|instances?|projects?|tenants?"
_CAPITALIZED = "City|Cities|Cells?|Hubs?|Instances?|Projects?|Tenants?"
COMPUTE_WORD = re.compile(
    r"(?i:workload(?:deployment)?|deployment|(?<!re)placement|entitlement|federat|karmada|milo(?=api|\b))"
    r"|(?i:quota(?!tion|ble)|datum(?!_compute\b))"
    rf"|(?<![A-Za-z])(?i:{_WORDS})(?![a-z])"
    rf"|(?<=[a-z])(?:{_CAPITALIZED})(?![a-z])"
)
# Names that others chose: a field of Events, attributes of jsonschema errors, the cells of a Table.
OTHERS_WORD = re.compile(r'reportingInstance|instance_path|error\.instance|"cells"')


def imported_modules(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything imported anywhere in a module of `package`, lazy imports included."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                origin = ".".join([*base, *([module] if module else [])])
                for alias in names:
                    yield node.lineno, f"{origin}.{alias.name}"


def forbidden_imports(path: str, text: str) -> list[str]:
    """One sentence for each import that the layer of `path` (relative to the package folder) may not make."""
    parts = Path(path).parts
    layer = parts[0] if len(parts) > 1 else None
    if layer is not None and layer not in BELOW:
        return [f"{path}: {layer} is not a layer"]
    allowed = BELOW[layer] | {layer} if layer else frozenset()

    found = []
    for line, name in imported_modules(ast.parse(text), ".".join([PACKAGE, *parts[:-1]])):
        top, *rest = name.split(".")
        if top != PACKAGE or not rest:
            continue
        target = rest[0]
        # `from datum_compute import __version__` names no layer, and the root imports nothing: anyone may read it.
        if target not in allowed and (target in BELOW or len(rest) > 1):
            found.append(f"{path}:{line}: {layer or 'the package root'} imports {target}")
    return found


def compute_words(text: str) -> list[str]:
    return [match.group() for match in COMPUTE_WORD.finditer(OTHERS_WORD.sub("", text))]


def test_imports_point_downwards_only() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert modules
    wrong = [
        sentence
        for module in modules
        for sentence in forbidden_imports(module.relative_to(SOURCE).as_posix(), module.read_text(encoding="utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize("layer", ["kube", "runtime", "embedded"])
def test_the_lowest_layers_know_nothing_about_compute(layer: str) -> None:
    wrong = [
        f"{module.relative_to(SOURCE)}:{number}: {word}"
        for module in sorted((SOURCE / layer).rglob("*.py"))
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), start=1)
        for word in compute_words(line)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "text", "target"),
    [
        ("kube/client.py", "import datum_compute.runtime.clock", "runtime"),
        ("kube/client.py", "from datum_compute import api", "api"),
        ("runtime/queue.py", "from datum_compute.api import names", "api"),
        ("runtime/queue.py", "from ..api.names import label", "api"),
        ("runtime/queue.py", "from .. import api", "api"),
        ("runtime/sub/__init__.py", "from ...api import names", "api"),
        ("api/crd.py", "from datum_compute.runtime import clock", "runtime"),
        ("federation/policy.py", "from datum_compute.cell import ordering", "cell"),
        ("cell/instance.py", "from datum_compute.platform import quota", "platform"),
        ("embedded/plane/server.py", "def f():\n    from datum_compute.admission import rules", "admission"),
        ("operator/main.py", "import datum_compute.local", "local"),
        ("local/daemon.py", "from datum_compute.cli import render", "cli"),
        ("cell/instance.py", "from datum_compute.helpers import anything", "helpers"),
    ],
)
def test_an_import_upwards_or_sideways_is_found(path: str, text: str, target: str) -> None:
    [sentence] = forbidden_imports(path, text)
    assert sentence.startswith(f"{path}:{len(text.splitlines())}: ")
    assert sentence.endswith(f" imports {target}")


def test_the_package_root_imports_no_layer() -> None:
    assert forbidden_imports("__init__.py", "from .kube import client") == [
        "__init__.py:1: the package root imports kube"
    ]


def test_a_folder_that_is_not_a_layer_is_found() -> None:
    assert forbidden_imports("utils/text.py", "") == ["utils/text.py: utils is not a layer"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("kube/client.py", "import json\nfrom . import errors\nfrom .errors import Conflict"),
        ("kube/client.py", "from datum_compute import __version__"),
        ("runtime/informer.py", "from datum_compute.kube.client import Client"),
        ("cell/instance.py", "import datum_compute.federation.identity\nfrom datum_compute.cell import readiness"),
        ("operator/main.py", "from datum_compute import cell, management"),
        ("cli/deploy.py", "from datum_compute.local import daemon"),
    ],
)
def test_an_import_downwards_is_allowed(path: str, text: str) -> None:
    assert forbidden_imports(path, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "WorkloadDeployment",
        "workloads",
        "KARMADA",
        "cityCode",
        "city_code",
        "offeredCities",
        "ResourceQuota",
        "by_instance",
        "InstanceSpec",
        "the hub",
        "cell-dfw",
        "projectName",
        "onProject",
        "miloapis",
        "PlacementPolicy",
        "datumapis",
    ],
)
def test_a_compute_word_is_found(text: str) -> None:
    assert len(compute_words(text)) == 1


INNOCENT = [
    "workqueue", "work load", "capacity", "velocity", "quotation", "datum_compute.kube", "isinstance(one)", "cancelled",
    "excellent", "projection", "replacements", "github", "kilometre",
]  # fmt: skip


@pytest.mark.parametrize("text", INNOCENT)
def test_an_innocent_word_is_not_found(text: str) -> None:
    assert compute_words(text) == []
