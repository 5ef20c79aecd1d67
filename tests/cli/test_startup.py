"""What is loaded for which command. Counted in modules, because milliseconds differ between machines."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import World, kubeconfig
from tests.cli.log_store import LogStore
from tests.cli.server import ApiServer

_PROGRAM = """
import sys
from datum_compute.cli.main import main
code = main(sys.argv[1:])
sys.stdout.flush()
print(*sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def loaded(*words: str, **environ: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stdout, "a command that says nothing has loaded nothing"
    return set(done.stderr.splitlines()[-1].split())


def heavy(modules: set[str], *names: str) -> set[str]:
    return {name for name in modules if name.startswith(names)}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--plugin-manifest"]])
def test_help_version_and_manifest_load_nothing_heavy(words: list[str]) -> None:
    modules = loaded(*words)
    never = ("msgspec", "rich", "yaml", "aiohttp", "asyncio", "http", "ssl", "shutil", "datum_compute.api")
    assert heavy(modules, *never, "datum_compute.kube", "datum_compute.runtime") == set()


def test_the_manifest_does_not_even_load_click() -> None:
    assert heavy(loaded("--plugin-manifest"), "click") == set()


@pytest.mark.parametrize(
    "verb", ["deploy", "status", "workloads", "instances", "scale", "rollout", "quota", "cities", "logs"]
)
def test_the_help_of_a_verb_loads_nothing_that_talks(verb: str) -> None:
    never = ("http", "ssl", "asyncio", "yaml", "rich", "aiohttp", "datum_compute.runtime")
    assert heavy(loaded(verb, "--help"), *never) == set()


def test_a_command_loads_only_its_own_module() -> None:
    found = heavy(loaded("version"), "datum_compute.cli.commands.")
    assert found == {"datum_compute.cli.commands.version"}


ONE_SHOT = [
    ["workloads"],
    ["workloads", "-o", "json"],
    ["workloads", "describe", "shop"],
    ["instances"],
    ["instances", "describe", "shop-default-ams-0"],
    ["status", "shop"],
    ["logs", "shop"],
    ["why", "shop"],
    ["events", "shop"],
    ["why"],
    ["rollout", "history", "shop"],
    ["cities"],
    ["quota"],
    ["access"],
    ["instance-types"],
    ["__complete", "status", ""],
]


@pytest.mark.parametrize("words", ONE_SHOT, ids=" ".join)
def test_one_shot_commands_load_neither_runtime_nor_drawing(
    api: ApiServer, world: World, tmp_path: Path, words: list[str]
) -> None:
    world.settled()
    api.logs = LogStore()
    api.logs.add(time.time_ns(), "shop-default-ams-0", "a line")
    path = kubeconfig(tmp_path / "kubeconfig", api.project_url())
    modules = loaded(*words, KUBECONFIG=str(path))
    never = ("datum_compute.runtime", "datum_compute.embedded", "datum_compute.local", "asyncio", "aiohttp", "uvicorn")
    heavier = ("rich", "structlog", "jsonschema_rs", "cryptography", "subprocess", "secrets")
    assert heavy(modules, *never, *heavier) == set()


@pytest.mark.parametrize("words", [[""], ["local", ""], ["deploy", "--"], ["workloads", "--health="]], ids=" ".join)
def test_completing_words_of_the_program_loads_nothing_that_talks(words: list[str]) -> None:
    never = ("http", "ssl", "asyncio", "yaml", "rich", "aiohttp", "datum_compute.runtime", "datum_compute.local")
    assert heavy(loaded("__complete", *words), *never) == set()
