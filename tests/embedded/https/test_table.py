"""Tables: the values of columns, and ages."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from datum_compute.api.crd import by_role
from datum_compute.embedded.https.table import age, table_event, table_of
from datum_compute.embedded.kinds.builtin import CONFIG_MAPS, EVENTS
from datum_compute.embedded.kinds.catalog import plane_kinds
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.meta import Json

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)

OBJECT: Json = {
    "metadata": {"name": "web", "labels": {"a.b/c": "d"}, "creationTimestamp": "2026-06-01T11:00:00Z"},
    "status": {
        "replicas": 3,
        "ratio": 0.5,
        "paused": False,
        "nothing": None,
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "Wait"},
            {"type": "Available", "status": "True"},
        ],
        "interfaces": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
    },
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (1, "1s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 - 1, "7h59m"),
        (8 * 3600, "8h"),
        (48 * 3600 - 1, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400 - 1, "7d23h"),
        (8 * 86400, "8d"),
        (2 * 365 * 86400 - 1, "729d"),
        (2 * 365 * 86400, "2y"),
        (2 * 365 * 86400 + 86400, "2y1d"),
        (8 * 365 * 86400, "8y"),
    ],
)
def test_ages_are_printed_like_kubectl(seconds: int, text: str) -> None:
    assert age(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("type_", "path", "cell"),
    [
        ("string", ".metadata.name", "web"),
        ("string", ".status.replicas", "3"),
        ("string", ".status.paused", "false"),
        ("string", ".status.interfaces[0]", '{"ip":"10.0.0.1"}'),
        ("string", ".status.nope", None),
        ("string", ".status.nothing", None),
        ("integer", ".status.replicas", 3),
        ("integer", ".metadata.name", None),
        ("integer", ".status.paused", None),
        ("number", ".status.ratio", 0.5),
        ("boolean", ".status.paused", False),
        ("boolean", ".status.replicas", None),
        ("date", ".metadata.creationTimestamp", "60m"),
        ("date", ".metadata.name", "<invalid>"),
        ("date", ".status.nope", None),
    ],
)
def test_values_have_the_type_of_their_column(type_: str, path: str, cell: Any) -> None:
    column = {"name": "X", "type": type_, "jsonPath": path}
    names = {"kind": "Thing", "plural": "things"}
    served = ServedKind("example.test", "v1", names, namespaced=True, schema={}, status=False, columns=[column])
    body = OBJECT | {"metadata": OBJECT["metadata"] | {"resourceVersion": "5"}}
    (row,) = table(table_of(served, msgspec.json.encode(body), NOW, "None"))["rows"]
    assert row == {"cells": ["web", cell]}


def table(body: bytes) -> Json:
    value: Json = msgspec.json.decode(body)
    assert (value["kind"], value["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert all(len(row["cells"]) == len(value["columnDefinitions"]) for row in value["rows"])
    return value


def config_map(name: str) -> Json:
    metadata = {"name": name, "resourceVersion": "7", "creationTimestamp": "2026-06-01T11:59:00Z"}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


def test_a_config_map_shows_the_number_of_its_entries() -> None:
    listed = {
        "kind": "ConfigMapList",
        "metadata": {"resourceVersion": "9"},
        "items": [config_map("b"), config_map("c")],
    }
    page = table(table_of(CONFIG_MAPS, msgspec.json.encode(listed), NOW, "None"))
    assert [column["name"] for column in page["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert [row["cells"] for row in page["rows"]] == [["b", 1, "60s"], ["c", 1, "60s"]]
    assert page["metadata"] == {"resourceVersion": "9"}


def test_a_table_keeps_the_metadata_of_a_page() -> None:
    metadata = {"resourceVersion": "9", "continue": "abc", "remainingItemCount": 3}
    listed = {"kind": "ConfigMapList", "metadata": metadata, "items": []}
    assert table(table_of(CONFIG_MAPS, msgspec.json.encode(listed), NOW, "None"))["metadata"] == metadata


def test_the_columns_of_every_kind_work_and_wide_ones_have_a_priority() -> None:
    for served in plane_kinds(by_role(PROJECT)):
        body = {"kind": served.kind, "metadata": {"name": "a", "resourceVersion": "1"}}
        table(table_of(served, msgspec.json.encode(body), NOW, "Metadata"))
    event = {"kind": "Event", "metadata": {"name": "a", "resourceVersion": "1"}}
    columns = table(table_of(EVENTS, msgspec.json.encode(event), NOW, "None"))["columnDefinitions"]
    assert [column["name"] for column in columns if column["priority"] > 0] == ["Source", "First Seen", "Count"]


def test_a_watch_event_is_a_table_with_one_row() -> None:
    line = msgspec.json.encode({"type": "MODIFIED", "object": config_map("b")})
    event = msgspec.json.decode(table_event(CONFIG_MAPS, line, NOW, "Object"))
    assert event["type"] == "MODIFIED"
    assert [row["object"] for row in event["object"]["rows"]] == [config_map("b")]
    assert event["object"]["metadata"] == {"resourceVersion": "7"}


def test_a_bookmark_is_a_table_without_rows_and_an_error_stays_as_it_is() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"kind": "ConfigMap", "metadata": {"resourceVersion": "8"}}}
    event = msgspec.json.decode(table_event(CONFIG_MAPS, msgspec.json.encode(bookmark), NOW, "Metadata"))
    assert (event["type"], event["object"]["rows"], event["object"]["metadata"]) == (
        "BOOKMARK",
        [],
        {"resourceVersion": "8"},
    )
    error = msgspec.json.encode({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
    assert table_event(CONFIG_MAPS, error, NOW, "Metadata") == error
