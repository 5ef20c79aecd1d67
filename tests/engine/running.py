"""The engine that `make engine-up` brought up. Entry point: `running_engine`."""

from functools import cache

import pytest

from engine.harness import Engine
from tests.conftest import ENGINE


@cache
def running_engine() -> Engine:
    """With the rights that the roles say today. Whoever sets ENGINE=1 wants the tests run, so none up is a failure."""
    if not ENGINE:
        pytest.skip("needs the real engine: make test-engine")
    engine = Engine()
    if not engine.is_up():
        pytest.fail("ENGINE=1, but the real engine is not up or not whole; run `make engine-up`")
    engine.admit()
    return engine
