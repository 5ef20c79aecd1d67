from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datum_compute.kube.conditions import condition, find, is_false, is_true, to_json, updated
from datum_compute.kube.meta import Condition

THEN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = THEN + timedelta(hours=1)


def ready(status: str, reason: str = "Because", message: str = "text", at: datetime = THEN, seen: int = 1) -> Condition:
    return Condition("Ready", status, reason, message, at, seen)


AVAILABLE = Condition("Available", "True", "Fine", "", THEN, 1)


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        (ready("True"), ready("True", at=NOW), ready("True", at=THEN)),
        (ready("True"), ready("False", at=NOW), ready("False", at=NOW)),
        (ready("Unknown"), ready("False", at=NOW), ready("False", at=NOW)),
        # all but the status changes without moving the time
        (ready("True"), ready("True", reason="Other", at=NOW), ready("True", reason="Other", at=THEN)),
        (ready("True"), ready("True", message="other", at=NOW), ready("True", message="other", at=THEN)),
        (ready("True"), ready("True", at=NOW, seen=2), ready("True", at=THEN, seen=2)),
    ],
)
def test_the_transition_time_moves_only_with_the_status(before: Condition, wanted: Condition, after: Condition) -> None:
    assert updated([before], [wanted]) == (after,)


def test_conditions_keep_their_place_and_new_ones_come_last() -> None:
    quota = Condition("QuotaGranted", "True", "Granted", "", NOW, 1)
    after = updated([AVAILABLE, ready("True")], [quota, ready("False", at=NOW)])
    assert after == (AVAILABLE, ready("False", at=NOW), quota)


def test_conditions_of_others_are_left_alone() -> None:
    assert updated([AVAILABLE], [ready("True")]) == (AVAILABLE, ready("True"))


def test_an_unchanged_condition_stays_equal() -> None:
    before = (AVAILABLE, ready("True"))
    assert updated(before, []) == before
    assert (
        updated(before, [ready("True", at=NOW), msgspec.structs.replace(AVAILABLE, last_transition_time=NOW)]) == before
    )
    assert updated([], []) == ()


CONDITIONS = st.lists(
    st.builds(
        Condition,
        st.sampled_from(["Ready", "Available", "Programmed"]),
        st.sampled_from(["True", "False", "Unknown"]),
        st.sampled_from(["A", "B"]),
        st.just("text"),
        st.sampled_from([THEN, NOW]),
        st.integers(0, 2),
    ),
    max_size=3,
    unique_by=lambda condition: condition.type,
).map(tuple)


@settings(deadline=None)
@given(before=CONDITIONS, wanted=CONDITIONS)
def test_an_update_is_complete_and_a_second_one_changes_nothing(
    before: tuple[Condition, ...], wanted: tuple[Condition, ...]
) -> None:
    after = updated(before, wanted)
    assert [condition.type for condition in after][: len(before)] == [condition.type for condition in before]
    assert updated(after, wanted) == after
    for each in wanted:
        now = find(after, each.type)
        assert now is not None
        assert msgspec.structs.replace(now, last_transition_time=each.last_transition_time) == each


@pytest.mark.parametrize(
    ("conditions", "true", "false"),
    [
        ([], False, False),
        ([AVAILABLE], False, False),
        ([ready("True")], True, False),
        ([ready("False")], False, True),
        ([ready("Unknown")], False, False),
        ([AVAILABLE, ready("True")], True, False),
    ],
)
def test_unknown_and_absent_are_neither_true_nor_false(conditions: list[Condition], true: bool, false: bool) -> None:
    assert is_true(conditions, "Ready") is true
    assert is_false(conditions, "Ready") is false


def test_a_condition_that_is_not_there_is_not_found() -> None:
    assert find([AVAILABLE], "Ready") is None
    assert find([AVAILABLE], "Available") is AVAILABLE


@pytest.mark.parametrize(("status", "text"), [(True, "True"), (False, "False"), ("Unknown", "Unknown")])
def test_a_decision_becomes_a_condition_of_this_generation(status: str | bool, text: str) -> None:
    now = NOW.replace(microsecond=123456)
    made = condition("Ready", status, "Because", "text", generation=3, now=now)
    assert made == Condition("Ready", text, "Because", "text", NOW, 3)


def test_conditions_are_written_with_whole_seconds_in_utc() -> None:
    berlin = datetime(2026, 1, 1, 2, 0, 0, 999999, tzinfo=timezone(timedelta(hours=1)))
    assert to_json([ready("True", at=berlin, seen=4), ready("False", seen=0)]) == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Because",
            "message": "text",
            "lastTransitionTime": "2026-01-01T01:00:00Z",
            "observedGeneration": 4,
        },
        {
            "type": "Ready",
            "status": "False",
            "reason": "Because",
            "message": "text",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ]


def test_what_is_written_is_read_back_equal() -> None:
    conditions = (AVAILABLE, ready("Unknown", seen=0))
    assert msgspec.json.decode(msgspec.json.encode(to_json(conditions)), type=tuple[Condition, ...]) == conditions
