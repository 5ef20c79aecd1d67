"""`compute logs` against the read API over HTTP."""

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.logs.window import nanoseconds
from tests.cli.conftest import NOW, Compute, FakeClock, World, condition
from tests.cli.log_store import SECOND, LogStore, frame, notice
from tests.cli.server import ApiServer

MINUTE = 60 * SECOND
UID = "4f1c2a9e-77aa-4c1f-9d6e-0123456789ab"
AMS, DFW = "shop-default-ams-0", "shop-default-dfw-0"


def ago(seconds: float) -> int:
    return nanoseconds(NOW - timedelta(seconds=seconds))


class InterruptedClock(FakeClock):
    """Somebody presses Ctrl-C when everything was played that was to happen."""

    is_over: Callable[[], bool] = lambda: False

    def sleep(self, seconds: float) -> None:
        if self.is_over():
            raise KeyboardInterrupt
        super().sleep(seconds)


@pytest.fixture
def clock() -> InterruptedClock:
    return InterruptedClock()


@pytest.fixture
def store(api: ApiServer, world: World, clock: InterruptedClock) -> LogStore:
    """Four instances in two cities, each with a line a minute ago."""
    world.settled()
    store = api.logs = LogStore()
    for index, instance in enumerate((AMS, "shop-default-ams-1", DFW, "shop-default-dfw-1")):
        store.add(ago(60 - index), instance, f"listening on :808{index}")
    clock.is_over = lambda: store.played and not store.tails
    return store


def test_lines_of_all_instances_are_merged_by_time(store: LogStore, compute: Compute) -> None:
    store.add(ago(58.5), AMS, "GET / 200 3ms")
    result = compute("logs", "shop", "--utc")
    assert (result.code, result.err) == (0, "")
    assert result.lines == [
        "[default-ams-0] Nov  2 11:59:00.000  listening on :8080",
        "[default-ams-1] Nov  2 11:59:01.000  listening on :8081",
        "[default-ams-0] Nov  2 11:59:01.500  GET / 200 3ms",
        "[default-dfw-0] Nov  2 11:59:02.000  listening on :8082",
        "[default-dfw-1] Nov  2 11:59:03.000  listening on :8083",
    ]


def test_json_has_an_object_per_line(store: LogStore, compute: Compute) -> None:
    store.lines = store.lines[:1]
    store.add(ago(1) + 7, DFW, "", datum_city_code="", datum_placement_name="", log_iostream="")
    result = compute("logs", "shop", "-o", "json")
    assert [json.loads(line) for line in result.lines] == [
        {
            "timestamp": "2026-11-02T11:59:00.000000000Z",
            "workload": "shop",
            "instance": AMS,
            "city": "AMS",
            "placement": "default",
            "container": "app",
            "stream": "stdout",
            "generation": "g1",
            "line": "listening on :8080",
        },
        {
            "timestamp": "2026-11-02T11:59:59.000000007Z",
            "workload": "shop",
            "instance": DFW,
            "container": "app",
            "generation": "g1",
            "line": "",
        },
    ]


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--city=ams"], ["8080", "8081"]),
        (["--city=AMS,DFW"], ["8080", "8081", "8082", "8083"]),
        (["--city=ams", "--city=Dfw", "--search=8083"], ["8083"]),
        (["--instance=default-dfw-0"], ["8082"]),
        (["--instance=shop-default-dfw-0"], ["8082"]),
        (["--instance=default-dfw-0,default-ams-1"], ["8081", "8082"]),
        (["--instance=instance/default-dfw-0"], ["8082"]),
        (["-c", "app", "--tail=1"], ["8083"]),
        (["--tail=2"], ["8082", "8083"]),
        (["--tail=0"], []),
        (["--tail", "-1"], ["8080", "8081", "8082", "8083"]),
        (["--since=59s"], ["8081", "8082", "8083"]),
        (["--since-time=2026-11-02T11:59:02Z"], ["8082", "8083"]),
        (["--since-time=2026-11-02 11:59:02", "--utc"], ["8082", "8083"]),
        (["--until=2026-11-02T11:59:02Z"], ["8080", "8081"]),
        (["--since=1s", "--until=2026-11-02T11:59:02Z"], ["8081"]),
        (["--search=LISTENING"], []),
        (["--search=on :8082"], ["8082"]),
    ],
    ids=str,
)
def test_flags_choose_lines(store: LogStore, compute: Compute, flags: list[str], texts: list[str]) -> None:
    result = compute("logs", "shop", "--no-prefix", "--no-timestamps", *flags)
    assert result.code == 0, result.err
    assert [line.rpartition(":")[2] for line in result.lines] == texts


