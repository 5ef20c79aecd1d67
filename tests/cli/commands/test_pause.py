"""A paused rollout, and what is refused meanwhile."""

import json
from functools import partial

import pytest

from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, FakeClock, World, condition, nothing
from tests.cli.server import ApiServer


def annotation(api: ApiServer) -> str | None:
    return api.get(WORKLOAD, "shop").metadata.annotations.get(ROLLOUT_PAUSED)


@pytest.fixture
def paused(api: ApiServer, compute: Compute, world: World) -> Compute:
    world.workload(annotations={ROLLOUT_PAUSED: "true", "team": "web"})
    return compute


def test_pause_marks_the_workload_and_waits_for_the_server(api: ApiServer, compute: Compute, world: World) -> None:
    generation = world.workload().metadata.generation
    api.before("GET", "/workloads/shop", nothing)
    paused = condition("Progressing", "Unknown", "RolloutPaused")
    api.before("GET", "/workloads/shop", partial(world.observe, paused))
    result = compute("rollout", "pause", "shop")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0] == 'Rollout of workload "shop" is paused.'
    assert annotation(api) == "true"
    assert api.get(WORKLOAD, "shop").metadata.generation == generation


def test_a_pause_that_is_not_confirmed_gets_a_warning(compute: Compute, world: World, clock: FakeClock) -> None:
    world.workload()
    result = compute("rollout", "pause", "shop")
    assert result.code == 0
    assert result.err == ("  warning: the server did not confirm it in 10 s; instances may still be replaced\n")
    assert sum(clock.slept) == pytest.approx(10)


def test_pausing_twice_writes_once(api: ApiServer, paused: Compute) -> None:
    result = paused("rollout", "pause", "shop")
    assert (result.code, result.out) == (0, 'Rollout of workload "shop" is already paused.\n')
    assert api.writes() == []


def test_resume_removes_only_the_annotation(api: ApiServer, paused: Compute) -> None:
    result = paused("rollout", "resume", "shop")
    assert (result.code, result.lines[0]) == (0, 'Rollout of workload "shop" is resumed.')
    assert api.get(WORKLOAD, "shop").metadata.annotations == {"team": "web"}


def test_resuming_what_is_not_paused(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload()
    assert compute("rollout", "resume", "shop").out == 'Rollout of workload "shop" is not paused.\n'
    assert api.writes() == []


def test_status_of_a_paused_rollout_does_not_wait(paused: Compute) -> None:
    result = paused("rollout", "status", "shop")
    assert (result.code, result.lines[0]) == (0, 'Rollout of workload "shop" is paused.')


def test_json_of_a_paused_rollout_is_not_complete(paused: Compute) -> None:
    result = paused("rollout", "status", "shop", "-o", "json")
    assert json.loads(result.out) == {"complete": False, "elapsedSeconds": 0, "paused": True}


@pytest.mark.parametrize("words", [["restart", "shop"], ["restart", "shop", "--city=DFW"], ["rollout", "undo", "shop"]])
def test_restart_and_undo_refuse_while_paused(api: ApiServer, paused: Compute, words: list[str]) -> None:
    result = paused(*words)
    assert (result.code, result.err) == (
        1,
        'Error: the rollout of workload "shop" is paused\n\ncompute rollout resume shop\n',
    )
    assert api.writes() == []
