"""How the resources of an instance are shared."""

import msgspec
import pytest

from datum_compute.api.template import InstanceRuntime
from datum_compute.kube.meta import Json
from datum_compute.providers.shares import shares_of


def runtime(*limits: Json, type_: str = "datumcloud/d1-standard-2") -> InstanceRuntime:
    containers = [
        {"name": f"c{index}", "image": "x", "resources": {"limits": limit}} for index, limit in enumerate(limits)
    ]
    body = {"resources": {"instanceType": type_}, "sandbox": {"containers": containers}}
    return msgspec.convert(body, InstanceRuntime)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([{}], [{"cpu": "1000m", "memory": "2048Mi"}]),
        ([{}, {}, {}], [{"cpu": "333m", "memory": "682Mi"}] * 3),
        ([{"cpu": 2}, {}], [{"cpu": 2, "memory": "1024Mi"}, {"cpu": "1000m", "memory": "1024Mi"}]),
    ],
)
def test_containers_without_a_limit_share_equally(limits: list[Json], expected: list[Json]) -> None:
    assert shares_of(runtime(*limits)) == expected


def test_an_unknown_type_limits_only_memory() -> None:
    assert shares_of(runtime({}, type_="someone/elses")) == [{"memory": "1024Mi"}]
