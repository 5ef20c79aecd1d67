"""What Tab offers: words of the program itself without a server, names from it, and never an error."""

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest

from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.cli.shell.completion import SHELLS, script
from tests.cli.conftest import IMAGE, NOW, Compute, World, kubeconfig
from tests.cli.server import ApiServer
from tests.conftest import SIMULATED


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
        (["workloads", "--health", "deg"], ["degraded"]),
        (["workloads", "--health=deg"], ["--health=degraded"]),
        (["workloads", "-o", ""], ["table", "wide", "json", "yaml", "name"]),
        (["rollout", "status", "shop", "-o", ""], ["table", "json"]),
        (["--color", "al"], ["always"]),
        (["completion", "z"], ["zsh"]),
        (["logs", "shop", "-o", ""], ["text", "json"]),
        (["deploy", "--image", ""], []),
        (["status", "shop", ""], []),
        (["deploy", "--instance-type", ""], ["datumcloud/d1-standard-2"]),
        (["instance-types", "describe", ""], ["datumcloud/d1-standard-2"]),
        (["workloads", "--watch=t"], ["--watch=true"]),
        (["exec", "shop-default-ams-0", "--", "-"], []),
        (["exec", "shop-default-ams-0", "--", ""], []),
        (["help", "sta"], ["status"]),
        (["help", "rollout", "un"], ["undo"]),
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
        (["deploy", "shop", "--city", "DFW,"], ["DFW,AMS", "DFW,SIN"]),
        (["deploy", "shop", "--city=dfw,sin,"], ["--city=dfw,sin,AMS"]),
        (["scale", "shop", "--placement", ""], ["default"]),
        (["workloads", "s"], ["shop"]),
        (["workloads", "shop", "o"], ["other"]),
        (["status", "workload/s"], ["workload/shop"]),
        (["logs", "s"], ["shop"]),
        (["logs", "shop", "--instance", ""], ["default-ams-0"]),
        (["logs", "workload/shop", "--instance=default-ams-0,"], []),
        (["logs", "other", "--instance", ""], []),
        (["logs", "shop", "--city", "AMS,"], ["AMS,DFW", "AMS,SIN"]),
        (["logs", "shop", "-c", ""], ["app"]),
        (["logs", "shop", "--container="], ["--container=app"]),
        (["exec", "s"], ["shop-default-ams-0"]),
        (["exec", "shop-default-ams-0", "-c", ""], ["app"]),
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


def test_an_unreachable_server_is_an_error(compute: Compute, tmp_path: Path) -> None:
    compute.environ["KUBECONFIG"] = str(kubeconfig(tmp_path / "gone", "http://127.0.0.1:9"))
    assert offered(compute, "status", "") == ([], 4)


def program(folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """`compute` on a PATH of its own."""
    file = folder / "compute"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m datum_compute.cli.main "$@"\n')
    file.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), **SIMULATED, **environ}


class Bash:
    """An interactive bash in a terminal, with the completion script read. Closed by leaving it."""

    def __init__(self, environ: dict[str, str], directory: Path) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ | {"PS1": "$ ", "TERM": "dumb", "COLUMNS": "200"},
            cwd=directory,
            start_new_session=True,
        )
        os.close(slave)
        self._seen = ""
        # Ctrl-T prints what stands on the line, as readline has it.
        show = """bind -x '"\\C-t": printf "<%s>\\n" "$READLINE_LINE"'"""
        self._type("source <(compute completion bash); bind 'set bell-style none'; " + show + "; echo rea''dy\n")
        # Before its prompt readline does not have the terminal yet, whose own Ctrl-U would swallow what is typed.
        self._until("ready\r\n$ ")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def tab(self, line: str) -> str:
        """What the line has become after Tab."""
        self._seen = ""
        self._type(f"{line}\t\x14\x15")  # Tab, show, wipe the line
        return self._until(">").rpartition("<")[2].partition(">")[0]

    def _type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _until(self, mark: str) -> str:
        while mark not in self._seen:
            ready, _, _ = select.select([self._master], [], [], 60)
            assert ready, f"still waiting after: {self._seen!r}"
            self._seen += os.read(self._master, 65536).decode()
        return self._seen


@pytest.fixture
def bash(api: ApiServer, compute: Compute, tmp_path: Path) -> Iterator[Bash]:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    with Bash(program(tmp_path, {"KUBECONFIG": compute.environ["KUBECONFIG"]}), tmp_path) as shell:
        yield shell


