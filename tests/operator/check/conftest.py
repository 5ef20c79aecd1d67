"""An installation over real HTTPS, on a real loop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.check.surroundings import Alter, Surroundings, unaltered


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as real:
        yield real


@pytest.fixture
def alter() -> Alter:
    """What planes serve; a test parametrizes it to have them serve something else."""
    return unaltered


@pytest.fixture
def surroundings(runner: asyncio.Runner, tmp_path: Path, alter: Alter) -> Iterator[Surroundings]:
    surroundings = Surroundings(tmp_path, alter)
    serving = surroundings.serving()
    runner.run(serving.__aenter__())
    yield surroundings
    runner.run(serving.__aexit__(None, None, None))
