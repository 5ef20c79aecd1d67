"""Every tool is pinned, and what is built is found by its pins."""

from pathlib import Path

import msgspec
import pytest

from engine import pins
from engine.pins import TOOLS, Tool, tool_of

VERSIONS = {
    "etcd": "v3.6.5",
    "kubernetes": "v1.35.4",
    "karmada": "v1.18.1",
    "kwok": "v0.8.0",
    "helm": "v3.20.2",
    "chainsaw": "v0.2.14",
}


def test_every_tool_has_its_proven_version() -> None:
    assert {tool.name: tool.version for tool in TOOLS} == VERSIONS


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_has_checksums_and_names_no_machine(tool: Tool) -> None:
    module = (tool.folder / "go.mod").read_text("utf-8")
    sums = (tool.folder / "go.sum").read_text("utf-8")

    assert f"{tool.module} {tool.version} h1:" in sums
    assert f"{tool.module} {tool.version}/go.mod h1:" in sums
    assert "=> ." not in module
    assert "=> /" not in module


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_module_imports_everything_that_is_built(tool: Tool) -> None:
    imports = (tool.folder / "tools.go").read_text("utf-8")

    assert imports.startswith("//go:build tools\n")
    assert [line.split('"')[1] for line in imports.splitlines() if line.startswith("\t_ ")] == sorted(
        tool.binaries.values()
    )


def test_only_the_tools_that_the_engine_itself_does_not_need_are_extras() -> None:
    assert [tool.name for tool in TOOLS if not tool.standard] == ["helm", "chainsaw"]


def test_a_binary_belongs_to_its_tool() -> None:
    assert tool_of("karmada-webhook").name == "karmada"


def test_the_version_is_passed_to_the_linker() -> None:
    flags = tool_of("kubectl").linker_flags
    assert "-X k8s.io/component-base/version.gitVersion=v1.35.4" in flags
    assert "-X k8s.io/component-base/version.gitMinor=35" in flags


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setattr(pins, "MODULES", tmp_path)
    tool = Tool("thing", "example.org/thing", {"thing": "example.org/thing/cmd"})
    tool.folder.mkdir()
    (tool.folder / "go.mod").write_text("module engine/thing\n\nrequire (\n\texample.org/thing v1.2.3\n)\n")
    (tool.folder / "go.sum").write_text("")
    return tool


def test_a_version_is_read_from_a_block_of_requirements(tool: Tool) -> None:
    assert tool.version == "v1.2.3"


def test_the_key_stays_the_same_with_the_pins(tool: Tool) -> None:
    assert tool.key == tool.key


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_a_changed_pin_changes_the_key(tool: Tool, file: str) -> None:
    before = tool.key
    with open(tool.folder / file, "a", encoding="utf-8") as pinned:
        pinned.write("// changed\n")
    assert tool.key != before


@pytest.mark.parametrize("change", [{"toolchain": "go1.25.10"}, {"binaries": {"thing": "example.org/thing/other"}}])
def test_another_way_to_build_changes_the_key(tool: Tool, change: dict[str, object]) -> None:
    assert msgspec.structs.replace(tool, **change).key != tool.key
