"""Lines of instances as people and programs read them."""

from datetime import UTC, timedelta, timezone

import pytest

from datum_compute.cli.logs.entries import Entry, Labels
from datum_compute.cli.show.log_entries import Appearance, EntryLines, clock_time, record, short_name

TIME = 1_794_827_592_955_471_003  # 2026-11-16 11:13:12 UTC


def entry(instance: str = "api-default-dfw-0", text: str = "x", time: int = TIME, **labels: str) -> Entry:
    return Entry(time, Labels.of({"datum_instance_name": instance, **labels}), text)


@pytest.mark.parametrize(
    ("appearance", "line"),
    [
        (Appearance(zone=UTC), "[default-dfw-0] Nov 16 11:13:12.955  x"),
        (Appearance(zone=timezone(timedelta(hours=-11, minutes=-30))), "[default-dfw-0] Nov 15 23:43:12.955  x"),
        (Appearance(timestamps=False), "[default-dfw-0] x"),
        (Appearance(prefix=False, zone=UTC), "Nov 16 11:13:12.955  x"),
        (Appearance(prefix=False, timestamps=False), "x"),
        (Appearance(timestamps=False, colours=True), "\x1b[36m[default-dfw-0]\x1b[0m x"),
    ],
    ids=str,
)
def test_a_line_has_a_prefix_and_a_time(appearance: Appearance, line: str) -> None:
    assert EntryLines("api", appearance).text(entry()) == line


def test_days_are_padded_and_times_may_be_nonsense() -> None:
    lines = EntryLines("api", Appearance(prefix=False, zone=UTC))
    assert lines.text(entry(time=1_793_620_800_000_000_000)) == "Nov  2 12:00:00.000  x"
    assert lines.text(entry(time=-1)) == "Jan  1 00:00:00.999  x"
    assert lines.text(entry(time=2**80)).startswith("Dec 31 23:59:59")


def test_prefixes_are_padded_to_the_widest_so_far() -> None:
    lines = EntryLines("api", Appearance(timestamps=False))
    names = ("api-eu-ams-0", "api-default-dfw-10", "api-eu-ams-0")
    assert [lines.text(entry(name)) for name in names] == ["[eu-ams-0] x", "[default-dfw-10] x", "[eu-ams-0]       x"]


def test_each_city_has_a_colour_in_the_order_of_names() -> None:
    lines = EntryLines("api", Appearance(timestamps=False, colours=True), cities=["SIN", "AMS", "DFW"])
    codes = [lines.text(entry(f"api-default-{city.lower()}-0"))[2:4] for city in ("SIN", "AMS", "DFW", "FRA")]
    assert codes == ["32", "36", "33", "35"]
    many = EntryLines("api", Appearance(timestamps=False, colours=True), cities=[f"C{index}" for index in range(7)])
    assert many.text(entry("api-default-c6-0"))[2:4] == many.text(entry("api-default-c0-0"))[2:4]


def test_containers_are_named_when_there_are_several() -> None:
    one = EntryLines("api", Appearance(timestamps=False), containers=["app"])
    assert one.text(entry(k8s_container_name="app")) == "[default-dfw-0] x"
    two = EntryLines("api", Appearance(timestamps=False), containers=["app", "proxy"])
    assert two.text(entry(k8s_container_name="app")) == "[default-dfw-0/app] x"
    assert two.text(entry()) == "[default-dfw-0]     x"


def test_a_name_cannot_smuggle_control_characters_into_a_terminal() -> None:
    assert EntryLines("api", Appearance(timestamps=False)).text(entry("api-\x1b[2J")) == r"[\x1b[2J] x"


def test_text_is_harmless_only_where_it_has_to_be() -> None:
    raw = "\x1b[2J\x1b[32mok"
    assert EntryLines("", Appearance(timestamps=False, prefix=False)).text(entry(text=raw)) == raw
    safe = Appearance(timestamps=False, prefix=False, terminal=True, colours=True)
    assert EntryLines("", safe).text(entry(text=raw)) == "\x1b[32mok\x1b[0m"


def test_programs_get_nanoseconds_and_no_empty_fields() -> None:
    assert record(entry(text="")) == {
        "timestamp": "2026-11-16T11:13:12.955471003Z",
        "instance": "api-default-dfw-0",
        "line": "",
    }
    assert record(entry(container_id="vm", k8s_pod_uid="pod"))["generation"] == "vm"


def test_short_names_and_times() -> None:
    assert short_name("api", "api-api-dfw-0") == "api-dfw-0"
    assert short_name("api", "other") == "other"
    assert clock_time(TIME, UTC) == "11:13:12"
