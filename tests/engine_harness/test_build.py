"""Builds, with a `go` that only writes down how it was called."""

import io
from pathlib import Path

import pytest

from engine import EngineError, build, pins
from engine.pins import Tool

GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
while [ "$1" != "-o" ]; do shift; done
echo "example.org/compiled" >&2
[ "$3" = "example.org/far" ] && [ "$(grep -c far "$GO_CALLS")" -lt "$GO_FAR" ] && {
  echo 'go: example.org/far@v1: Get "https://proxy.example/far.zip": read tcp: connection reset by peer' >&2; exit 1; }
[ "$3" = "example.org/broken" ] && { echo "it does not compile" >&2; exit 1; }
echo "$3" > "$2"
"""


class Bench:
    """One tool of two binaries, a cache of its own, and the calls that `go` received."""

    def __init__(self, folder: Path) -> None:
        self.calls_file = folder / "calls"
        self.cache = folder / "cache"
        self.tool = Tool("things", "example.org/things", {"one": "example.org/one", "two": "example.org/two"})
        self.output = io.StringIO()

    def build(self, *tools: Tool) -> None:
        build.build(tools or [self.tool], self.output)

    def calls(self) -> list[str]:
        """The packages that were built, in order."""
        if not self.calls_file.exists():
            return []
        return [line.split()[-1] for line in self.calls_file.read_text().splitlines()]

    def built(self) -> list[str]:
        folder = self.cache / "datum-compute" / "engine" / f"{self.tool.name}-{self.tool.key}"
        return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setattr(pins, "MODULES", tmp_path / "modules")
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.setenv("GO_CALLS", str(bench.calls_file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(bench.cache))
    bench.tool.folder.mkdir(parents=True)
    (bench.tool.folder / "go.mod").write_text("module m\n\nrequire example.org/things v1.0.0\n")
    (bench.tool.folder / "go.sum").write_text("")
    return bench


def test_every_binary_is_built_and_reported(bench: Bench) -> None:
    bench.build()

    assert bench.calls() == ["example.org/one", "example.org/two"]
    assert bench.built() == ["one", "two"]
    assert "[1/2] one v1.0.0" in bench.output.getvalue()
    assert "[2/2] two v1.0.0" in bench.output.getvalue()


def test_the_pins_are_never_changed_by_a_build(bench: Bench) -> None:
    bench.build()
    assert all("-mod=readonly" in call for call in bench.calls_file.read_text().splitlines())


def test_a_second_build_runs_nothing(bench: Bench) -> None:
    bench.build()
    bench.calls_file.unlink()

    bench.build()

    assert bench.calls() == []
    assert bench.output.getvalue().endswith("the engine is built; nothing to do\n")


def test_an_interrupted_build_continues_where_it_ended(bench: Bench) -> None:
    broken = Tool("things", "example.org/things", {"one": "example.org/one", "two": "example.org/broken"})
    with pytest.raises(EngineError, match="it does not compile"):
        bench.build(broken)
    assert bench.calls() == ["example.org/one", "example.org/broken"]

    with pytest.raises(EngineError):
        bench.build(broken)

    assert bench.calls()[2:] == ["example.org/broken"]


@pytest.mark.parametrize(("succeeds_at", "calls"), [(1, 1), (3, 3), (9, 3)])
def test_an_interrupted_download_is_retried_a_few_times(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, succeeds_at: int, calls: int
) -> None:
    far = Tool("things", "example.org/things", {"one": "example.org/far"})
    monkeypatch.setenv("GO_FAR", str(succeeds_at))
    if succeeds_at > calls:
        with pytest.raises(EngineError, match="connection reset by peer"):
            bench.build(far)
    else:
        bench.build(far)
    assert bench.calls() == ["example.org/far"] * calls
    assert bench.output.getvalue().count("trying again") == calls - 1


@pytest.mark.parametrize(
    ("processors", "gigabytes", "flags"), [(2, 4, []), (2, 23, []), (16, 8, ["-p", "4"]), (2, 1, ["-p", "1"])]
)
def test_the_memory_limits_how_much_is_compiled_at_once(processors: int, gigabytes: int, flags: list[str]) -> None:
    assert build._at_once(processors, gigabytes << 30) == flags


def test_flags_of_the_caller_do_not_reach_the_build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=mod -insecure")
    assert build._environment(bench.tool)["GOFLAGS"] == ""


def test_new_pins_are_built_beside_the_old_ones(bench: Bench) -> None:
    bench.build()
    (bench.tool.folder / "go.sum").write_text("example.org/things v1.0.0 h1:other=\n")

    bench.build()

    assert len(bench.calls()) == 4


def test_a_missing_go_is_reported_in_one_sentence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(EngineError) as caught:
        bench.build()

    assert str(caught.value).startswith("Go is needed for the real engine, and there is no `go` on PATH;")
    assert "\n" not in str(caught.value)


def test_without_go_finished_builds_still_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.build()
    monkeypatch.setenv("PATH", "/nowhere")
    bench.build()


def test_a_binary_that_is_not_built_is_named(bench: Bench) -> None:
    with pytest.raises(EngineError, match="kubectl is not built from the current pins; run `make engine`"):
        build.binary_of(Tool("things", "example.org/things", {"kubectl": "example.org/kubectl"}), "kubectl")
