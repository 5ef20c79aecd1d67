"""Sites and processes that end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.operator.processes import Manager, Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Manager]]:
    """Starts compute-manager: `start(name, config, *flags, **environment)`."""
    started: list[Manager] = []

    def begin(name: str, config: str, *flags: str, **environment: str) -> Manager:
        started.append(Manager(tmp_path, name, config, *flags, **environment))
        return started[-1]

    yield begin
    for manager in started:
        manager.close()
