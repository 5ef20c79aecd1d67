"""Why something requested cannot be created, as conditions word it."""

import pytest

from datum_compute.federation.obstacles import Blocked, Obstacle, Obstacles, obstacles
from datum_compute.kube.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    NotFound,
    Timeout,
    TooLarge,
    TooManyRequests,
    Unavailable,
)
from datum_compute.runtime.problems import Problems
from datum_compute.runtime.requests import Request, Unfinished


def collected(*errors: ApiError | Unfinished, names: str = "0123") -> Problems:
    """One problem per error, about the Instance whose ordinal is at the same place in `names`."""
    problems = Problems()
    for ordinal, error in zip(names, errors, strict=False):
        with problems.collect(f"Instance web-{ordinal}"):
            raise error
    return problems


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Invalid("no"), "SpecRefused"),
        (BadRequest("no"), "SpecRefused"),
        (TooLarge("no"), "SpecRefused"),
        (Forbidden("no"), "WriteForbidden"),
        (MethodNotAllowed("no"), "WriteForbidden"),
    ],
)
def test_a_refusal_has_a_reason_and_the_message_of_the_server(error: ApiError, reason: str) -> None:
    assert obstacles(collected(error)) == {"Instance web-0": Obstacle(reason, "Instance web-0 was refused: no")}


def test_a_blocked_pass_brings_its_own_reason() -> None:
    blocked = collected(Blocked("DeploymentNameTaken", "it is taken"))
    assert obstacles(blocked) == {"Instance web-0": Obstacle("DeploymentNameTaken", "it is taken")}


@pytest.mark.parametrize(
    "error", [Unavailable(""), Timeout(""), TooManyRequests(""), Conflict(""), NotFound(""), Unfinished("later")]
)
def test_an_error_that_resolves_itself_is_no_obstacle(error: ApiError | Unfinished) -> None:
    assert obstacles(collected(error)) == {}


def test_each_subject_has_its_first_refusal_in_order_of_occurrence() -> None:
    problems = collected(Invalid("first"), Unavailable(""), Forbidden("third"), Forbidden("later"), names="0120")
    assert [(subject, obstacle.message) for subject, obstacle in obstacles(problems).items()] == [
        ("Instance web-0", "Instance web-0 was refused: first"),
        ("Instance web-2", "Instance web-2 was refused: third"),
    ]


def test_a_long_message_is_cut_so_that_it_fits_into_an_event() -> None:
    (obstacle,) = obstacles(collected(Invalid("x" * 100_000))).values()
    assert len(obstacle.message) < 1100
    assert obstacle.message.endswith("...")


WEB = Request("demo", "default", "web")


def current(obstacles: Obstacles, error: ApiError | Unfinished | None, generation: int = 1) -> str:
    """The message of the only obstacle after this error; empty when there is none."""
    problems = collected(error) if error is not None else Problems()
    return next((obstacle.message for obstacle in obstacles.update(WEB, generation, problems).values()), "")


def test_a_refusal_keeps_its_first_message_for_its_generation() -> None:
    known, first = Obstacles(), "Instance web-0 was refused: at 12:00"
    assert current(known, Invalid("at 12:00")) == first
    assert current(known, Invalid("at 12:01")) == first
    (other,) = known.update(Request("demo", "default", "other"), 1, collected(Invalid("at 12:01"))).values()
    assert other.message == "Instance web-0 was refused: at 12:01"
    assert current(known, Forbidden("no right")) == "Instance web-0 was refused: no right"
    assert current(known, Forbidden("at 12:02"), generation=2) == "Instance web-0 was refused: at 12:02"


@pytest.mark.parametrize("end", ["accepted", "deleted", "disengaged"])
def test_the_message_of_a_refusal_that_is_over_is_forgotten(end: str) -> None:
    known = Obstacles()
    current(known, Invalid("at 12:00"))
    match end:
        case "accepted":
            assert current(known, None) == ""
        case "deleted":
            known.forget(WEB)
        case "disengaged":
            known.forget_plane("demo")
    assert current(known, Invalid("at 12:01")) == "Instance web-0 was refused: at 12:01"


def test_our_own_messages_are_always_the_newest() -> None:
    known = Obstacles()
    current(known, Blocked("DeploymentNameTaken", "taken by one"))
    assert current(known, Blocked("DeploymentNameTaken", "taken by another")) == "taken by another"
