from typing import Any

import pytest

from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.run import Settings


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({}, {}, {}),
        ({}, {"DATUM_COMPUTE_QUIET": "1"}, {"quiet": True}),
        ({}, {"DATUM_COMPUTE_QUIET": "false"}, {"quiet": False}),
        ({}, {"DATUM_COMPUTE_VERBOSE": "2"}, {"verbose": 2}),
        ({}, {"DATUM_COMPUTE_VERBOSE": "yes"}, {"verbose": 1}),
        ({"verbose": 1}, {"DATUM_COMPUTE_VERBOSE": "2"}, {"verbose": 1}),
        ({}, {"DATUM_COMPUTE_REQUEST_TIMEOUT": "1m30s"}, {"request_timeout": 90.0}),
        ({"request_timeout": 5.0}, {"DATUM_COMPUTE_REQUEST_TIMEOUT": "1m"}, {"request_timeout": 5.0}),
        (
            {"project": "a", "output": "json", "color": "never"},
            {},
            {"project": "a", "output": "json", "color": "never"},
        ),
    ],
)
def test_a_flag_wins_over_the_environment(
    flags: dict[str, Any], environ: dict[str, str], expected: dict[str, Any]
) -> None:
    assert Settings.of(flags, environ) == Settings(**expected)


def test_an_environment_that_makes_no_sense_is_named() -> None:
    with pytest.raises(Failure, match='DATUM_COMPUTE_REQUEST_TIMEOUT: "soon" is not a duration'):
        Settings.of({}, {"DATUM_COMPUTE_REQUEST_TIMEOUT": "soon"})
