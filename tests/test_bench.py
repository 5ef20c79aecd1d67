"""Each bench starts as its docstring says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHES = sorted(path for path in (ROOT / "bench").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_a_bench_starts_as_documented_and_shows_its_help(path: Path) -> None:
    assert f"Run with `.venv/bin/python -m bench.{path.stem}`" in path.read_text("utf-8")
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{path.stem}", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m bench.{path.stem} ")