@pytest.mark.parametrize("flags", [["--city=ams"], ["--city=ams", "--instance=default-ams-0,default-ams-1"]])
def test_without_labels_for_places_names_tell_the_city(store: LogStore, compute: Compute, flags: list[str]) -> None:
    store.hidden_labels = {"datum_city_code", "datum_placement_name"}
    store.lines = []
    for index, instance in enumerate((AMS, "shop-default-ams-1", DFW)):
        store.add(ago(60 - index), instance, instance)
    result = compute("logs", "shop", "--no-timestamps", "--no-prefix", "--show-query", *flags)
    assert result.lines == [AMS, "shop-default-ams-1"]
    assert 'datum_instance_name=~"shop-.+-(ams)-[0-9]+"' in result.err


def test_the_query_is_shown_on_request(store: LogStore, compute: Compute) -> None:
    result = compute("logs", "shop", "--search=x", "--show-query", "-q")
    assert result.err == '{datum_workload_name="shop"} |= "x"\n'


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--since=1h", "--since-time=2026-11-02T00:00:00Z"], "--since cannot be combined with --since-time"),
        (["--since=0"], "--since: use a duration such as 15m, 2h or 7d"),
        (["-f", "--until=2026-11-02T00:00:00Z"], "--until cannot be combined with --follow"),
        (["-f", "--previous"], "--previous cannot be combined with --follow"),
        (["-f", "--current"], "--current cannot be combined with --follow"),
        (["--current", "--previous"], "--current cannot be combined with --previous"),
        (["--tail=-2"], '--tail: "-2" is not a number of lines; use -1 for all of them'),
        (["--tail=few"], '--tail: "few" is not a number of lines'),
        (["--until=soon"], '--until: "soon" is not a time; write it like 2026-11-16T11:03:00Z'),
        (["--since=soon"], '--since: "soon" is not a duration'),
        (["--search="], "--search needs a text"),
        (["--city="], "--city: name at least one city"),
        (["--instance=,"], "--instance: name at least one instance"),
        (["--instance=../x"], '"../x" is not a valid instance name'),
        (["--prefix", "--no-prefix"], "--prefix cannot be combined with --no-prefix"),
        (["-o", "yaml"], 'unsupported output format "yaml": use text or json'),
        (["--since-time=2027-01-01T00:00:00Z"], "--since-time must be in the past"),
        (["--since-time=2026-11-02T11:00:00Z", "--until=2026-11-02T10:00:00Z"], "--since-time must be before --until"),
    ],
    ids=str,
)
def test_contradictions_are_found_before_any_line_is_read(
    store: LogStore, compute: Compute, flags: list[str], message: str
) -> None:
    result = compute("logs", "shop", *flags)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert store.queries == []


def test_table_counts_as_text(store: LogStore, compute: Compute) -> None:
    assert compute("logs", "shop", "-o", "table").out == compute("logs", "shop").out != ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--instance=default-sin-0"], 'has no instance "default-sin-0"; there are default-ams-0, default-ams-1, '),
        (["--city=SIN"], "has no instances in SIN; there are AMS, DFW"),
        (["-c", "web"], 'has no container "web"; there is app'),
    ],
    ids=str,
)
def test_unknown_names_are_answered_with_those_there_are(
    store: LogStore, compute: Compute, flags: list[str], message: str
) -> None:
    result = compute("logs", "shop", *flags)
    assert (result.code, result.out) == (3, "")
    assert f'Error: workload "shop" {message}' in result.err


