"""What runs the instances, decided from what was asked, what is remembered, and whether an engine answers."""

from itertools import product

import pytest

from datum_compute.local.choice import (
    AUTO,
    CONTAINERS,
    SIMULATED,
    WORDS,
    Choice,
    Former,
    Refusal,
    Situation,
    choose,
    needs_engine,
)

IN_CONTAINERS = Choice(CONTAINERS)
IN_SIMULATION = Choice(SIMULATED)


@pytest.mark.parametrize(
    ("wish", "remembered", "has_instances", "answers", "expected"),
    [
        # An engine that answers is used by default, where nothing would be swapped.
        (AUTO, "", False, True, IN_CONTAINERS),
        (AUTO, CONTAINERS, False, True, IN_CONTAINERS),
        (AUTO, CONTAINERS, True, True, IN_CONTAINERS),
        (AUTO, SIMULATED, False, True, IN_CONTAINERS),
        (AUTO, SIMULATED, True, True, Choice(SIMULATED, offers=True)),
        # Without one, everything is as it was before there were containers.
        (AUTO, "", False, False, IN_SIMULATION),
        (AUTO, SIMULATED, False, False, IN_SIMULATION),
        (AUTO, SIMULATED, True, False, IN_SIMULATION),
        (AUTO, CONTAINERS, True, False, Choice(CONTAINERS, waits=True)),
        (AUTO, CONTAINERS, False, False, Choice(CONTAINERS, waits=True)),
        # Whoever asks for containers gets them or an error.
        (CONTAINERS, "", False, False, Refusal.NO_ENGINE),
        (CONTAINERS, CONTAINERS, True, False, Refusal.NO_ENGINE),
        (CONTAINERS, SIMULATED, True, False, Refusal.NO_ENGINE),
        (CONTAINERS, "", False, True, IN_CONTAINERS),
        (CONTAINERS, CONTAINERS, True, True, IN_CONTAINERS),
        (CONTAINERS, SIMULATED, True, True, IN_CONTAINERS),
        # A change to simulation removes the containers first, and does not happen without that.
        (SIMULATED, "", False, False, IN_SIMULATION),
        (SIMULATED, "", False, True, IN_SIMULATION),
        (SIMULATED, SIMULATED, True, True, IN_SIMULATION),
        (SIMULATED, CONTAINERS, True, True, Choice(SIMULATED, Former.REMOVED)),
        (SIMULATED, CONTAINERS, False, True, Choice(SIMULATED, Former.REMOVED)),
        (SIMULATED, CONTAINERS, True, False, Refusal.HELD),
        (SIMULATED, CONTAINERS, False, False, IN_SIMULATION),
    ],
)
def test_what_runs_the_instances(
    wish: str, remembered: str, has_instances: bool, answers: bool, expected: Choice | Refusal
) -> None:
    assert choose(Situation(wish, remembered, has_instances, answers)) == expected


@pytest.mark.parametrize("has_instances", [False, True])
@pytest.mark.parametrize("answers", [False, True])
def test_containers_are_left_behind_only_when_that_is_asked_for(has_instances: bool, answers: bool) -> None:
    left = choose(Situation(SIMULATED, CONTAINERS, has_instances, answers, leave=True))
    assert left == Choice(SIMULATED, Former.LEFT)


def test_what_runs_is_never_swapped_unless_it_is_asked_for() -> None:
    for wish, remembered, answers, leave in product(WORDS, (CONTAINERS, SIMULATED), (False, True), (False, True)):
        choice = choose(Situation(wish, remembered, has_instances=True, answers=answers, leave=leave))
        if isinstance(choice, Choice):
            assert choice.instances == (remembered if wish == AUTO else wish)
            assert choice.waits == (choice.instances == CONTAINERS and not answers)


def test_no_engine_is_touched_for_a_simulation() -> None:
    assert not needs_engine(SIMULATED, "")
    assert not needs_engine(SIMULATED, SIMULATED)
    assert needs_engine(SIMULATED, CONTAINERS), "its containers have to be removed"
    assert not needs_engine(SIMULATED, CONTAINERS, leave=True)
    assert needs_engine(AUTO, SIMULATED)