TYPED = {
    "names": {
        "compute dep": "compute deploy ",
        "compute status s": "compute status shop ",
        "compute status workload/s": "compute status workload/shop ",
        "compute help stat": "compute help status ",
        "compute instances shop-default-a": "compute instances shop-default-ams-0 ",
        "compute instance-types describe d": "compute instance-types describe datumcloud/d1-standard-2 ",
    },
    "lists": {
        "compute deploy shop --city=D": "compute deploy shop --city=DFW ",
        "compute deploy shop --city D": "compute deploy shop --city DFW ",
        "compute deploy shop --city=DFW,A": "compute deploy shop --city=DFW,AMS ",
        "compute deploy shop --city DFW,sin,a": "compute deploy shop --city DFW,sin,AMS ",
    },
    "values": {
        "compute deploy shop --instance-type=datum": "compute deploy shop --instance-type=datumcloud/d1-standard-2 ",
        "compute scale shop --placement=d": "compute scale shop --placement=default ",
        "compute workloads -o=j": "compute workloads -o=json ",
        "compute instances --workload=s": "compute instances --workload=shop ",
    },
    "contexts and files": {
        "compute workloads --context=p": "compute workloads --context=project-demo ",
        "compute workloads --context p": "compute workloads --context project-demo ",
        "compute deploy --file=sh": "compute deploy --file=shop.yaml ",
        "compute deploy -f sh": "compute deploy -f shop.yaml ",
    },
}


@pytest.mark.parametrize("typed", TYPED.values(), ids=TYPED)
def test_bash_completes_what_is_typed(bash: Bash, world: World, tmp_path: Path, typed: dict[str, str]) -> None:
    world.settled(["AMS", "DFW"], 1)
    (tmp_path / "shop.yaml").touch()
    assert {line: bash.tab(line) for line in typed} == typed


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


def test_an_unknown_shell_is_an_error(offline: Compute) -> None:
    result = offline("completion", "tcsh")
    assert result.code == 2
    assert "use bash, zsh, fish or powershell" in result.err


@pytest.mark.parametrize(
    "flags", [["--kubeconfig", "{path}"], ["--kubeconfig={path}", "--context=there"]], ids=" ".join
)
def test_names_come_from_the_target_that_flags_choose(
    api: ApiServer, world: World, offline: Compute, tmp_path: Path, flags: list[str]
) -> None:
    world.settled()
    path = kubeconfig(tmp_path / "typed", api.project_url(), "there")
    assert offered(offline, "status", *(flag.format(path=path) for flag in flags), "") == (["shop"], 4)


@pytest.mark.parametrize("words", [["--context", "th"], ["--context=th"]])
def test_contexts_come_from_the_kubeconfig_without_a_call(
    api: ApiServer, compute: Compute, tmp_path: Path, words: list[str]
) -> None:
    path = kubeconfig(tmp_path / "typed", api.project_url(), "there")
    found, directive = offered(compute, "status", f"--kubeconfig={path}", *words)
    assert ([name.rpartition("=")[2] for name in found], directive) == (["there"], 4)
    assert api.requests == []


@pytest.mark.parametrize(
    ("folder", "flags"), [("local", []), ("other", ["--dir", "{path}"]), ("other", ["--dir={path}"])]
)
def test_backups_to_restore_are_offered_newest_first(
    offline: Compute, tmp_path: Path, folder: str, flags: list[str]
) -> None:
    backups = tmp_path / folder / "backups"
    backups.mkdir(parents=True)
    for name, hours in (("2026-11-02T100000Z", 2), ("replaced-2026-11-02T110000Z", 1)):
        (backups / f"{name}.db").touch()
        taken = (NOW - timedelta(hours=hours)).timestamp()
        os.utime(backups / f"{name}.db", (taken, taken))
    typed = [flag.format(path=tmp_path / folder) for flag in flags]
    assert offline("__complete", "local", "restore", *typed, "").lines == [
        "replaced-2026-11-02T110000Z\tmade by a restore, 1h ago",
        "2026-11-02T100000Z\tbackup, 2h ago",
        ":4",
    ]
    assert offered(offline, "local", "restore", *typed, "20") == (["2026-11-02T100000Z"], 4)


def test_a_shell_of_another_character_set_gets_what_it_can_show(api: ApiServer, compute: Compute) -> None:
    api.patch(LOCATION_BINDING, "dfw", {"spec": {"displayName": "Dällas\nx"}})
    result = compute("__complete", "deploy", "shop", "--city", "d", encoding="ascii")
    assert (result.code, result.lines) == (0, ["DFW\tD?llas\\nx", ":4"])


def test_no_candidates_after_any_failure(offline: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> str:
        raise RuntimeError

    monkeypatch.setattr("datum_compute.cli.shell.completion.answer", broken)
    assert offered(offline, "de") == ([], 4)
