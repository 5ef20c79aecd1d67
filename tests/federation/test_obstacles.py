"""What people are told when something cannot be made."""

import pytest

from datum_compute.federation.obstacles import Blocked, Obstacle, StableMessages, obstacles
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
    """Each error with the Instance of the ordinal at its place in `names`."""
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
def test_a_refusal_has_a_reason_and_the_sentence_of_the_server(error: ApiError, reason: str) -> None:
    assert obstacles(collected(error)) == {"Instance web-0": Obstacle(reason, "Instance web-0 was refused: no")}


def test_what_waits_for_somebody_brings_its_own_reason() -> None:
    found = obstacles(collected(Blocked("DeploymentNameTaken", "it is taken")))
    assert found == {"Instance web-0": Obstacle("DeploymentNameTaken", "it is taken")}


@pytest.mark.parametrize(
    "error", [Unavailable(""), Timeout(""), TooManyRequests(""), Conflict(""), NotFound(""), Unfinished("later")]
)
def test_what_passes_by_itself_is_no_obstacle(error: ApiError | Unfinished) -> None:
    assert obstacles(collected(error)) == {}


def test_each_subject_has_the_first_of_its_refusals_in_the_order_met() -> None:
    problems = collected(Invalid("first"), Unavailable(""), Forbidden("third"), Forbidden("later"), names="0120")
    assert [(subject, found.message) for subject, found in obstacles(problems).items()] == [
        ("Instance web-0", "Instance web-0 was refused: first"),
        ("Instance web-2", "Instance web-2 was refused: third"),
    ]


def test_a_sentence_without_end_is_cut_so_that_an_event_takes_it() -> None:
    (found,) = obstacles(collected(Invalid("x" * 100_000))).values()
    assert len(found.message) < 1100
    assert found.message.endswith("...")


WEB = Request("demo", "default", "web")


def refused(sentence: str, reason: str = "SpecRefused") -> dict[str, Obstacle]:
    return {"Instance web-0": Obstacle(reason, sentence)}


def test_a_refusal_keeps_its_first_wording_for_its_generation() -> None:
    wordings = StableMessages()
    first = refused("at 12:00")
    assert wordings.settled(WEB, 1, first) == first
    assert wordings.settled(WEB, 1, refused("at 12:01")) == first
    assert wordings.settled(Request("demo", "default", "other"), 1, refused("at 12:01")) == refused("at 12:01")
    assert wordings.settled(WEB, 1, refused("no right", "WriteForbidden")) == refused("no right", "WriteForbidden")
    assert wordings.settled(WEB, 2, refused("no right at 12:02", "WriteForbidden")) == refused(
        "no right at 12:02", "WriteForbidden"
    )


@pytest.mark.parametrize("end", ["accepted", "gone", "left"])
def test_a_refusal_that_is_over_is_worded_anew(end: str) -> None:
    wordings = StableMessages()
    wordings.settled(WEB, 1, refused("at 12:00"))
    match end:
        case "accepted":
            assert wordings.settled(WEB, 1, {}) == {}
        case "gone":
            wordings.forget(WEB)
        case "left":
            wordings.forget_plane("demo")
    assert wordings.settled(WEB, 1, refused("at 12:01")) == refused("at 12:01")


def test_what_we_word_ourselves_is_always_the_newest() -> None:
    wordings = StableMessages()
    wordings.settled(WEB, 1, refused("taken by one", "DeploymentNameTaken"))
    newer = refused("taken by another", "DeploymentNameTaken")
    assert wordings.settled(WEB, 1, newer) == newer