def test_names_that_only_the_logs_remember_can_be_chosen(store: LogStore, compute: Compute) -> None:
    store.add(ago(3600), "shop-old-sin-3", "long gone", k8s_container_name="side")
    for flags in (["--instance=old-sin-3"], ["--city=sin"]):
        assert compute("logs", "shop", "--no-timestamps", *flags).out == "[old-sin-3/side] long gone\n", flags
    assert compute("logs", "shop", "--no-timestamps", "-c", "side").out == "[old-sin-3] long gone\n"


def test_lines_of_a_deleted_workload_can_be_read(store: LogStore, compute: Compute, api: ApiServer) -> None:
    store.add(ago(20 * 86400), "blog-default-ams-0", "last words")
    result = compute("logs", "blog", "--no-timestamps")
    assert (result.code, result.out) == (0, "[default-ams-0] last words\n")
    assert result.err == 'workload "blog" is gone; these lines are left of it\n'
    refused = compute("logs", "bolg")
    assert (refused.code, refused.err) == (
        3,
        'Error: workload "bolg" not found in project demo\n\ncompute workloads\n',
    )


def test_the_name_of_an_instance_leads_to_its_workload(store: LogStore, compute: Compute) -> None:
    result = compute("logs", AMS)
    assert result.code == 3
    assert result.err.endswith("  it is an instance of workload shop\n\ncompute logs shop --instance=default-ams-0\n")


def test_where_logs_are_not_served_the_instances_are_named(world: World, compute: Compute) -> None:
    world.settled()
    result = compute("logs", "shop")
    assert (result.code, result.err) == (
        13,
        "Error: logs are not served in project demo\n\ncompute instances --workload=shop\n",
    )
    assert compute("logs", "nope").code == 3


@pytest.mark.parametrize(("code", "exit_code"), [(401, 7), (403, 7), (400, 1), (500, 1), (429, 1)])
def test_a_refusal_has_its_exit_code(
    store: LogStore, compute: Compute, api: ApiServer, code: int, exit_code: int
) -> None:
    api.answer("GET", "query_range", code, "because", times=9)
    assert compute("logs", "shop").code == exit_code


def test_the_sentence_of_the_log_store_is_passed_on(store: LogStore, compute: Compute, api: ApiServer) -> None:
    api.answer("GET", "query_range", 400, "", error="the query is too clever")
    assert compute("logs", "shop").err == "Error: reading logs: the query is too clever\n"


def test_without_lines_a_wider_window_is_suggested(store: LogStore, compute: Compute) -> None:
    store.lines = []
    result = compute("logs", "shop")
    assert (result.code, result.out) == (0, "")
    assert result.err == "No lines in the last 24h; look further back with --since=7d.\n"
    assert compute("logs", "shop", "--since=2h", "--search=x").err == (
        'No lines with "x" in the last 2h; look further back with --since=30d.\n'
    )
    assert compute("logs", "shop", "-q").err == ""


def test_without_lines_it_is_told_that_nothing_has_started(api: ApiServer, world: World, compute: Compute) -> None:
    api.logs = LogStore()
    world.workload()
    world.instance("AMS", 0, condition("Ready", "False", "PendingQuota"))
    result = compute("logs", "shop")
    assert result.err == 'No instance of "shop" has started yet: compute status shop\n'


def test_several_containers_are_told_apart(store: LogStore, compute: Compute) -> None:
    store.add(ago(1), AMS, "proxied", k8s_container_name="proxy")
    store.add(ago(0.5), DFW, "served")
    assert compute("logs", "shop", "--no-timestamps", "--tail=3").lines == [
        "[default-dfw-1] listening on :8083",  # the second container is not known yet
        "[default-ams-0/proxy] proxied",
        "[default-dfw-0/app]   served",
    ]


