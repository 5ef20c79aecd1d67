import json

import pytest

from tests.cli.conftest import Compute


@pytest.fixture
def offline(compute: Compute) -> Compute:
    """Nothing here needs a server."""
    compute.environ.clear()
    return compute


def test_the_table(offline: Compute) -> None:
    assert offline("instance-types").out == (
        "NAME                       VCPU   MEMORY   STATUS\ndatumcloud/d1-standard-2   1      2 GiB    Active\n"
    )


def test_one_of_them(offline: Compute) -> None:
    assert "Memory       2 GiB" in offline("instance-types", "describe", "datumcloud/d1-standard-2").out
    document = json.loads(offline("instance-types", "get", "datumcloud/d1-standard-2", "-o", "json").out)
    assert document == {"name": "datumcloud/d1-standard-2", "vcpus": 1, "memoryMiB": 2048, "status": "Active"}


def test_a_missing_workload_is_an_error(offline: Compute) -> None:
    result = offline("instance-types", "describe", "huge")
    assert (result.code, result.err) == (3, 'Error: instance type "huge" not found\n\ncompute instance-types\n')
