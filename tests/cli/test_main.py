"""The program as a process: streams that are closed or full, and arguments that are no text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Compute, FakeClock, World, kubeconfig

PROGRAM = (sys.executable, "-m", "datum_compute.cli.main")


def shell(redirected: str, *words: str | bytes, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Runs the program with its streams as a shell would redirect them."""
    command = ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", *PROGRAM, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ)


ANSWERS = [("version",), ("version", "-o", "json"), ("--help",), ("--version",), ("--plugin-manifest",)]


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
@pytest.mark.parametrize(
    ("redirected", "reason"),
    [(">/dev/full", "no space left on device"), (">&-", "it is closed")],
    ids=["full", "closed"],
)
def test_an_unwritable_output_is_an_error(redirected: str, reason: str, words: tuple[str, ...]) -> None:
    done = shell(redirected, *words)
    assert (done.returncode, done.stderr) == (1, f"Error: the output cannot be written: {reason}\n")


@pytest.mark.parametrize("redirected", ["2>&-", "<&-", "2>&- <&-"])
def test_closed_streams_are_no_reason_to_fail(redirected: str, world: World, tmp_path: Path) -> None:
    world.settled()
    path = kubeconfig(tmp_path / "kubeconfig", world.api.project_url())
    done = shell(redirected, "workloads", "-o", "name", "-v", KUBECONFIG=str(path))
    assert (done.returncode, done.stdout) == (0, "workload/shop\n")


@pytest.mark.parametrize(("redirected", "code"), [("2>&-", 2), ("2>/dev/full", 1)])
def test_an_error_without_stderr_still_has_its_exit_code(redirected: str, code: int) -> None:
    done = shell(redirected, "nonsense")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_manifest_from_a_closed_stdin_is_empty() -> None:
    done = shell("<&-", "deploy", "-f", "-")
    assert (done.returncode, done.stderr) == (1, "Error: manifest must contain exactly one Workload\n")


def test_an_undecodable_argument_is_reported_without_its_value() -> None:
    done = shell("", "deploy", "shop", b"--env=KEY=s3cret\xff")
    assert (done.returncode, done.stderr) == (2, "Error: argument 3 is not UTF-8 text\n")


@pytest.mark.parametrize("redirected", [">/dev/full", ">&-"])
def test_completion_is_never_an_error(redirected: str) -> None:
    done = shell(redirected, "__complete", "de")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bug_report_hides_a_token_in_the_error(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("Invalid header value b'Bearer abc.def'\nnext")

    monkeypatch.setattr("datum_compute.cli.talk.target.find_target", broken)
    for words in (["workloads"], ["workloads", "-v"]):
        result = Compute(clock, {})(*words)
        assert (result.code, "abc" in result.err) == (1, False)
        assert result.err.splitlines()[-1] == (
            r"Error: this should not happen: ValueError: Invalid header value b'Bearer (hidden)'\nnext (-v shows where)"
        )


def test_in_the_c_locale_output_is_ascii_though_python_would_write_utf_8(tmp_path: Path) -> None:
    (tmp_path / "federation.log").write_text('{"event": "ready — at last…", "level": "info"}\n', "utf-8")
    result = shell("", "local", "logs", LC_ALL="C", DATUM_COMPUTE_LOCAL_DIR=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "  info     -           -                     ready - at last...\n"