def test_a_new_generation_is_marked_on_stderr(store: LogStore, compute: Compute) -> None:
    store.add(ago(10), AMS, "starting", generation=UID)
    store.add(ago(9), AMS, "stopping", generation="g1")  # the one before is not over yet
    result = compute("logs", "shop", "--instance=default-ams-0", "--no-timestamps")
    assert result.lines[1:] == ["[default-ams-0] starting", "[default-ams-0] stopping"]
    assert result.err == "[default-ams-0] replaced: generation 4f1c2a9e begins\n"
    assert compute("logs", "shop", "-o", "json").err == ""


def test_one_generation_can_be_chosen(store: LogStore, compute: Compute) -> None:
    for generation in ("g2", "g3"):
        for number in range(3):
            store.add(ago(50 - 10 * int(generation[1:]) - number), AMS, f"{generation} {number}", generation=generation)
    brief = ("--no-timestamps", "--no-prefix")
    assert compute("logs", "shop", "--current", "--instance=default-ams-0", *brief).lines == ["g3 0", "g3 1", "g3 2"]
    assert compute("logs", "shop", "--current", "--tail=1", *brief).lines == ["g3 2"]
    result = compute("logs", "shop", "--previous", *brief)
    assert result.lines == ["g2 0", "g2 1", "g2 2"]
    assert result.err == "No earlier generation in the last 7d: default-ams-1, default-dfw-0, default-dfw-1\n"
    result = compute("logs", "shop", "--previous", "--search=nothing")
    assert (result.code, result.out) == (0, "")


def test_without_an_earlier_generation_there_is_a_hint(store: LogStore, compute: Compute) -> None:
    result = compute("logs", "shop", "--previous")
    assert (result.code, result.out) == (0, "")
    assert result.err == "No instance has an earlier generation in the last 7d; look further back with --since=30d.\n"


def test_where_generations_are_not_stored_previous_is_the_run_before(store: LogStore, compute: Compute) -> None:
    current = store.lines
    store.lines = []
    store.add(ago(100), AMS, "panic: out of luck")
    store.previous, store.lines = store.lines, current
    result = compute("logs", "shop", "--previous", "--no-timestamps")
    assert result.out == "[default-ams-0] panic: out of luck\n"
    assert (
        result.err == "Lines of replaced instances are not stored here: these were written before the last restart.\n"
    )


def test_a_city_whose_lines_are_missing_is_named_once(store: LogStore, compute: Compute) -> None:
    store.warnings = ["AMS does not answer; its lines are missing"]
    for number in range(6_000):
        store.add(ago(600) + number, DFW, "x")
    result = compute("logs", "shop", "--since=1h", "-q")
    assert (result.code, result.err) == (0, "AMS does not answer; its lines are missing\n")


def test_where_lines_are_not_stored_no_wider_window_is_suggested(store: LogStore, compute: Compute) -> None:
    store.lines, store.previous = [], []
    assert compute("logs", "shop").err == (
        "No lines in the last 24h; sites know only what instances wrote since they started.\n"
    )


def test_hundreds_of_generations_fit_into_queries(store: LogStore, compute: Compute) -> None:
    store.lines = []
    for index in range(300):
        for generation in ("old", "new"):
            uid = f"{generation}-{index:032}"
            store.add(
                ago(900 if generation == "old" else 300) + index, f"shop-default-ams-{index}", uid, generation=uid
            )
    lines = compute("logs", "shop", "--current", "--no-prefix", "--no-timestamps", "--tail=-1").lines
    assert lines == [f"new-{index:032}" for index in range(300)]


def test_more_lines_than_a_page_are_read_whole(store: LogStore, compute: Compute) -> None:
    store.lines = []
    for number in range(12_000):
        store.add(ago(600) + number * 1000, AMS, str(number))
    result = compute("logs", "shop", "--since=1h", "--no-prefix", "--no-timestamps")
    assert result.lines == [str(number) for number in range(12_000)]
    result = compute("logs", "shop", "--tail=7000", "--no-prefix", "--no-timestamps")
    assert result.lines == [str(number) for number in range(5_000, 12_000)]


