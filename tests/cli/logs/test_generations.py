"""Which generation of each instance is the newest, however much the others wrote."""

from collections.abc import Sequence

from datum_compute.cli.logs.entries import Entry, Labels
from datum_compute.cli.logs.generations import Chosen, chosen
from datum_compute.cli.logs.pages import Request
from datum_compute.cli.logs.selection import Selection
from datum_compute.telemetry.query import matches, parse

SHOP = Selection().with_label("datum_workload_name", ["shop"])


class Store:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.queries: list[str] = []

    def add(self, time: int, instance: str, **labels: str) -> None:
        found = {"datum_workload_name": "shop", "datum_instance_name": instance} | labels
        self.entries.append(Entry(time, Labels.of(found), ""))

    def series(self, query: str) -> Sequence[Labels]:
        return list(dict.fromkeys(entry.labels for entry in self._matching(query)))

    def fetch(self, request: Request) -> Sequence[Entry]:
        assert request.backward
        self.queries.append(request.query)
        return sorted(self._matching(request.query), key=lambda entry: entry.time)[-request.limit :]

    def _matching(self, query: str) -> list[Entry]:
        parsed = parse(query)
        return [entry for entry in self.entries if matches(dict(entry.labels.pairs), parsed)]

    def chosen(self, index: int) -> Chosen:
        return chosen(SHOP, self.series, self.fetch, Request(SHOP.query, 0), index=index)

    def lines(self, index: int) -> set[tuple[str, str]]:
        """Instance and generation of everything that is selected."""
        return {
            (entry.labels.value("datum_instance_name"), entry.labels.generation[1])
            for selection in self.chosen(index).selections
            for entry in self._matching(selection.query)
        }


def test_a_generation_that_writes_a_lot_does_not_hide_the_one_before() -> None:
    store = Store()
    store.add(1, "a", k8s_pod_uid="old")
    store.add(2, "b", k8s_pod_uid="only")
    for time in range(5000):
        store.add(10 + time, "a", k8s_pod_uid="new")
    assert store.lines(0) == {("a", "new"), ("b", "only")}
    assert store.lines(1) == {("a", "old")}
    assert store.chosen(1).missing == ("b",)


def test_instances_with_one_generation_need_no_further_call() -> None:
    store = Store()
    for name in "abc":
        store.add(1, name, k8s_pod_uid=f"{name}-1")
    assert store.chosen(0).instances == ("a", "b", "c")
    assert store.queries == []


def test_virtual_machines_have_a_label_of_their_own() -> None:
    store = Store()
    store.add(1, "vm", container_id="first", k8s_pod_uid="same")
    store.add(2, "vm", container_id="second", k8s_pod_uid="same")
    store.add(1, "pod", k8s_pod_uid="p1")
    store.add(2, "pod", k8s_pod_uid="p2")
    assert store.lines(0) == {("vm", "second"), ("pod", "p2")}
    assert store.lines(1) == {("vm", "first"), ("pod", "p1")}


def test_lines_without_a_generation_are_left_out() -> None:
    store = Store()
    store.add(1, "a")
    assert store.chosen(0) == Chosen((), (), ())


def test_only_the_last_two_of_many_generations_count() -> None:
    store = Store()
    for number in range(40):
        store.add(number, "a", k8s_pod_uid=f"g{number}")
    assert store.lines(0) == {("a", "g39")}
    assert store.lines(1) == {("a", "g38")}


def test_no_query_is_too_long_for_a_server() -> None:
    store = Store()
    for number in range(500):
        for generation in range(2):
            store.add(generation, f"shop-default-ams-{number:040}", k8s_pod_uid=f"{generation}-{number:034}")
    found = store.chosen(1)
    assert len(found.instances) == 500
    assert all(parse(query) for query in store.queries)  # it refuses more than 4 kB
    assert all(parse(selection.query) for selection in found.selections)
