"""The revisions of a workload as values: numbers, retention, concurrent writers, and targets of an undo."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from datum_compute.api.labels import RESTARTED_AT
from datum_compute.cli.workload.revisions import DEPLOY, EXTERNAL, LARGEST_BYTES, Entry, Revisions, spec_hash
from datum_compute.kube.meta import Json


def spec(image: str, restarted: str = "") -> Json:
    metadata = {"metadata": {"annotations": {RESTARTED_AT: restarted}}} if restarted else {}
    return {"template": {**metadata, "spec": {"image": image}}, "placements": []}


def entry(image: str, generation: int, *, kind: str = DEPLOY, restarted: str = "", padding: int = 0) -> Entry:
    text = json.dumps(spec(image, restarted)) + " " * padding
    return Entry(
        rev=0,
        timestamp="2026-11-02T12:00:00Z",
        image=image,
        changes="",
        actor="",
        template_hash="",
        spec=text,
        kind=kind,
        spec_hash=spec_hash(spec(image, restarted)),
        generation=generation,
    )


def after(*images: str) -> Revisions:
    known = Revisions()
    for generation, image in enumerate(images, start=1):
        earlier = entry(images[generation - 2], generation - 1) if generation > 1 else None
        known = known.with_write(entry(image, generation), earlier)
    return known


def numbers(known: Revisions) -> list[int]:
    return [entry.rev for entry in known.entries]


def test_numbers_start_at_one_and_the_last_is_active() -> None:
    known = after("a", "b", "c")
    assert (numbers(known), known.current) == ([1, 2, 3], 3)


def test_the_twenty_newest_are_kept() -> None:
    known = after(*map(str, range(25)))
    assert numbers(known) == list(range(6, 26))


def test_a_history_that_is_too_large_loses_its_oldest_entries_but_never_the_newest() -> None:
    known = Revisions()
    for generation in range(1, 5):
        known = known.with_write(entry(str(generation), generation, padding=LARGEST_BYTES // 2), None)
    assert numbers(known) == [4]


def test_a_number_is_never_used_again() -> None:
    stored = after("a", "b").data() | {"7": "damaged"}
    known = Revisions.of(stored, "9").with_write(entry("c", 3), None)
    assert numbers(known) == [1, 2, 10]


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"rev": 4}', '{"rev": "x"}', "\x00"])
def test_unreadable_entries_are_skipped_and_kept(text: str) -> None:
    known = Revisions.of(after("a").data() | {"4": text}, "1")
    assert numbers(known) == [1]
    assert known.data()["4"] == text


def test_an_entry_under_the_wrong_key_is_not_believed() -> None:
    (text,) = after("a").data().values()
    assert Revisions.of({"2": text}, "2").entries == ()


def test_external_changes_are_recorded_before_they_are_replaced() -> None:
    known = after("a").with_write(entry("c", 3), entry("b", 2, kind=EXTERNAL))
    assert [(entry.rev, entry.kind, entry.image) for entry in known.entries] == [
        (1, DEPLOY, "a"),
        (2, EXTERNAL, "b"),
        (3, DEPLOY, "c"),
    ]


def test_a_workload_without_a_history_begins_with_what_it_was() -> None:
    known = Revisions().with_write(entry("b", 2), entry("a", 1, kind=EXTERNAL))
    assert [entry.kind for entry in known.entries] == [EXTERNAL, DEPLOY]


@pytest.mark.parametrize("order", list(itertools.permutations((2, 3, 4))))
def test_concurrent_writers_leave_one_entry_each_in_any_order(order: tuple[int, ...]) -> None:
    known = after("1")
    for generation in order:
        earlier = entry(str(generation - 1), generation - 1, kind=EXTERNAL)
        known = known.with_write(entry(str(generation), generation), earlier)
    assert sorted((entry.generation, entry.kind) for entry in known.entries) == [(n, DEPLOY) for n in (1, 2, 3, 4)]
    assert known.active is not None
    assert known.active.generation == 4


def test_a_restart_is_the_same_spec() -> None:
    assert spec_hash(spec("a")) == spec_hash(spec("a", restarted="2026-11-02T12:00:00Z"))
    assert spec_hash(spec("a")) != spec_hash(spec("b"))


def test_other_annotations_of_the_template_count() -> None:
    plain = {"template": {"metadata": {"annotations": {"team": "web"}}}}
    restarted = {"template": {"metadata": {"annotations": {"team": "web", RESTARTED_AT: "now"}}}}
    assert spec_hash(plain) == spec_hash(restarted)
    assert spec_hash(plain) != spec_hash({"template": {}})


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=5))
def test_the_order_of_keys_does_not_count(value: Json) -> None:
    assert spec_hash(value) == spec_hash(dict(reversed(value.items())))


def test_undo_goes_to_the_newest_revision_that_differs() -> None:
    known = after("a", "b").with_write(entry("b", 3, restarted="now"), entry("b", 2))
    target = known.undo_target(spec("b", restarted="now"))
    assert target is not None
    assert target.rev == 1


def test_there_is_nothing_to_undo_when_all_entries_are_equal() -> None:
    assert after("a").undo_target(spec("a")) is None
    assert Revisions().undo_target(spec("a")) is None


def test_an_external_change_is_noticed() -> None:
    assert after("a").changed_outside(spec("b"))
    assert not after("a").changed_outside(spec("a", restarted="now"))
    assert not Revisions().changed_outside(spec("a"))


def test_the_size_is_that_of_the_bytes() -> None:
    known = Revisions()
    for generation in range(1, 21):
        known = known.with_write(replace(entry(str(generation), generation), spec="ж" * 48_000), None)
    assert sum(len(text.encode()) for text in known.data().values()) <= LARGEST_BYTES
    assert len(known.entries) == 9