def test_a_terminal_gets_no_escape_sequences_but_colours(store: LogStore, compute: Compute) -> None:
    store.lines = []
    store.add(ago(2), AMS, "\x1b]0;owned\x07\x1b[2J\x1b[32mok\x1b[0m")
    store.add(ago(1), DFW, "plain")
    raw = "\x1b]0;owned\x07\x1b[2J\x1b[32mok\x1b[0m"
    assert compute("logs", "shop", "--no-timestamps").lines == [f"[default-ams-0] {raw}", "[default-dfw-0] plain"]
    assert compute("logs", "shop", "--no-timestamps", tty=True).lines == [
        "\x1b[36m[default-ams-0]\x1b[0m \x1b[32mok\x1b[0m\x1b[0m",
        "\x1b[33m[default-dfw-0]\x1b[0m plain",
    ]
    assert compute("logs", "shop", "--no-timestamps", "--color=never", tty=True).lines == [
        "[default-ams-0] ok",
        "[default-dfw-0] plain",
    ]


def test_lines_are_not_shown_by_a_trace(store: LogStore, compute: Compute) -> None:
    store.add(ago(1), AMS, "password=hunter2")
    result = compute("logs", "shop", "-vv")
    assert "hunter2" in result.out
    assert "hunter2" not in result.err


def test_another_server_can_have_the_logs(
    api: ApiServer, world: World, clock: FakeClock, compute: Compute, tmp_path: Path
) -> None:
    world.settled()
    with ApiServer(clock) as other:
        other.logs = LogStore()
        other.logs.add(ago(1), AMS, "from elsewhere")
        result = compute("logs", "shop", "--no-timestamps", environ={"DATUM_COMPUTE_LOGS_URL": f"{other.url}/"})
        assert result.out == "[default-ams-0] from elsewhere\n"
        [seen] = other.requests
        assert seen.path == "/projects/demo/control-plane/apis/o11y.miloapis.com/v1alpha1/logs/loki/api/v1/query_range"
        assert seen.authorization == "Bearer s3cret"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("logs.example", 'DATUM_COMPUTE_LOGS_URL: "logs.example" is not the address of a server'),
        ("http://logs.example", "DATUM_COMPUTE_LOGS_URL: http://logs.example is not encrypted; use https://"),
    ],
)
def test_the_token_is_sent_to_no_server_that_others_can_read_along(
    store: LogStore, compute: Compute, url: str, message: str
) -> None:
    result = compute("logs", "shop", environ={"DATUM_COMPUTE_LOGS_URL": url})
    assert result.code == 2
    assert message in result.err


# Following.


def test_lines_are_followed_until_ctrl_c(store: LogStore, compute: Compute) -> None:
    store.add(ago(0) + SECOND, AMS, "new")
    store.tails = [[frame(*store.lines[:4]), b"{}\n", frame(store.lines[4])]]
    result = compute("logs", "shop", "-f", "--no-timestamps")
    assert result.code == 0
    assert result.lines[-1] == "[default-ams-0] new"
    assert len(result.lines) == 5
    assert result.err.splitlines()[0] == 'Following "shop"; Ctrl-C ends it.'
    name, query = store.queries[0]
    assert (name, query["limit"], query["start"]) == ("tail", "200", str(ago(86400)))


def test_after_a_break_what_was_there_before_is_not_repeated(store: LogStore, compute: Compute) -> None:
    store.lines = []
    for number in range(6):
        store.add(ago(0) + number * SECOND, AMS, f"{number}")
    lines = store.lines
    tick = lines[3]
    store.tails = [
        [frame(*lines[:3]), frame(tick, tick)],
        [frame(*lines[1:3], tick, tick, tick, lines[4]), frame(lines[5])],
    ]
    result = compute("logs", "shop", "-f", "--no-timestamps", "--no-prefix")
    assert result.lines == ["0", "1", "2", "3", "3", "3", "4", "5"]
    [_, (_, again), *_] = store.queries
    assert (again["start"], again["limit"]) == (str(ago(0) + 1 * SECOND), "5000")


