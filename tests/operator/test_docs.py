"""docs/operator.md says what the code does."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from datum_compute.api import deployment, instance, workload
from datum_compute.api.permissions import CELL_LEASE, MANAGEMENT_LEASE
from datum_compute.operator import config
from datum_compute.operator.config import WorkloadOperator
from datum_compute.operator.flags import FLAGS
from datum_compute.operator.settings import BUILTINS, GATES

DOCS = Path(__file__).parent.parent.parent / "docs" / "operator.md"


def _section(title: str) -> str:
    text = DOCS.read_text("utf-8")
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert found is not None, f"docs/operator.md has no section {title}"
    return found[1]


def _rows(title: str) -> list[list[str]]:
    lines = [line for line in _section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _code(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_code, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


@pytest.mark.parametrize(
    ("kind", "conditions"),
    [
        ("Workload", [deployment.AVAILABLE, workload.PLACED]),
        (
            "WorkloadDeployment",
            [deployment.AVAILABLE, deployment.REPLICAS_READY, deployment.FEDERATED, deployment.PROJECTED],
        ),
        ("Instance", [instance.READY, instance.QUOTA_GRANTED, instance.PROGRAMMED, instance.AVAILABLE]),
    ],
)
def test_operations_explain_every_condition(kind: str, conditions: list[str]) -> None:
    text = (DOCS.parent / "operations.md").read_text("utf-8")
    rows = [line.split("|") for line in text.splitlines() if re.match(rf"\|.*\b{kind}\b.*\| `", line)]
    explained = {condition for row in rows for condition in re.findall(r"`(\w+)`", row[2])}
    assert set(conditions) <= explained


def test_the_table_of_flags_matches_the_code() -> None:
    expected = [[f"`--{flag.name}`", f"`{flag.variable}`", _code(flag.default), flag.help] for flag in FLAGS]
    assert _rows("Flags") == expected


def _settings(struct: Any, above: str = "") -> Iterator[tuple[str, str]]:
    for field in fields(struct):
        name = f"{above}.{field.encode_name}".removeprefix(".")
        parts = [part for part in (field.type, *get_args(field.type)) if isinstance(part, type)]
        nested = next((part for part in parts if issubclass(part, msgspec.Struct)), None)
        if nested is None:
            yield f"`{name}`", _code(_default(field))
            continue
        if name in (
            "webhookServer",
            "webhookServer.tls.selfSigned",
            "logsServer",
            "logsServer.loki",
            "defaultGrants",
            "pods",
        ):  # whether it is there at all is a setting
            yield f"`{name}`", ""
        yield from _settings(nested, name)


def _default(field: FieldInfo) -> Any:
    return "" if field.default in (NODEFAULT, None, ()) else field.default


def test_the_table_of_config_fields_matches_the_code() -> None:
    assert [tuple(row[:2]) for row in _rows("Config file")] == list(_settings(WorkloadOperator))


def test_gates_builtins_and_leases_are_documented() -> None:
    assert [tuple(row[:2]) for row in _rows("Feature gates")] == [(f"`{k}`", _code(v)) for k, v in GATES.items()]
    assert {row[0] for row in _rows("Built-ins")} == {f"`{name}`" for name in BUILTINS}
    leases = _section("Leader election")
    assert f"`{MANAGEMENT_LEASE}`" in leases
    assert f"`{CELL_LEASE}`" in leases


EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOCS.read_text("utf-8"), re.S)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_config_files_are_valid(example: str, tmp_path: Path) -> None:
    assert len(EXAMPLES) == 6
    file = tmp_path / "config.yaml"
    file.write_text(example)
    config.read(file)
