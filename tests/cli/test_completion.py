"""What Tab offers: words of the program itself without a server, names from it, and never an error."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from datum_compute.cli.completion import SHELLS, script
from tests.cli.conftest import IMAGE, Compute, World, kubeconfig
from tests.cli.server import ApiServer


def offered(compute: Compute, *words: str) -> tuple[list[str], int]:
    result = compute("__complete", *words)
    assert (result.code, result.err) == (0, "")
    *lines, directive = result.lines
    return [line.partition("\t")[0] for line in lines], int(directive.removeprefix(":"))


@pytest.fixture
def offline(compute: Compute) -> Compute:
    compute.environ.clear()
    return compute


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["de"], ["deploy", "destroy"]),
        (["rollout", "re"], ["restart", "resume"]),
        (["nonsense", ""], []),
        (["workloads", "--hea"], ["--health"]),
        (["workloads", "--health", "d"], ["degraded"]),
        (["workloads", "--health=d"], ["--health=degraded"]),
        (["workloads", "-o", ""], ["table", "wide", "json", "yaml", "name"]),
        (["rollout", "status", "shop", "-o", ""], ["table", "json"]),
        (["--color", "al"], ["always"]),
        (["completion", "z"], ["zsh"]),
        (["deploy", "--image", ""], []),
        (["status", "shop", ""], []),
    ],
)
def test_words_of_the_program_need_no_server(offline: Compute, words: list[str], values: list[str]) -> None:
    assert offered(offline, *words) == (values, 4)


def test_every_verb_is_offered_with_its_help(offline: Compute) -> None:
    lines = offline("__complete", "").lines
    assert "scale\tSet how many instances run in each city." in lines
    assert lines[-1] == ":4"


@pytest.mark.parametrize(
    "words", [["local", "up", "--help", "--kubeconfig", ""], ["--kubeconfig", ""], ["deploy", "--save="]]
)
def test_files_are_left_to_the_shell(offline: Compute, words: list[str]) -> None:
    assert offered(offline, *words) == ([], 0)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["status", ""], ["other", "shop"]),
        (["status", "sh"], ["shop"]),
        (["rollout", "sh"], ["shop"]),
        (["rollout", "undo", "o"], ["other"]),
        (["instances", "describe", ""], ["shop-default-ams-0"]),
        (["instances", "--workload", "s"], ["shop"]),
        (["deploy", "shop", "--city", "d"], ["DFW"]),
        (["deploy", "shop", "--city=d"], ["--city=DFW"]),
    ],
)
def test_names_come_from_the_project(
    api: ApiServer, compute: Compute, world: World, words: list[str], values: list[str]
) -> None:
    world.workload()
    World(api, "other").workload()
    world.instance("AMS", 0)
    api.requests.clear()
    assert offered(compute, *words) == (values, 4)
    assert len(api.requests) == 1


def test_revisions_with_image_and_age(api: ApiServer, compute: Compute) -> None:
    compute("deploy", "shop", f"--image={IMAGE}", "--city=DFW", "--no-wait")
    assert compute("__complete", "rollout", "undo", "shop", "--to-revision", "").lines == ["1\tshop:2.1, 0s ago", ":4"]


def test_a_new_deploy_is_offered_its_flags(api: ApiServer, compute: Compute) -> None:
    found, _ = offered(compute, "deploy", "")
    assert "--image" in found


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500])
def test_a_server_that_refuses_offers_nothing_and_is_asked_once(api: ApiServer, compute: Compute, code: int) -> None:
    api.answer("GET", "/workloads", code, times=9)
    assert offered(compute, "status", "") == ([], 4)
    assert len(api.requests) == 1


def test_a_server_that_is_not_there(compute: Compute, tmp_path: Path) -> None:
    compute.environ["KUBECONFIG"] = str(kubeconfig(tmp_path / "gone", "http://127.0.0.1:9"))
    assert offered(compute, "status", "") == ([], 4)


def program(folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """`compute` on a PATH of its own."""
    file = folder / "compute"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m datum_compute.cli.main "$@"\n')
    file.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), **environ}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_with_the_script(api: ApiServer, world: World, compute: Compute, tmp_path: Path) -> None:
    world.workload()
    ask = """
source <(compute completion bash)
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _compute; echo "${COMPREPLY[@]}"; }
ask compute de
ask compute status s
ask compute rollout his
"""
    environ = program(tmp_path, {"KUBECONFIG": compute.environ["KUBECONFIG"]})
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, env=environ)
    assert (done.stdout, done.stderr) == ("deploy destroy\nshop\nhistory\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_that_are_here_accept_their_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    file = tmp_path / "script"
    file.write_text(script(shell, "compute"))
    subprocess.run([shell, "-n", str(file)], check=True, capture_output=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_names_the_program(offline: Compute, shell: str) -> None:
    assert "compute __complete" in offline("completion", shell).out


def test_a_shell_we_do_not_know(offline: Compute) -> None:
    result = offline("completion", "tcsh")
    assert result.code == 2
    assert "use bash, zsh, fish or powershell" in result.err


@pytest.mark.parametrize(
    "flags", [["--kubeconfig", "{path}"], ["--kubeconfig={path}", "--context=there"]], ids=" ".join
)
def test_names_come_from_the_place_that_was_typed_before(
    api: ApiServer, world: World, offline: Compute, tmp_path: Path, flags: list[str]
) -> None:
    world.settled()
    path = kubeconfig(tmp_path / "typed", api.project_url(), "there")
    assert offered(offline, "status", *(flag.format(path=path) for flag in flags), "") == (["shop"], 4)


def test_a_shell_of_another_character_set_gets_what_it_can_show(api: ApiServer, compute: Compute) -> None:
    assert compute("deploy", "shop", "--image=böse\nx", "--city=DFW", "--no-wait").code == 0
    result = compute("__complete", "rollout", "undo", "shop", "--to-revision", "", encoding="ascii")
    assert (result.code, result.lines) == (0, ["1\tb?se\\nx, 0s ago", ":4"])


def test_a_failure_of_any_kind_offers_nothing(offline: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> str:
        raise RuntimeError

    monkeypatch.setattr("datum_compute.cli.completion.answer", broken)
    assert offered(offline, "de") == ([], 4)
