"""When images are pulled, and how progress and failures are paced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.providers.containers.image_rules import Progress, Unavailable, is_pulled_anew, wait_after
from datum_compute.providers.engine.words import PullProblem


@pytest.mark.parametrize(
    ("reference", "anew"),
    [
        ("registry.example/hello:latest", True),
        ("registry.example/hello", True),
        ("localhost:5000/team/hello", True),
        ("registry.example/hello:1", False),
        ("registry.example/hello@sha256:00", False),
        ("registry.example/hello:latest@sha256:00", False),
        ("hello:dev", False),
        ("hello", False),
        ("hello:latest", False),
        ("team/hello", False),
        ("localhost/hello", False),
        ("localhost/hello:latest", False),
    ],
)
def test_only_a_moving_tag_of_a_registry_is_pulled_anew(reference: str, anew: bool) -> None:
    assert is_pulled_anew(reference) is anew


@pytest.mark.parametrize(
    ("reference", "problem", "reason"),
    [
        ("localhost/nope:1", PullProblem.NO_ANSWER, "it is not on this machine"),
        ("localhost/nope:1", PullProblem.DISK_FULL, "the disk of the container engine is full"),
        ("nope:1", PullProblem.NO_ANSWER, "it is not on this machine, and the registry does not answer"),
        ("team/nope", PullProblem.MISSING, "it is not on this machine, and the registry does not have it"),
        ("nope:1", PullProblem.OTHER, "it is odd"),
        ("localhost:5000/nope:1", PullProblem.NO_ANSWER, "the registry does not answer"),
        ("registry.example/nope:1", PullProblem.MISSING, "the registry does not have it"),
    ],
)
def test_an_image_without_a_registry_is_missing_on_this_machine(
    reference: str, problem: PullProblem, reason: str
) -> None:
    assert Unavailable(problem, "it is odd", 1.0, reference).reason == reason


def test_a_failed_pull_is_made_again_after_10_s_to_5_min() -> None:
    assert [wait_after(PullProblem.MISSING, failures) for failures in range(1, 9)] == [
        10, 20, 40, 80, 160, 300, 300, 300
    ]  # fmt: skip
    assert [wait_after(PullProblem.DISK_FULL, failures) for failures in (1, 2, 9)] == [30, 30, 30]


@pytest.mark.parametrize(
    ("fraction", "now", "moves"),
    [(0.5, 105.0, True), (0.5, 104.9, False), (0.49, 200.0, False), (0.3, 200.0, False), (None, 200.0, False)],
)
def test_progress_moves_by_a_tenth_and_after_5_s(fraction: float | None, now: float, moves: bool) -> None:
    before = Progress(0.4, 100.0)
    assert (before.moved(fraction, now) == Progress(fraction, now)) is moves
    assert moves or before.moved(fraction, now) is before


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100))))
def test_a_pull_shows_progress_ten_times_at_most_and_never_backwards(steps: list[tuple[float, float]]) -> None:
    progress, now, seen = Progress(), 0.0, []
    for fraction, seconds in steps:
        now += seconds
        if (after := progress.moved(fraction, now)) is not progress:
            progress = after
            seen.append(after.fraction or 0.0)
    assert len(seen) <= 10
    assert seen == sorted(seen)
