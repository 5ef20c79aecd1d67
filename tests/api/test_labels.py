"""Labels, annotations and finalizers, and how projects are encoded in labels."""

import re

from hypothesis import given
from hypothesis import strategies as st

from datum_compute.api import labels
from datum_compute.federation.identity import decode, encode

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
projects = st.from_regex(r"[a-z]([-a-z0-9]{0,53}[a-z0-9])?", fullmatch=True)  # Milo: at most 55 characters


def test_an_instance_has_seven_labels() -> None:
    assert labels.COMPUTE_LABELS == (
        "compute.datumapis.com/workload-uid",
        "compute.datumapis.com/workload-deployment-uid",
        "compute.datumapis.com/workload-deployment-name",
        "compute.datumapis.com/workload-name",
        "compute.datumapis.com/placement-name",
        "compute.datumapis.com/city-code",
        "compute.datumapis.com/instance-index",
    )


def test_a_key_is_never_renamed_or_dropped() -> None:
    others = {mark.key for mark in labels.LABELS} - set(labels.COMPUTE_LABELS)
    assert others == {
        "topology.datum.net/city-code",
        "meta.datumapis.com/upstream-cluster-name",
        "meta.datumapis.com/upstream-namespace",
        "compute.datumapis.com/source-cluster",
        "compute.datumapis.com/instance-namespace",
        "services.miloapis.com/service-name",
        "quota.miloapis.com/consumer-kind",
        "quota.miloapis.com/consumer-name",
        "compute.datumapis.com/local",
        "compute.datumapis.com/local-directory",
        "compute.datumapis.com/project",
        "compute.datumapis.com/namespace",
        "compute.datumapis.com/city",
        "compute.datumapis.com/instance",
        "compute.datumapis.com/instance-uid",
        "compute.datumapis.com/container",
        "compute.datumapis.com/template-hash",
    }
    assert {mark.key for mark in labels.ANNOTATIONS} == {
        "compute.datumapis.com/federation-namespace",
        "compute.datumapis.com/upstream-generation",
        "compute.datumapis.com/upstream-uid",
        "compute.datumapis.com/serving-cluster",
        "compute.datumapis.com/accepted-uid",
        "compute.datumapis.com/withdrawn",
        "compute.datumapis.com/withdrawn-uids",
        "compute.datumapis.com/release",
        "compute.datumapis.com/restartedAt",
        "compute.datumapis.com/city-restarts",
        "compute.datumapis.com/rollout-paused",
        "compute.datumapis.com/ssh-keys",
        "compute.datumapis.com/current-revision",
        "compute.datumapis.com/network-addresses",
        "compute.datumapis.com/simulate",
        "discovery.miloapis.com/parent-contexts",
        "tracing.k8s.io/traceparent",
    }
    assert {mark.key for mark in labels.FINALIZERS} == {
        "compute.datumapis.com/workload-controller",
        "compute.datumapis.com/federator",
        "compute.datumapis.com/instance-controller",
        "quota.compute.datumapis.com/claim-cleanup",
        "compute.datumapis.com/simulated-provider",
        "compute.datumapis.com/pods-provider",
        "compute.datumapis.com/containers-provider",
        "networking.datumapis.com/network-controller",
        "unikraft.datumapis.com/finalizer",
    }


def test_every_key_has_a_row() -> None:
    constants = {value for name, value in vars(labels).items() if name.isupper() and isinstance(value, str)}
    rows = {mark.key for mark in (*labels.LABELS, *labels.ANNOTATIONS, *labels.FINALIZERS)}
    assert {value for value in constants if "/" in value} == rows


@given(projects)
def test_every_project_fits_a_label_and_comes_back(project: str) -> None:
    assert LABEL_VALUE.fullmatch(encode(project))
    assert decode(encode(project)) == project


@given(projects, projects)
def test_no_two_projects_share_a_label(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)
