"""What to do next about an answer."""

from msgspec.structs import replace

from datum_compute.answers.advice import advice
from datum_compute.answers.why import Answer, why
from tests.answers.test_why import CASES, seen
from tests.cli.conftest import NOW

DESCRIBE, UNDO = ("instances", "describe", "shop-default-dfw-1"), ("rollout", "undo", "shop")


def answer_to(case: str, generation: int) -> Answer:
    return replace(why(seen(**CASES[case][0]), NOW), generation=generation)


def test_a_crash_is_explained_by_the_logs_first() -> None:
    found = advice(answer_to("crash", 2), "shop")
    assert (found.do, found.alternatives) == (("logs", "shop"), (DESCRIBE, UNDO))


def test_a_workload_that_never_changed_has_nothing_to_undo() -> None:
    assert advice(answer_to("crash", 1), "shop").alternatives == (DESCRIBE,)
