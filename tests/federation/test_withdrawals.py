"""The notes of withdrawn deployments: bounded, each once, and matched by uid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.federation.withdrawals import KEPT, Note, annotation, notes_of, with_notes, without_upstream
from datum_compute.kube.meta import KubeObject, ObjectMeta

KEY = "compute.datumapis.com/withdrawn"
HUB_UID, PROJECT_UID = "resourcetemplate.karmada.io/uid", "compute.datumapis.com/upstream-uid"

notes = st.builds(Note, name=st.text(max_size=5), uid=st.text(max_size=3), upstream=st.text(max_size=3))


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (Note("web", "1", "2"), True),
        (Note("web", "1"), True),
        (Note("web", "", "2"), True),
        (Note("web", "1", "other"), True),
        (Note("web", "other", "2"), True),
        (Note("web", "other", "other"), False),
        (Note("web"), False),
        (Note("api", "1", "2"), False),
    ],
)
def test_a_note_names_a_copy_by_either_uid(note: Note, expected: bool) -> None:
    assert note.names(KubeObject(ObjectMeta(name="web", annotations={HUB_UID: "1", PROJECT_UID: "2"}))) is expected


@pytest.mark.parametrize("note", [Note("web"), Note("web", "1", "2")])
def test_a_copy_without_uids_is_named_by_no_note(note: Note) -> None:
    assert not note.names(KubeObject(ObjectMeta(name="web")))
    assert not note.names(KubeObject(ObjectMeta(name="web", annotations={HUB_UID: "", PROJECT_UID: ""})))


@pytest.mark.parametrize("text", ["", "{}", "[{}]", "[7]", "nonsense", '[{"name":"web"}', "null", '[{"name":null}]'])
def test_a_malformed_annotation_has_no_notes(text: str) -> None:
    assert notes_of({KEY: text}) == ()


@given(st.lists(notes, max_size=5))
def test_notes_survive_the_annotation(written: list[Note]) -> None:
    text = annotation(written)[KEY]
    assert notes_of({} if text is None else {KEY: text}) == tuple(written)


def test_the_oldest_notes_are_dropped() -> None:
    old = [Note(f"web-{number}", str(number)) for number in range(KEPT)]
    new = [Note("new", "a"), Note("newer", "b")]
    assert with_notes(old, new) == (*old[2:], *new)


def test_notes_leave_room_for_other_annotations() -> None:
    longest = [Note("n" * 253, f"{number:036}", "u" * 36) for number in range(2 * KEPT)]
    assert len(annotation(with_notes([], longest))[KEY] or "") < 40_000  # all annotations share 262,144


def test_notes_have_no_duplicates() -> None:
    first = Note("web", "1", "2")
    assert with_notes([first], [first]) == (first,)
    assert with_notes([first], [Note("web", "", "2")]) == (first,)
    assert with_notes([], [Note("web", "", "2")]) == (Note("web", "", "2"),)
    assert with_notes([first], [Note("web", "", "3")]) == (first, Note("web", "", "3"))


def test_the_note_of_a_deployment_that_exists_again_is_removed() -> None:
    first, second = Note("web", "1", "2"), Note("web", "3", "4")
    assert without_upstream([first, second], "2") == (second,)
    assert without_upstream([first, Note("old", "5")], "") == (first, Note("old", "5"))
