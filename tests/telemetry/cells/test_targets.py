"""Which Instances a reader may look into: those that project and hub agree on, while their provider runs them."""

from typing import Any

import pytest

from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.labels import CITY_CODE, PLACEMENT_NAME, SOURCE_CLUSTER, WORKLOAD_NAME
from datum_compute.federation.identity import hub_labels
from datum_compute.kube.kinds import NAMESPACE, Namespace
from datum_compute.kube.meta import Json, encode
from datum_compute.telemetry.cells.targets import Target, targets

RESOURCES = {"resources": {"instanceType": "datumcloud/d1-standard-2"}}


def conditions(**reasons: tuple[str, str]) -> Json:
    rest = {"message": "", "lastTransitionTime": "2026-11-18T12:00:00Z"}
    return {
        "conditions": [
            {"type": type_, "status": status, "reason": reason} | rest for type_, (status, reason) in reasons.items()
        ]
    }


RUNNING = conditions(Programmed=("True", "Programmed"))


def namespace(name: str, uid: str = "", **labels: str) -> Namespace:
    return NAMESPACE.decode(encode(NAMESPACE.body(name, uid=uid, labels=labels)))


def hub(project: str, name: str, uid: str) -> Namespace:
    return NAMESPACE.decode(encode(NAMESPACE.body(f"ns-{uid}", labels=hub_labels(project, name))))


def copy(
    project: str, namespace: str, uid: str, name: str = "api-default-dfw-0", status: Json | None = None, **labels: str
) -> Instance:
    own = {WORKLOAD_NAME: "api", PLACEMENT_NAME: "default", CITY_CODE: "DFW", SOURCE_CLUSTER: "pop-dfw"}
    sandbox = {"containers": [{"name": "app", "image": "a"}, {"name": "side", "image": "b"}]}
    spec = {"runtime": {"sandbox": sandbox} | RESOURCES, "networkInterfaces": []}
    labels = own | hub_labels(project, namespace) | labels
    body = INSTANCE.body(name, f"ns-{uid}", uid="uid-of-the-copy", labels=labels)
    return INSTANCE.decode(encode(body | {"spec": spec, "status": status or RUNNING}))


class Hub:
    def __init__(self, namespaces: list[Namespace], copies: list[Instance]) -> None:
        self.namespaces = {item.name: item for item in namespaces}
        self.copies = copies

    def of(self, project: str, *namespaces: Namespace) -> list[Target]:
        def within(place: str) -> list[Instance]:
            return [item for item in self.copies if item.namespace == place]

        return list(targets(project, namespaces, self.namespaces.get, within))


def test_an_instance_is_known_by_its_copy_on_the_hub() -> None:
    found = Hub([hub("demo", "default", "1")], [copy("demo", "default", "1")]).of("demo", namespace("default", "1"))
    assert found == [
        Target(
            namespace="default",
            place="ns-1",
            instance="api-default-dfw-0",
            generation="uid-of-the-copy",
            workload="api",
            placement="default",
            city="DFW",
            cell="pop-dfw",
            containers=("app", "side"),
            runs=True,
        )
    ]
    assert found[0].labels("side").values() == {
        "datum_workload_name": "api",
        "datum_instance_name": "api-default-dfw-0",
        "k8s_container_name": "side",
        "k8s_pod_uid": "uid-of-the-copy",
        "datum_namespace_name": "default",
        "datum_placement_name": "default",
        "datum_city_code": "DFW",
    }


def test_projects_with_equal_names_see_only_their_own() -> None:
    both = Hub(
        [hub("demo", "default", "1"), hub("shop", "default", "2")],
        [copy("demo", "default", "1"), copy("shop", "default", "2")],
    )
    assert [found.place for found in both.of("demo", namespace("default", "1"))] == ["ns-1"]
    assert [found.place for found in both.of("shop", namespace("default", "2"))] == ["ns-2"]


def test_a_project_that_claims_the_uid_of_anothers_namespace_sees_nothing() -> None:
    victim = Hub([hub("demo", "default", "1")], [copy("demo", "default", "1")])
    assert victim.of("evil", namespace("default", "1")) == []
    assert victim.of("demo", namespace("other", "1")) == [], "nor another namespace of the same project"


def test_a_copy_with_labels_of_another_project_is_left_out() -> None:
    copies = [
        copy("shop", "default", "1", "a-0"),
        copy("demo", "other", "1", "b-0"),
        copy("demo", "default", "1", "c-0"),
    ]
    found = Hub([hub("demo", "default", "1")], copies).of("demo", namespace("default", "1"))
    assert [target.instance for target in found] == ["c-0"]


def test_namespaces_without_identity_or_uid_have_nothing() -> None:
    nameless = Hub([namespace("ns-1")], [copy("demo", "default", "1")])
    assert nameless.of("demo", namespace("default", "1")) == []
    assert Hub([hub("demo", "default", "")], [copy("demo", "default", "")]).of("demo", namespace("default")) == []
    assert Hub([], [copy("demo", "default", "1")]).of("demo", namespace("default", "1")) == []


def test_a_copy_that_makes_no_sense_hides_only_itself() -> None:
    broken = INSTANCE.decode(encode(INSTANCE.body("b-0", "ns-1", labels=hub_labels("demo", "default")) | {"spec": 7}))
    found = Hub([hub("demo", "default", "1")], [broken, copy("demo", "default", "1")])
    assert [target.instance for target in found.of("demo", namespace("default", "1"))] == ["api-default-dfw-0"]


@pytest.mark.parametrize(
    ("status", "readable", "runs"),
    [
        (RUNNING, True, True),
        (conditions(Programmed=("Unknown", "ProgrammingInProgress")), False, False),
        (conditions(Programmed=("False", "Stopping")), False, False),
        (conditions(Programmed=("False", "Stopping")) | {"controller": {"observedTemplateHash": "abc"}}, True, True),
        (conditions(Available=("False", "InstanceCrashing")), True, False),
        (conditions(Programmed=("Unknown", "InstanceCrashing")), True, False),
        ({"conditions": []}, False, False),
    ],
)  # fmt: skip
def test_something_else_with_the_name_of_an_instance_is_never_read(status: Any, readable: bool, runs: bool) -> None:
    """Until its provider says that it runs the Instance, whatever has its name may be somebody else's."""
    hub_ = Hub([hub("demo", "default", "1")], [copy("demo", "default", "1", status=status)])
    [found] = hub_.of("demo", namespace("default", "1"))
    assert (found.readable, found.runs) == (readable, runs)
