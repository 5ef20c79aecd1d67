"""Which ends of containers count as crashes, and how long the next start waits."""

import pytest

from datum_compute.providers.containers.runs import (
    Runs,
    Trouble,
    forgotten,
    observed,
    troubled,
    wait_after_crash,
    wait_after_refusal,
)
from datum_compute.providers.engine.interface import ContainerState
from datum_compute.providers.engine.words import Refusal

SECOND = 10**9
WALL = 1_000_000 * SECOND


def state(status: str, started: float = 0.0, lasted: float = 0.0, code: int = 3) -> ContainerState:
    begun = WALL + int(started * SECOND) if started else 0
    finished = begun + int(lasted * SECOND) if status == "exited" else 0
    return ContainerState(status, code, False, "", begun, finished)


def look(runs: Runs, found: ContainerState, now: float = 100.0) -> Runs:
    return observed(runs, found, now, WALL + int(now * SECOND))


def test_containers_wait_longer_with_each_crash() -> None:
    assert [wait_after_crash(count) for count in range(1, 11)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(
    ("refusal", "waits"),
    [
        (Refusal.DISK_FULL, [30, 30, 30, 30, 30]),
        (Refusal.PROGRAM_MISSING, [300, 300, 300, 300, 300]),
        (Refusal.PROGRAM_UNUSABLE, [300, 300, 300, 300, 300]),
        (Refusal.OTHER_PROCESSOR, [300, 300, 300, 300, 300]),
        (Refusal.PORT_TAKEN, [0, 0, 0, 10, 10]),
        (Refusal.NAME_TAKEN, [10, 10, 10, 10, 10]),
        (Refusal.OTHER, [30, 60, 120, 240, 300]),
    ],
)
def test_refusals_are_tried_again(refusal: Refusal, waits: list[float]) -> None:
    assert [wait_after_refusal(refusal, count) for count in range(1, 6)] == waits


def test_an_end_that_was_seen_counts_once() -> None:
    runs = look(Runs(starting=True), state("running", 99))
    ended = look(runs, state("exited", 99, 2))
    assert (ended.count, ended.crashed, ended.again_at) == (1, True, 100.0)
    assert look(ended, state("exited", 99, 2), now=500.0) == ended


def test_a_container_that_dies_before_anybody_looks_has_crashed() -> None:
    assert look(Runs(starting=True), state("exited", 99, 0.1)).crashed


def test_what_ended_while_nobody_watched_did_not_crash() -> None:
    runs = look(Runs(), state("exited", 5, 2))
    assert (runs.count, runs.crashed, runs.again_at) == (0, False, 100.0)


def test_what_this_process_stopped_did_not_crash() -> None:
    runs = look(Runs(run=state("running", 5).started, stopping=True, count=2), state("exited", 5, 2))
    assert (runs.count, runs.crashed, runs.stopping) == (2, False, False)


def test_ends_within_a_minute_add_up_and_a_minute_of_running_forgives() -> None:
    runs = Runs()
    for number in range(1, 4):
        runs = look(look(runs, state("running", number)), state("exited", number, 59.9))
        assert runs.count == number
    runs = look(look(runs, state("running", 7)), state("exited", 7, 60))
    assert (runs.count, runs.again_at) == (1, 100.0)


def test_a_start_that_was_refused_is_not_the_end_of_a_run() -> None:
    ended = look(Runs(starting=True), state("exited", 5, 1))
    again = Runs(run=ended.run, ended=ended.ended, count=1, crashed=True, starting=True)
    assert look(again, state("exited", 5, 1)) == again
    assert look(Runs(starting=True), state("created")) == Runs(starting=True)


def test_a_run_that_others_began_is_as_old_as_the_engine_says() -> None:
    assert look(Runs(), state("running", 40), now=100).since == 40
    assert look(Runs(), state("running", 130), now=100).since == 100
    assert look(Runs(starting=True), state("running", 40), now=100).since == 100


def test_a_container_that_was_started_by_hand_is_watched_from_then_on() -> None:
    waiting = look(look(Runs(), state("running", 1)), state("exited", 1, 2))
    running = look(waiting, state("running", 50))
    assert look(running, state("exited", 50, 3)).count == 2


def test_an_outage_of_the_engine_counts_for_nothing() -> None:
    runs = forgotten(look(Runs(count=3), state("running", 50)))
    ended = look(runs, state("exited", 50, 3))
    assert (ended.crashed, ended.count) == (False, 3)


def test_refusals_of_one_kind_add_up() -> None:
    first = troubled(None, Refusal.OTHER, "no", 10.0, anew=True)
    assert first == Trouble(Refusal.OTHER, "no", 1, 40.0, True)
    assert troubled(first, Refusal.OTHER, "no", 40.0, anew=False) == Trouble(Refusal.OTHER, "no", 2, 100.0, False)
    assert troubled(first, Refusal.PORT_TAKEN, "", 40.0, anew=True).count == 1
