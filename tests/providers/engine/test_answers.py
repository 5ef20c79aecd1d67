"""What engines say, read the same way whichever of them says it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.kube.meta import Json
from datum_compute.providers.engine.answers import (
    Pull,
    TooOld,
    api_version,
    container_of,
    event_of,
    info_of,
    message_of,
    networks_of,
    repository_and_tag,
    summaries_of,
)
from datum_compute.providers.engine.interface import PullProgress

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["Id", "Name", "Names", "Config", "State", "NetworkSettings", "Labels", "Actor", "Attributes", "error",
     "errorDetail", "progressDetail", "status", "id", "Components", "NCPU", "Ports", "Networks", "message"]
)  # fmt: skip


@given(st.dictionaries(FIELDS, JSON | st.dictionaries(FIELDS, JSON, max_size=4), max_size=8))
def test_no_answer_is_too_odd_to_be_read(answer: Json) -> None:
    container_of(answer)
    summaries_of([answer, None, 7])
    networks_of([answer, None, 7], {})
    event_of(answer)
    message_of(answer)
    info_of(answer, answer, "1.44", "unix:///s")
    Pull().add(answer)


def test_networks_without_the_labels_asked_for_are_left_out() -> None:
    ours, others = {"Name": "ours", "Labels": {"id": "a", "x": ""}}, {"Name": "others", "Labels": {"id": "b"}}
    assert networks_of([ours, others, {"Name": "bridge", "Labels": None}, {"Name": "host"}], {"id": "a"}) == ["ours"]


def state(**fields: Any) -> Any:
    return container_of({"Id": "a", "State": fields}).state


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("configured", "created"),
        ("initialized", "created"),
        ("stopped", "exited"),
        ("stopping", "running"),
        ("Running", "running"),
        ("dead", "dead"),
    ],
)
def test_states_have_one_name(written: str, expected: str) -> None:
    assert state(Status=written).status == expected


def test_a_container_ends_after_it_started() -> None:
    times = {"StartedAt": "2026-06-01T12:00:00.5Z", "FinishedAt": "2026-06-01T12:00:00.4Z"}
    ended = state(Status="exited", **times)
    assert ended.finished == ended.started
    again = state(Status="running", **times)
    assert again.finished < again.started


def test_only_published_ports_are_listed() -> None:
    ports: Json = {
        "8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "37991"}],
        "53/udp": [{"HostPort": "0"}, {"HostPort": "40000"}],
        "9000/tcp": None,
        "9001/tcp": [],
    }
    assert container_of({"NetworkSettings": {"Ports": ports}}).ports == {"8080/tcp": 37991, "53/udp": 40000}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("nginx", ("nginx", "latest")),
        ("nginx:1.27", ("nginx", "1.27")),
        ("registry:5000/web", ("registry:5000/web", "latest")),
        ("registry:5000/web:2", ("registry:5000/web", "2")),
        ("quay.io/a/b@sha256:00", ("quay.io/a/b", "sha256:00")),
        ("quay.io/a/b:1@sha256:00", ("quay.io/a/b", "sha256:00")),
    ],
)
def test_what_is_pulled(reference: str, expected: tuple[str, str]) -> None:
    assert repository_and_tag(reference) == expected


def test_progress_is_summed_over_layers_and_never_goes_back() -> None:
    pull = Pull()

    def step(layer: str, status: str, current: int = 0, total: int = 0) -> float | None:
        return pull.add(
            {"id": layer, "status": status, "progressDetail": {"current": current, "total": total}}
        ).fraction

    assert step("a", "Pulling fs layer") is None
    assert step("a", "Downloading", 50, 100) == 0.5
    assert step("b", "Downloading", 0, 300) == 0.5
    assert step("b", "Downloading", 250, 300) == 0.75
    assert step("a", "Download complete") == 0.875
    assert step("a", "Extracting", 1, 100) == 0.875
    assert step("b", "Pull complete") == 1


def test_an_error_in_a_pull_is_one_line() -> None:
    assert Pull().add({"error": "manifest\n  unknown"}) == PullProgress(error="manifest unknown")
    assert Pull().add({"errorDetail": {"message": "denied"}}) == PullProgress(error="denied")


@pytest.mark.parametrize("offered", ["1.39", "", "x", "1"])
def test_a_version_that_is_too_old(offered: str) -> None:
    with pytest.raises(TooOld):
        api_version(offered, "1.12")


@pytest.mark.parametrize(
    ("offered", "minimum", "expected"),
    [("1.40", "1.12", "1.40"), ("1.51", "1.44", "1.44"), ("1.51", "", "1.44"), ("1.60", "1.50", "1.50")],
)
def test_the_version_to_speak(offered: str, minimum: str, expected: str) -> None:
    assert api_version(offered, minimum) == expected
