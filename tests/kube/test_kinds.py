import pytest

from datum_compute.kube.kinds import LEASE, NAMESPACE, Kind
from datum_compute.kube.meta import KubeObject

WIDGET = Kind("test.example", "v1", "Widget", "widgets", KubeObject)


@pytest.mark.parametrize(
    ("kind", "path", "serves"),
    [
        (WIDGET, WIDGET.path(), True),
        (WIDGET, WIDGET.path("ns"), True),
        (WIDGET, WIDGET.path("ns", "one"), True),
        (WIDGET, WIDGET.path("ns", "one", "status"), True),
        (WIDGET, WIDGET.path("widgets", "one"), True),
        (WIDGET, "/apis/test.example/v1/namespaces/widgets/gadgets/one", False),
        (WIDGET, "/apis/test.example/v1/widgetsets", False),
        (WIDGET, "/apis/other.example/v1/widgets", False),
        (WIDGET, "/apis/test.example/v2/widgets", False),
        (WIDGET, NAMESPACE.path(name="widgets"), False),
        (NAMESPACE, NAMESPACE.path(), True),
        (NAMESPACE, NAMESPACE.path(name="ns"), True),
        (NAMESPACE, "/api/v1/pods", False),
        (LEASE, LEASE.path("ns", "lead"), True),
    ],
)
def test_a_kind_recognises_the_paths_of_its_objects(kind: Kind[KubeObject], path: str, serves: bool) -> None:
    assert kind.serves(path) is serves
