import pytest

from datum_compute.kube.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from datum_compute.runtime.problems import Problems, worst
from datum_compute.runtime.requests import Unfinished


def test_errors_are_collected_and_the_rest_goes_on() -> None:
    problems, done = Problems(), []
    for city in ("AMS", "DFW", "SIN"):
        with problems.collect(f"city {city}"):
            if city == "DFW":
                raise Invalid("spec.template: too long")
            done.append(city)
    assert done == ["AMS", "SIN"]
    assert [problem.sentence for problem in problems] == ["city DFW: spec.template: too long"]


def test_a_defect_is_not_collected() -> None:
    problems = Problems()
    with pytest.raises(ZeroDivisionError), problems.collect("sums"):
        raise ZeroDivisionError
    assert not len(problems)


def test_nothing_is_raised_when_all_went_well() -> None:
    Problems().raise_worst()


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([Conflict("x"), Unavailable("x")], Unavailable),
        ([Invalid("x"), TooManyRequests("x")], TooManyRequests),
        ([Invalid("x"), Conflict("x")], Conflict),
        ([NotFound("x"), Unfinished("x")], Unfinished),
        ([TooManyRequests("x", retry_after=60), Unfinished("x")], Unfinished),
        ([TooManyRequests("x", retry_after=60), Conflict("x")], Conflict),
        ([TooManyRequests("x", retry_after=60), Invalid("x")], TooManyRequests),
        ([Unavailable("x"), ZeroDivisionError()], ZeroDivisionError),
        ([NamespaceTerminating("x"), Invalid("x")], Invalid),
        ([NamespaceTerminating("x"), Conflict("x")], Conflict),
    ],
)
def test_the_worst_error_decides_when_the_pass_runs_again(errors: list[Exception], expected: type[Exception]) -> None:
    assert isinstance(worst(errors), expected)
    assert isinstance(worst(reversed(errors)), expected)


def test_a_refusal_is_an_answer_that_stays_the_same() -> None:
    problems = Problems()
    passing = (Unavailable("c"), Conflict("d"), NotFound("e"), NamespaceTerminating("f"))
    for error in (Invalid("a"), Forbidden("b"), *passing):
        with problems.collect(""):
            raise error
    assert [problem.sentence for problem in problems.refusals()] == ["a", "b"]
