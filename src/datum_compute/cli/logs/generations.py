"""Generations of instances: an instance that is replaced begins a new one under the same name. Entry point:
`chosen`."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from datum_compute.cli.logs.entries import INSTANCE_LABEL, Labels
from datum_compute.cli.logs.pages import Fetch, Request
from datum_compute.cli.logs.selection import Selection

_ROUNDS = 30
_TOGETHER = 20  # instances whose generations are looked for in one query
_IN_A_QUERY = 80  # generations that a query can name
_PAGE = 1000

Series = Callable[[str], Sequence[Labels]]
"""The labels of all streams that match a query."""


class Chosen(Struct, frozen=True):
    """One generation of each instance, as selections to read together, and the instances that have no such one."""

    selections: tuple[Selection, ...]
    instances: tuple[str, ...]
    missing: tuple[str, ...]


Generation = tuple[str, str]
"""The label that identifies it, and its value."""


def chosen(selection: Selection, series: Series, fetch: Fetch, window: Request, *, index: int) -> Chosen:
    """The newest generation of each instance that has lines in the window, or with an index of 1 the one before."""
    known: dict[str, set[Generation]] = {}
    for labels in series(selection.query):
        if labels.value(INSTANCE_LABEL) and labels.generation[1]:
            known.setdefault(labels.value(INSTANCE_LABEL), set()).add(labels.generation)
    ordered = {instance: list(found) for instance, found in known.items() if len(found) == 1}
    unordered = sorted(instance for instance in known if instance not in ordered)
    for group in _groups(unordered, _TOGETHER):
        ordered |= _newest_first(selection.with_label(INSTANCE_LABEL, group), fetch, window, index + 1)
    picked = {instance: found[index] for instance, found in sorted(ordered.items()) if len(found) > index}
    missing = tuple(instance for instance in sorted(known) if instance not in picked)
    return Chosen(tuple(_selections(selection, picked.values())), tuple(picked), missing)


def _newest_first(selection: Selection, fetch: Fetch, window: Request, need: int) -> dict[str, list[Generation]]:
    """Generations by their newest line. Each round leaves out those that were found, because a generation that writes a
    lot would fill all pages."""
    found: dict[str, list[Generation]] = {}
    for _ in range(_ROUNDS):
        rest = selection.without_label(INSTANCE_LABEL, [name for name, ids in found.items() if len(ids) >= need])
        for label in dict.fromkeys(label for ids in found.values() for label, _ in ids):
            rest = rest.without_label(label, [id_ for ids in found.values() for name, id_ in ids if name == label])
        page = fetch(Request(rest.query, window.start, window.end, _PAGE, backward=True))
        before = sum(map(len, found.values()))
        for entry in reversed(page):
            ids = found.setdefault(entry.labels.value(INSTANCE_LABEL), [])
            if entry.labels.generation[1] and len(ids) < need and entry.labels.generation not in ids:
                ids.append(entry.labels.generation)
        if sum(map(len, found.values())) == before:
            break
    return found


def _selections(selection: Selection, picked: Iterable[Generation]) -> Iterator[Selection]:
    by_label: dict[str, list[str]] = {}
    for label, id_ in picked:
        by_label.setdefault(label, []).append(id_)
    for label, ids in by_label.items():
        for group in _groups(ids, _IN_A_QUERY):
            yield selection.with_label(label, group)


def _groups(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]
