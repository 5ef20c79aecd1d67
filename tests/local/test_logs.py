"""Logs of simulated instances, as the command reads and follows them, with a real federation."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datum_compute.local import daemon
from tests.cli.log_federation import until

pytestmark = pytest.mark.timeout(120)


class Program:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environ = {
            "DATUM_COMPUTE_LOCAL_DIR": str(folder / "state"),
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "DATUM_COMPUTE_QUIET": "1",
        }

    def __call__(self, line: str) -> str:
        words = [sys.executable, "-m", "datum_compute.cli.main", *line.split()]
        done = subprocess.run(words, env=self._environ, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def records(self, line: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self(f"{line} -o json").splitlines()]

    def start(self, line: str) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "datum_compute.cli.main", *line.split()]
        with (self._folder / "followed").open("wb") as out:
            return subprocess.Popen(words, env=self._environ, stdout=out, stderr=subprocess.DEVNULL)

    @property
    def followed(self) -> list[dict[str, Any]]:
        whole = (self._folder / "followed").read_bytes().rpartition(b"\n")[0]
        return [json.loads(text) for text in whole.splitlines()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("logs")
    daemon.up(folder / "state")
    program = Program(folder)
    program("deploy api --image=registry.example/api:1 --city=AMS,DFW --min=2 --port=8080")
    yield program
    daemon.down(folder / "state")


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["timestamp"], record["instance"], record["generation"], record["line"]


def test_followed_over_a_roll_and_a_deletion_each_line_arrives_once(program: Program) -> None:
    following = program.start("logs api -f --since=1h -o json")
    try:
        until(lambda: len(program.followed) >= 8)  # four instances that started
        program("deploy api --image=registry.example/api:2")
        until(lambda: sum(record["line"] == "starting registry.example/api:2" for record in program.followed) == 4)
        before = program.records("logs api --since=1h")
        program("destroy api -y --wait")
        left = {key(record) for record in program.records("logs api --since=1h")}
        until(lambda: left <= {key(record) for record in program.followed})
    finally:
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 0
    followed = [key(record) for record in program.followed]
    assert len(followed) == len(set(followed))
    assert set(followed) == left
    assert {key(record) for record in before} <= left
    starts = [record for record in program.followed if record["line"].startswith("starting")]
    assert len(starts) == 8
    assert len({record["generation"] for record in starts}) == 8