def test_a_server_that_knows_only_the_seconds_after_a_restart_repeats_nothing(
    store: LogStore, compute: Compute
) -> None:
    store.lines = []
    for moment in (ago(3) + 500_000_000, ago(2) + 417_000_000, ago(3), ago(2), ago(1)):
        store.add(moment, AMS, "tick")
    store.tails = [[frame(*store.lines[:2])], [frame(*store.lines[2:])]]
    assert len(compute("logs", "shop", "-f").lines) == 3


def test_a_line_that_comes_late_is_shown_however_old_it_is(store: LogStore, compute: Compute) -> None:
    store.tails = [[frame(store.lines[3]), frame(store.lines[0])]]
    assert len(compute("logs", "shop", "-f", "--tail=1").lines) == 2


def test_lines_that_tail_left_out_do_not_come_after_a_break(store: LogStore, compute: Compute) -> None:
    store.lines = []
    for number in range(3):
        store.add(ago(1) + number, AMS, f"{number}")
    store.tails = [[frame(*store.lines[2:])], [frame(*store.lines)]]
    assert compute("logs", "shop", "-f", "--tail=1", "--no-timestamps", "--no-prefix").lines == ["2"]


def test_a_lost_server_is_reported_once_and_again_when_it_is_back(
    store: LogStore, compute: Compute, api: ApiServer, clock: InterruptedClock
) -> None:
    def away() -> None:
        api.answer("GET", "/tail", 503, "away", times=5)

    store.tails = [[frame(store.lines[0]), away], [frame(store.lines[1])]]
    result = compute("logs", "shop", "-f", "--utc")
    seconds = sum(clock.slept)
    assert 10 <= seconds <= 40
    assert result.err.splitlines()[1:3] == [
        "The server has not answered since 12:00:00: away; still trying",
        f"The server answers again after {seconds:.0f} s",
    ]
    assert len(result.lines) == 2


