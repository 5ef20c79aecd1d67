"""The session in the README is one that a reader gets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from datum_compute.local import daemon

README = Path(__file__).parents[1] / "README.md"
COMPUTE = Path(sys.executable).with_name("compute")


def session() -> list[tuple[list[str], list[str]]]:
    """Each command of the README's session with the lines it shows."""
    found = re.search(r"```console\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert found is not None
    steps = [step.splitlines() for step in found[1].split("$ compute ")[1:]]
    return [(step[0].split(), step[1:]) for step in steps]


@pytest.mark.timeout(120)
def test_every_command_of_the_session_works_and_shows_what_the_readme_says(tmp_path: Path) -> None:
    """Lines with digits tell times, ports and progress, which differ; all others must be there."""
    steps = session()
    assert [words[0] for words, _ in steps] == ["local", "deploy", "status", "restart", "destroy"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("DATUM", "KUBECONFIG"))}
    environ["DATUM_COMPUTE_LOCAL_DIR"] = str(tmp_path)
    try:
        for words, promised in steps:
            done = subprocess.run([COMPUTE, *words], env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            missing = [line for line in promised if not re.search(r"\d", line) and line not in done.stdout.splitlines()]
            assert missing == [], f"compute {' '.join(words)} did not say so"
    finally:
        daemon.down(tmp_path)
