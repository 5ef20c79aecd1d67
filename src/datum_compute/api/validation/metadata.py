"""Rules for the labels and annotations that instances inherit. Entry point: `metadata_violations`."""

from collections.abc import Iterator

from datum_compute.api import GROUP
from datum_compute.api.labels import is_reserved
from datum_compute.api.validation.fields import Field
from datum_compute.kube.errors import Cause
from datum_compute.kube.labels import MOST_ANNOTATION_BYTES, annotation_bytes, key_problem, value_problem


def metadata_violations(metadata: Field, before: Field) -> Iterator[Cause]:
    """`before` is the metadata of the previous template, whose entries are not checked again."""
    labels, annotations = metadata["labels"], metadata["annotations"]
    for key, value in _new_entries(labels, before["labels"]):
        if problem := key_problem(key):
            yield labels.reported_value(key).invalid(problem)
        elif problem := value_problem(value):
            yield labels.entry(key).invalid(problem)
        elif is_reserved(key):
            yield _reserved(labels.entry(key))
    for key, _ in _new_entries(annotations, before["annotations"]):
        if problem := key_problem(key.lower()):
            yield annotations.reported_value(key).invalid(problem.replace("label key", "annotation key"))
        elif is_reserved(key, annotation=True):
            yield _reserved(annotations.entry(key))
    size = annotation_bytes(dict(_entries(annotations)))
    if size > max(MOST_ANNOTATION_BYTES, annotation_bytes(dict(_entries(before["annotations"])))):
        yield annotations.too_long(f"may not be more than {MOST_ANNOTATION_BYTES} bytes")


def _reserved(entry: Field) -> Cause:
    return entry.forbidden(f"keys under {GROUP}/ are for compute itself; choose a prefix of your own")


def _new_entries(after: Field, before: Field) -> list[tuple[str, str]]:
    old = dict(_entries(before))
    return [(key, value) for key, value in _entries(after) if old.get(key) != value]


def _entries(field: Field) -> list[tuple[str, str]]:
    items = field.value.items() if isinstance(field.value, dict) else ()
    return [(key, value) for key, value in items if isinstance(key, str) and isinstance(value, str)]