def test_silence_counts_as_a_break(store: LogStore, compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("datum_compute.cli.talk.log_api.SILENCE_SECONDS", 0.05)
    released = threading.Event()
    store.tails = [[frame(store.lines[0]), released.wait], [released.set, frame(store.lines[1])]]
    assert len(compute("logs", "shop", "-f").lines) == 2


def test_a_broken_line_is_read_again(store: LogStore, compute: Compute) -> None:
    whole = frame(store.lines[0])
    store.tails = [[whole[:20]], [whole]]
    assert len(compute("logs", "shop", "-f").lines) == 1


def test_a_reader_who_may_not_read_any_more_is_told(store: LogStore, compute: Compute, api: ApiServer) -> None:
    store.tails = [[lambda: api.answer("GET", "/tail", 403, "no")], []]
    result = compute("logs", "shop", "-f")
    assert result.code == 7
    assert "Error: you do not have permission to read logs in project demo\n" in result.err


def test_too_many_readers_are_told_so(store: LogStore, compute: Compute, api: ApiServer) -> None:
    api.answer("GET", "/tail", 429, "", error="16 readers follow this project; name fewer")
    store.tails = [[]]
    result = compute("logs", "shop", "-f")
    assert "16 readers" in result.err


def until(condition: Callable[[], bool]) -> None:
    """The program reads what was sent, in its own time."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_happens_meanwhile_is_told_on_stderr(store: LogStore, compute: Compute, api: ApiServer) -> None:
    dropped = {"dropped_entries": [{"labels": {"datum_instance_name": DFW}, "timestamp": "1", "count": 12}]}
    store.tails = [
        [
            notice("silent", ago(600), city="AMS"),
            notice("silent", ago(600), city="AMS"),
            notice("back", ago(558), city="AMS"),
            notice("back", ago(500), city="AMS"),
            notice("joined", instance="shop-default-dfw-2"),
            notice("left", instance="shop-default-dfw-2"),
            frame(*store.lines[2:3]),
            notice("generation", instance=DFW, message=f"{DFW} was replaced: generation {UID} begins"),
            json.dumps(dropped).encode() + b"\n",
            lambda: until(lambda: sum(seen.path.endswith("/workloads/shop") for seen in api.requests) > 1),
            lambda: api.delete(WORKLOAD, "shop"),
            notice("left", instance=DFW),
            notice("left", instance=AMS),
        ]
    ]
    result = compute("logs", "shop", "-f", "--utc")
    assert result.err.splitlines()[1:] == [
        "AMS does not answer since 11:50:00; the others go on",
        "AMS answers again after 42 s",
        "[default-dfw-2] joined",
        "[default-dfw-2] left",
        "[default-dfw-0] replaced: generation 4f1c2a9e begins",
        "12 lines of default-dfw-0 were left out: too much came at once",
        'workload "shop" was deleted; its instances are leaving',
    ]
    assert len(result.lines) == 1


def test_a_city_that_was_silent_is_read_from_where_it_fell_silent(store: LogStore, compute: Compute) -> None:
    store.tails = [[frame(store.lines[3]), notice("silent", ago(300), city="AMS")], []]
    compute("logs", "shop", "-f")
    assert store.queries[1][1]["start"] == str(ago(302))


def test_a_city_that_came_back_during_a_break_is_reported_by_its_lines(store: LogStore, compute: Compute) -> None:
    store.add(ago(20), AMS, "back again")
    silent = notice("silent", ago(50), city="AMS")
    store.tails = [[frame(store.lines[3]), silent], [silent, frame(store.lines[3]), frame(store.lines[4])]]
    result = compute("logs", "shop", "-f", "--utc", "--no-timestamps")
    assert result.lines[-1] == "[default-ams-0] back again"
    assert result.err.splitlines()[1:3] == [
        "AMS does not answer since 11:59:10; the others go on",
        "AMS answers again after 51 s",
    ]


@pytest.mark.parametrize("code", [400, 404, 405, 426, 501])
def test_servers_without_tail_are_polled(
    store: LogStore, compute: Compute, api: ApiServer, clock: InterruptedClock, code: int
) -> None:
    api.answer("GET", "/tail", code, "no")
    added = iter(range(100))

    def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        number = next(added)
        if number in (1, 2):
            store.add(ago(0) + number * SECOND, AMS, f"new {number}")
        if number == 9:
            raise KeyboardInterrupt
        clock.turn(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    result = compute("logs", "shop", "-f", "--no-timestamps", "--tail=2")
    assert result.lines == [
        "[default-dfw-0] listening on :8082",
        "[default-dfw-1] listening on :8083",
        "[default-ams-0] new 1",
        "[default-ams-0] new 2",
    ]
    assert result.err == 'Following "shop"; Ctrl-C ends it.\n'
    assert clock.slept == [0.5, 0.75, 0.5, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert store.queries[-1][1]["start"] == str(ago(0) + 2 * SECOND - 10 * SECOND)


def test_polling_survives_an_outage(store: LogStore, compute: Compute, clock: InterruptedClock) -> None:
    store.tails = None
    naps = iter(range(100))

    def sleep(seconds: float) -> None:
        nap = next(naps)
        clock.turn(seconds)
        if nap == 1:
            store.away = 20
        if not store.away and nap > 2:
            raise KeyboardInterrupt

    clock.sleep = sleep  # type: ignore[method-assign]
    result = compute("logs", "shop", "-f", "--tail=1", "--utc")
    assert len(result.lines) == 1
    assert result.err.splitlines()[1].startswith("The server has not answered since 12:00:")
    assert result.err.splitlines()[1].endswith(": too slow; still trying")


def test_all_lines_are_read_in_pages_before_they_are_followed(store: LogStore, compute: Compute) -> None:
    store.tails = [[frame(store.lines[3])]]
    result = compute("logs", "shop", "-f", "--since=1h")
    assert len(result.lines) == 4
    assert [name for name, _ in store.queries[:2]] == ["query_range", "tail"]
    assert store.queries[1][1]["start"] == str(store.lines[3][0] - 2 * SECOND)


def test_tail_zero_begins_now(store: LogStore, compute: Compute) -> None:
    store.tails = [[]]
    compute("logs", "shop", "-f", "--tail=0")
    assert store.queries[0][1]["start"] == str(ago(0))
